"""``fedproto run --superlink``: a run on real nodes, submitted, followed and its end told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from fedproto_app.core.endings import WhenStopped
from fedproto_app.core.events import parse_event
from fedproto_app.ops.certificates import servers_certificate, warnings
from fedproto_app.ops.superlink import ConnectionLost, NamedSuperLink, RunStatus, tail
from fedproto_app.report.progress import GrowingFile, clock_text
from fedproto_app.settings import Settings, flower_config

LOST = 3  # exit code: what became of the run is not known

_LOOK_EVERY = 0.5
_SEARCH = 600.0  # seconds for which a SuperLink that does not answer is asked again
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two times that it is asked
_HEALTH = ("loss", "asked", "answered", "refused", "late", "seconds")
_WARNINGS = (
    *("joined", "left", "back", "rests", "missing", "refused", "note"),
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
    """Submit the run and follow it to its end; returns its folder, as the server calls it.

    Exits with 1 if the run failed, with 3 if nobody could be asked any more how it stands. Who
    stops following leaves the run as it is.
    """
    there = superlink.name
    for warning in warnings([servers_certificate(there)]):
        typer.echo(f"warning: {warning}", err=True)
    stop.says = lambda: f"stopped: whether the run was submitted says: flwr list {there}"
    run_id = superlink.submit(app, flower_config(settings))
    again = f"follow it: flwr log {run_id} {there} --stream; end it: flwr stop {run_id} {there}"
    stop.says = lambda: f"stopped following; the run goes on; {again}"
    console.print(
        f"run {run_id} of {settings.output.name}: goes on without you; "
        f"end it with: flwr stop {run_id} {there}",
        soft_wrap=True,
    )
    shown = _Shown(settings.all_rounds, console, verbose)
    try:
        while not (status := _follow(superlink, run_id, shown)).finished:
            time.sleep(_LOOK_EVERY)  # the stream broke, the run goes on
    except ConnectionLost as error:
        typer.echo(f"error: lost sight of run {run_id}, which may well go on: {error}", err=True)
        typer.echo(f"how it stands: flwr list {there}; {again}", err=True)
        typer.echo("do not resume it before it has ended", err=True)
        raise typer.Exit(LOST) from None
    if not status.completed:
        reason = shown.reason or f"the run ended as {status.status}: {status.details}"
        if not shown.reason:
            typer.echo(tail(superlink.log), err=True)
        typer.echo(f"error: {reason}", err=True)
        typer.echo(
            f"go on with it: --resume {settings.output.name}; "
            f"its log: flwr log {run_id} {there} --show",
            err=True,
        )
        raise typer.Exit(1)
    return Path(shown.folder or settings.output.name)


def _follow(superlink: NamedSuperLink, run_id: str, shown: _Shown) -> RunStatus:
    """Show the run's log to the end of the stream; how the run stands then."""
    follower, log = superlink.follow(run_id, superlink.log), GrowingFile(superlink.log)
    shown.begin_anew()
    ended = False
    try:
        while not ended:
            ended = follower.poll() is not None  # asked first: what came before is then all there
            for line in log.new_lines():
                shown.take(line)
            if not ended:
                time.sleep(_LOOK_EVERY)
    finally:
        follower.terminate()  # who stops following must not leave it behind
        follower.wait()
    return _status(superlink, run_id, shown)


def _status(superlink: NamedSuperLink, run_id: str, shown: _Shown) -> RunStatus:
    """How the run stands. While nobody answers it asks again, for `_SEARCH` seconds.

    Then it raises `ConnectionLost`: that a SuperLink is not to be reached says nothing of the run.
    """
    deadline, pause = time.monotonic() + _SEARCH, _FIRST_PAUSE
    while True:
        try:
            status = superlink.status(run_id)
        except ConnectionLost as error:
            if time.monotonic() + pause > deadline:
                raise
            if pause == _FIRST_PAUSE:
                shown.warn(f"lost sight of the run, trying again: {error}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            if pause > _FIRST_PAUSE:
                shown.warn(f"the run is in sight again: {status.status}")
            return status


class _Shown:
    """What a person sees of the server's log: a line a round, and what goes wrong.

    folder: where the server says the artefacts are. reason: why it says it stopped.
    """

    def __init__(self, rounds: int, console: Console, verbose: bool) -> None:
        self.folder, self.reason = "", ""
        self._rounds, self._console, self._verbose = rounds, console, verbose
        self._taken, self._skip = 0, 0

    def begin_anew(self) -> None:
        """The log comes from its beginning; what was shown of it is passed over."""
        self._taken, self._skip = 0, max(self._taken, self._skip)

    def warn(self, text: str) -> None:
        self._console.print(Text(text, "yellow"), soft_wrap=True)

    def take(self, line: str) -> None:
        self._taken += 1
        if self._taken <= self._skip:
            return
        if self._verbose:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        told = parse_event(line)
        match told.get("event"):
            case "artefacts":
                self.folder = told["folder"]
            case "stopped":
                self.reason = told["reason"]
            case "round":
                self._console.print(self._round(told), soft_wrap=True)
            case event if event in _WARNINGS and not self._verbose:
                self.warn(line[line.index("event=") :])

    def _round(self, told: Mapping[str, str]) -> str:
        number = int(told["round"])
        left = clock_text(float(told["seconds"]) * (self._rounds - number))
        counts = "  ".join(f"{name} {told[name]}" for name in _HEALTH if name in told)
        return f"round {number}/{self._rounds}  {counts}  {left} left"
