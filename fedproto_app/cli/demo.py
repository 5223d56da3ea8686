"""``fedproto demo``: forecast the embedded data in eight ways, and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedproto_app.cli import say_next

CONFIG = Path(__file__).with_name("demo.toml")
TRAINED = ("solo", "fedavg", "fuels")
VERDICT = "solo, fedavg and fuels had 20 rounds, too few for them: their rows are no verdict"


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The runs' folder, made if needed.")
    ] = Path("runs/demo"),
) -> None:
    """Forecast the embedded traffic of 24 sites that are a week old, in eight ways.

    It compares simple forecasts, models of each site alone, and federated
    models in a table, says whether federated learning pays, and writes a
    report. It takes about a minute on two cores. Finished runs are kept,
    so the same command resumes a demo that was stopped.

    [bold]Examples[/bold]

      fedproto demo
      fedproto demo my-demo
    """
    # torch is slow to import, so print the first line before.
    console = Console(stderr=True, highlight=False)
    console.print(f"the embedded traffic of 24 sites, into {folder}", markup=False)
    from fedproto_app.cli.results import compare, report
    from fedproto_app.experiments.run_settings import NODES, changed_settings
    from fedproto_app.experiments.simulation import complete_run
    from fedproto_app.experiments.trial import SERIES_ROWS

    rows: dict[str, Mapping[str, Any]] = {name: row.changes for name, row in SERIES_ROWS.items()}
    rows |= {name: {"method": name} for name in TRAINED}
    for number, (name, changes) in enumerate(rows.items(), start=1):
        console.print(f"[bold]{number} of {len(rows)}: {name}[/bold]")
        place = {"output.dir": str(folder), "output.name": name}
        complete_run({**changed_settings(CONFIG, ()), **changes, **place}, NODES, console)
    typer.echo(VERDICT)
    compare([folder])
    typer.echo("the report, to open in a browser:")
    report([folder])
    say_next(
        console,
        f"fedproto forecast {folder / 'kindred'} --steps 24 --picture day.png",
        "fedproto data check my.csv",
    )
