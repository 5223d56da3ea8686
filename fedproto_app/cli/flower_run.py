"""Make runs with Flower: on real nodes, or on a separate SuperLink that simulates them with Ray."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from fedproto_app.core.endings import WhenStopped
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.events import parse_event
from fedproto_app.experiments.simulation import (
    check_data,
    check_pretraining,
    folder_of_users_code,
    require_modules,
)
from fedproto_app.ops.nodes import require_registered
from fedproto_app.ops.superlink import (
    Connection,
    ConnectionLost,
    NamedSuperLink,
    RunStatus,
    SuperLink,
    tail,
    write_app,
)
from fedproto_app.report.progress import (
    GrowingFile,
    NewRounds,
    Progress,
    clock_text,
    keep_log,
    keep_notes,
)
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import Settings, flower_config

LOST = 3  # exit code: the run's result is unknown

_LOOK_EVERY = 0.3  # seconds between two looks at the run's log and files
_SEARCH = 600.0  # seconds of retries while a SuperLink does not answer
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between retries
_HEALTH = ("loss", "asked", "answered", "refused", "late", "seconds")
_WARNINGS = (
    *("joined", "left", "back", "rests", "missing", "slow", "refused", "note"),
    *("order-lost", "resumed", "checkpoint-refused", "no-lock"),
)


def follow_run(
    superlink: NamedSuperLink,
    app: Path,
    settings: Settings,
    console: Console,
    verbose: bool,
    stop: WhenStopped,
) -> Path:
    """Submit the run, follow it to its end, and return its folder on the server.

    Exits with 1 if the run failed, and with 3 if the connection to the SuperLink was lost. If this
    process is interrupted, the run continues.
    """
    superlink_name = superlink.name
    superlink.await_answer(lambda text: console.print(text, soft_wrap=True, markup=False))
    from fedproto_app.ops.keys import servers_certificate, warnings  # imports cryptography

    for warning in warnings([servers_certificate(superlink_name)]):
        typer.echo(f"warning: {warning}", err=True)
    if settings.nodes.named:
        require_registered(superlink_name, settings.nodes.named)
    stop.says = lambda: f"stopped; check whether the run was submitted: flwr list {superlink_name}"
    run_id = superlink.submit(app, flower_config(settings))
    commands = (
        f"follow it: flwr log {run_id} {superlink_name} --stream; "
        f"end it: flwr stop {run_id} {superlink_name}"
    )
    stop.says = lambda: f"stopped following; the run goes on; {commands}"
    console.print(
        f"run {run_id} of {settings.output.name}: continues without this command; "
        f"end it with: flwr stop {run_id} {superlink_name}",
        soft_wrap=True,
        markup=False,
    )
    shown = _Shown(settings.all_rounds, console, verbose)
    try:
        while not (status := _follow(superlink, run_id, shown)).finished:
            time.sleep(_LOOK_EVERY)  # the stream broke, but the run continues
    except ConnectionLost as error:
        typer.echo(
            f"error: lost the connection to run {run_id}, which may continue: {error}", err=True
        )
        typer.echo(f"its status: flwr list {superlink_name}; {commands}", err=True)
        typer.echo("do not resume it before it has ended", err=True)
        raise typer.Exit(LOST) from None
    if not status.completed:
        reason = shown.reason or f"the run ended as {status.status}: {status.details}"
        if not shown.reason:
            typer.echo(tail(superlink.log), err=True)
        typer.echo(f"error: {reason}", err=True)
        typer.echo(
            f"resume it with: --resume {settings.output.name}; "
            f"its log: flwr log {run_id} {superlink_name} --show",
            err=True,
        )
        raise typer.Exit(1)
    return Path(shown.folder or settings.output.name)


def _follow(superlink: NamedSuperLink, run_id: str, shown: _Shown) -> RunStatus:
    """Show the run's log to the end of the stream, and return the run's status."""
    shown.begin_anew()
    with closing(_log_lines(superlink, run_id, superlink.log)) as looks:
        for lines in looks:
            for line in lines:
                shown.take(line)
    return _status(superlink, run_id, shown)


def _log_lines(superlink: Connection, run_id: str, log: Path) -> Generator[list[str]]:
    """Follow the run's log, and yield its new lines at each look, until the stream ends."""
    follower, file, ended = superlink.follow(run_id, log), GrowingFile(log), False
    try:
        while not ended:
            ended = follower.poll() is not None  # checked first, so that no line is missed
            yield file.new_lines()
            if not ended:
                time.sleep(_LOOK_EVERY)
    finally:
        follower.terminate()  # also if following is interrupted
        follower.wait()


