"""``fedproto demo``: forecast the embedded data in eight ways, and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedproto_app.cli import say_next
from fedproto_app.core.errors import SettingsError

CONFIG = Path(__file__).with_name("demo.toml")
# By folder name: simple methods, methods without sharing, federated methods.
ROWS: dict[str, dict[str, Any]] = {
    "naive": {"method": "naive"},
    "seasonal-naive": {"method": "seasonal-naive"},
    "analytic-alone": {"method": "analytic", "analytic.sharing": "none"},
    "kindred-alone": {"method": "kindred", "kindred.sharing": "none"},
    "kindred": {"method": "kindred"},
    "solo": {"method": "solo"},
    "fedavg": {"method": "fedavg"},
    "fuels": {"method": "fuels"},
}
VERDICT = "solo, fedavg and fuels had 20 rounds, too few for them: their rows are no verdict"


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The runs' folder, made if needed.")
    ] = Path("runs/demo"),
) -> None:
    """Forecast the embedded traffic of 24 sites that are a week old, in eight ways.

    It compares simple forecasts, models of each site alone, and federated
    models in a table, says for how many sites taking part pays, and writes
    a report. It takes about a minute on two cores. Finished runs are kept,
    so the same command resumes a demo that was stopped.

    [bold]Examples[/bold]

      fedproto demo
      fedproto demo my-demo
    """
    # torch is slow to import, so print the first line before.
    console = Console(stderr=True, highlight=False)
    console.print(f"{len(ROWS)} runs on the embedded traffic of 24 sites, into {folder}")
    from fedproto_app.cli.results import compare, report

    for number, (name, changes) in enumerate(ROWS.items(), start=1):
        console.print(f"[bold]{number} of {len(ROWS)}: {name}[/bold]")
        _make(folder, name, changes)
    typer.echo(VERDICT)
    compare([folder])
    typer.echo("the report, to open in a browser:")
    report([folder])
    say_next(
        console,
        f"fedproto forecast {folder / 'kindred'} --steps 24 --picture day.png",
        "fedproto data check my.csv",
    )


def _make(folder: Path, name: str, changes: dict[str, Any]) -> None:
    """Make the run of this name in the folder, or resume it if it was stopped."""
    from fedproto_app.api import resume, run

    run_folder = folder / name
    if (run_folder / "summary.json").exists():
        return
    if (run_folder / "checkpoint").exists():
        resume(run_folder)
        return
    if run_folder.exists():
        raise SettingsError(f"{run_folder}: holds a run that did not start; remove the folder")
    settings = {"output.dir": str(folder), "output.name": name, **changes}
    run(CONFIG, **{key.replace(".", "__").replace("-", "_"): settings[key] for key in settings})
