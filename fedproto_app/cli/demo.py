"""``fedproto demo``: forecast simulated data in several ways, and compare them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedproto_app.cli import say_next

if TYPE_CHECKING:
    from fedproto_app.experiments.trial import Plan

CONFIG = Path(__file__).with_name("demo.toml")
ALL_DAYS = 26  # of the sites' train parts
TRAINED = ("solo", "fedavg", "fuels")
CELLS = (
    "history 7: all methods, with a week of training data at each site. history 26: only the "
    "closed forms, with all 26 days."
)


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder for the runs, made if needed.")
    ] = Path("runs/demo"),
) -> None:
    """Forecast the traffic of 24 simulated sites, with a week of data and with all of it.

    For each amount of data, a table compares simple forecasts, local models
    and federated models. The demo says whether federated learning pays, and
    writes a report. It takes two to three minutes on two cores. Finished
    runs are kept, so the same command resumes a demo that was stopped.

    [bold]Examples[/bold]

      fedproto demo
      fedproto demo my-demo
    """
    # torch is slow to import, so print the first line before importing it.
    console = Console(stderr=True, highlight=False)
    console.print(f"the traffic of 24 simulated sites, into {folder}", markup=False)
    from fedproto_app.cli.results import compare, report
    from fedproto_app.experiments.run_settings import require_writable
    from fedproto_app.experiments.trial import make_runs

    require_writable(folder, "the argument DIR")
    make_runs(demo_plan(), folder, console)
    typer.echo(CELLS)
    compare([folder])
    typer.echo("the report, to open in a browser:")
    report([folder])
    say_next(
        console,
        f"fedproto forecast {shlex.quote(str(folder / 'kindred'))} --steps 24 --picture day.png",
        "fedproto try my.csv",
    )


def demo_plan() -> Plan:
    """Return the demo's runs: all methods on a week of data, and closed forms also on all days."""
    from fedproto_app.core.methods import METHODS
    from fedproto_app.experiments.run_settings import changed_settings
    from fedproto_app.experiments.trial import SERIES_ROWS, Plan, Row

    rows = {
        **SERIES_ROWS,
        **{
            name: Row(METHODS[name].title_for("forecasting"), {"method": name}, 8)
            for name in TRAINED
        },
        **{
            f"{name}-all-days": Row(
                f"{row.title}, all days", {**row.changes, "data.history": ALL_DAYS}, row.cost
            )
            for name, row in SERIES_ROWS.items()
        },
    }
    return Plan(changed_settings(CONFIG, ()), rows, (), "kindred", forecast="kindred")
