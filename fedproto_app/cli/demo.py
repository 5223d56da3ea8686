"""``fedproto demo``: eight ways to forecast the embedded data, and whether sharing pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedproto_app.cli.next_steps import say_next
from fedproto_app.core.errors import SettingsError

CONFIG = Path(__file__).with_name("demo.toml")
# By the names of their folders: the simplest, alone, federated.
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
        Path, typer.Argument(metavar="[DIR]", help="The runs' folder; made if there is none.")
    ] = Path("runs/demo"),
) -> None:
    """Forecast the embedded traffic of 24 sites that are a week old, in eight ways.

    The simplest forecasts, models of each site alone, and federated ones:
    a table compares them, a sentence says for how many sites taking part
    pays, and a report shows all of it. It takes about a minute on two cores. Runs that are there
    already are kept, so that a demo that was stopped goes on.

    [bold]Examples[/bold]

      fedproto demo
      fedproto demo my-demo
    """
    # torch is slow to import, which the first line need not wait for.
    console = Console(stderr=True, highlight=False)
    console.print(f"{len(ROWS)} runs on the embedded traffic of 24 sites, into {folder}")
    from fedproto_app.cli.compare import compare
    from fedproto_app.cli.report import report

    for number, (name, changes) in enumerate(ROWS.items(), start=1):
        console.print(f"[bold]{number} of {len(ROWS)}: {name}[/bold]")
        _made(folder, name, changes)
    typer.echo(VERDICT)
    compare([folder])
    typer.echo("the report, to open in a browser and to send on:")
    report([folder])
    say_next(
        console,
        f"fedproto forecast {folder / 'kindred'} --steps 24 --picture day.png",
        "fedproto data check my.csv",
    )


def _made(folder: Path, name: str, changes: dict[str, Any]) -> None:
    """The run of this name in the folder; what is left of one that was stopped goes on."""
    from fedproto_app.api import resume, run

    there = folder / name
    if (there / "summary.json").exists():
        return
    if (there / "checkpoint").exists():
        resume(there)
        return
    if there.exists():
        raise SettingsError(f"{there}: a run that did not begin; remove the folder")
    settings = {"output.dir": str(folder), "output.name": name, **changes}
    run(CONFIG, **{key.replace(".", "__").replace("-", "_"): settings[key] for key in settings})