def _status(superlink: NamedSuperLink, run_id: str, shown: _Shown) -> RunStatus:
    """Return the run's status. While the SuperLink does not answer, retry for `_SEARCH` seconds.

    Then raise `ConnectionLost`, because the run may still continue.
    """
    deadline, pause = time.monotonic() + _SEARCH, _FIRST_PAUSE
    while True:
        try:
            status = superlink.status(run_id)
        except ConnectionLost as error:
            if time.monotonic() + pause > deadline:
                raise
            if pause == _FIRST_PAUSE:
                shown.warn(f"lost the connection to the run, trying again: {error}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            if pause > _FIRST_PAUSE:
                shown.warn(f"connected to the run again: {status.status}")
            return status


class _Shown:
    """Shows the user what the server logs: a line per round, and warnings.

    folder: the folder of the artefacts, as the server reports it. reason: why the server stopped.
    """

    def __init__(self, rounds: int, console: Console, verbose: bool) -> None:
        self.folder, self.reason = "", ""
        self._rounds, self._console, self._verbose = rounds, console, verbose
        self._taken, self._skip = 0, 0

    def begin_anew(self) -> None:
        """Prepare to read the log again from its beginning: skip the lines already shown."""
        self._taken, self._skip = 0, max(self._taken, self._skip)

    def warn(self, text: str) -> None:
        self._console.print(Text(text, "yellow"), soft_wrap=True)

    def take(self, line: str) -> None:
        self._taken += 1
        if self._taken <= self._skip:
            return
        if self._verbose:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        event_fields = parse_event(line)
        match event_fields.get("event"):
            case "artefacts":
                self.folder = event_fields["folder"]
            case "stopped":
                self.reason = event_fields["reason"]
            case "round":
                self._console.print(self._round(event_fields), soft_wrap=True)
            case event if event in _WARNINGS and not self._verbose:
                self.warn(line[line.index("event=") :])

    def _round(self, fields: Mapping[str, str]) -> str:
        number = int(fields["round"])
        remaining = clock_text(float(fields["seconds"]) * (self._rounds - number))
        counts = "  ".join(f"{name} {fields[name]}" for name in _HEALTH if name in fields)
        return f"round {number}/{self._rounds}  {counts}  {remaining} left"


def simulate_in_flower(
    app: Path | None,
    settings: Settings,
    nodes: int,
    cpus: int,
    gpus: float | None,
    console: Console,
    verbose: bool,
) -> None:
    """Run on simulated SuperNodes. Exits with 1 if the run failed.

    app: the folder of a Flower app, None for an app without code. cpus, gpus: how many each node
    gets. If gpus is None and the device setting uses GPUs, the nodes share all GPUs equally.
    """
    require_modules(settings)
    import_path = folder_of_users_code(settings)
    gpus = gpus_of_a_node(settings.device, nodes, cpus) if gpus is None else gpus
    check_pretraining(settings)
    _, notes = check_data(settings)
    artefacts = Path(settings.output.dir) / settings.output.name
    with (
        Progress(
            console, settings.all_rounds, report_for(settings.task).metrics.progress
        ) as progress,
        tempfile.TemporaryDirectory(prefix="fedproto-", ignore_cleanup_errors=True) as home,
        SuperLink(Path(home), import_path) as superlink,
    ):
        keep_notes(notes, artefacts, progress)
        progress.stage("starting Flower")
        submitted = app or write_app(Path(home) / "app")
        run_id = superlink.simulate(submitted, flower_config(settings), nodes, cpus, gpus)
        log = Path(home) / "flower.log"
        try:
            status = _watch(superlink, run_id, log, artefacts, progress, verbose)
        finally:
            if log.exists():  # also if the server never started the run
                artefacts.mkdir(parents=True, exist_ok=True)
            keep_log(log, artefacts)
    if not status.completed:
        _explain_failure(status, artefacts)
        raise typer.Exit(1)


def require_cpus(cpus: int) -> None:
    """Raise `SettingsError` if a node needs more CPUs than the machine has."""
    available = os.cpu_count() or 1
    if cpus > available:
        raise SettingsError(f"--cpus-per-node {cpus}: this machine has {available}")


def gpus_of_a_node(device: str, nodes: int, cpus: int) -> float:
    """Return each node's share of the GPUs. The CPUs limit how many nodes run at once.

    Flower's simulation hides GPUs from a node that requests none. Raises `SettingsError` if the
    machine has no GPU of the kind that is set.
    """
    if device == "cpu":
        return 0.0
    from fedproto_app.node.device import torch_device

    if torch_device(device).type == "cpu":  # "auto" without a GPU
        return 0.0
    import torch  # imported already

    share = torch.cuda.device_count() / min(nodes, max(1, (os.cpu_count() or 1) // cpus))
    # Flower accepts a share below one, or whole GPUs. It is rounded down so that all nodes fit.
    return float(math.floor(share)) if share >= 1 else math.floor(share * 1000) / 1000


def _watch(
    superlink: SuperLink,
    run_id: str,
    log: Path,
    artefacts: Path,
    progress: Progress,
    verbose: bool,
) -> RunStatus:
    """Show the run's rounds until Flower says that it has finished. If verbose, show its log."""
    rounds = NewRounds(artefacts / "rounds.jsonl")
    while True:
        with closing(_log_lines(superlink, run_id, log)) as looks:
            for lines in looks:
                superlink.check()
                for record in rounds.new():
                    progress.show(record)
                for line in lines if verbose else ():
                    progress.say(line)
        status = superlink.status(run_id)
        if status.finished:
            return status
        time.sleep(_LOOK_EVERY)  # the stream broke, but the run continues


def _explain_failure(status: RunStatus, artefacts: Path) -> None:
    """Print on stderr why the run failed: the server's message, or the end of Flower's log."""
    error_file, log = artefacts / "error.txt", artefacts / "flower.log"
    if error_file.exists():
        typer.echo(f"error: {error_file.read_text(encoding='utf-8').strip()}", err=True)
    else:
        typer.echo(tail(log), err=True)
        typer.echo(f"error: the run ended as {status.status}: {status.details}", err=True)
    typer.echo(f"full log: {log}", err=True)
