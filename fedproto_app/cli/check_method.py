"""``fedproto check-method``: check a method's invariants in small runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.cli import results_console
from fedproto_app.cli.options import Changes
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.methods import method_named, require_known
from fedproto_app.core.tasks import TASKS
from fedproto_app.experiments.run_settings import changed_settings

if TYPE_CHECKING:
    from fedproto_app.experiments.invariants import Deviation


def check_method(
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="package.module:METHOD, or a built-in method."),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="Check only this task; may be repeated. Default: all tasks of the method.",
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Check that a method's results depend on the seed, not on the nodes.

    For each task, it makes short runs of the method with 8 clients. The same
    seed must give the same results in every run: with the clients trained
    together or one by one, on one node or on eight, in a repeated run, and
    after the run was killed and resumed. The kept models must also reproduce
    the reported errors, unless the method cannot predict with them alone. All
    runs are removed afterwards. It takes about 10 seconds per task.
    Exit code: 0 all invariants held, 1 an invariant did not hold or a run
    failed, 2 wrong settings.

    [bold]Examples[/bold]

      fedproto check-method fuels
      fedproto check-method fuels --task forecasting --set fuels.beta=30
      fedproto check-method my_methods:METHOD
    """
    try:
        works_with = method_named(require_known(method)).works_with
    except ValueError as error:
        raise SettingsError(str(error)) from None
    chosen = tasks or [task for task in TASKS if works_with(task)]
    # torch and Flower are slow to import
    from fedproto_app.engine.simulation import flowers_log
    from fedproto_app.experiments.invariants import SmallRuns, invariants_of

    table = Table(box=None, header_style="bold")
    for title in ("task", "invariant", "", "largest relative difference"):
        table.add_column(title)
    with tempfile.TemporaryDirectory(prefix="fedproto-") as home:
        settings = changed_settings(None, changes or [])
        of_task = {task: SmallRuns(task, method, Path(home) / task, **settings) for task in chosen}
        checks = [
            (task, *check) for task in chosen for check in invariants_of(of_task[task]).items()
        ]
        all_held = True
        console = Console(stderr=True, highlight=False)
        with console.status("") as status, flowers_log(Path(home) / "log", None):
            for number, (task, invariant, check) in enumerate(checks, start=1):
                status.update(f"{number} of {len(checks)}: {task}, {invariant} …")
                deviation = check(of_task[task])
                all_held &= deviation.held
                table.add_row(task, invariant, *_verdict(deviation))
    results_console().print(table)
    if not all_held:
        raise typer.Exit(1)


def _verdict(deviation: Deviation) -> tuple[str, str]:
    """Return whether the invariant held, and the largest deviation, both as text."""
    if deviation.largest == 0:
        return "held", "none"
    measured = f"{deviation.largest:.1e} (allowed {deviation.allowed:g})"
    if deviation.held:
        return "held", measured
    return "[red]did not hold[/red]", f"{measured}, {escape(deviation.where)}"
