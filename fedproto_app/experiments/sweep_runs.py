"""Make the runs of a sweep in parallel processes, and show their progress on the terminal.

The sweep sends each process the settings of its run, as a line of JSON in a pipe that stays open.
However the sweep ends, the pipe closes, and the process then ends at once. So when a run is
resumed, no old process still writes to it.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.loading import look_here_for_users_code
from fedproto_app.engine import starter
from fedproto_app.engine.pool import end_with
from fedproto_app.experiments.run_settings import resumed_settings, simulated_settings
from fedproto_app.experiments.simulation import simulate_here
from fedproto_app.maths.threads import cores
from fedproto_app.report.progress import clock_text
from fedproto_app.settings import Settings, flat_settings

if TYPE_CHECKING:  # a run's process need not import Optuna
    from fedproto_app.experiments.sweep_plan import Trial

_LOOK_EVERY = 0.1  # seconds between two looks at the processes
_DONE = b"."


@dataclass(frozen=True)
class Job:
    """One run of a trial. Its settings are complete and include its folder."""

    trial: Trial
    seed: int
    settings: Settings

    @property
    def name(self) -> str:
        return self.settings.output.name

    @property
    def folder(self) -> Path:
        return Path(self.settings.output.dir) / self.name

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    def rounds_done(self) -> int:
        """Return the number of rounds in rounds.jsonl."""
        try:
            return (self.folder / "rounds.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0


def make_runs(
    jobs: Sequence[Job], nodes: int, parallel: int, progress: SweepProgress
) -> Generator[tuple[Job, str]]:
    """Make the runs that are not finished. Closing the generator ends all processes.

    Yields each run that has ended, and the reason if it failed, else "". nodes: the number of
    simulated nodes of each run. parallel: the number of runs at a time. progress: shows the runs.
    """
    waiting = deque(job for job in jobs if not job.finished)
    running: list[_Process] = []
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                progress.starts(waiting[0])
                running.append(_Process(waiting.popleft(), nodes, max(1, cores() // parallel)))
            time.sleep(_LOOK_EVERY)
            for process in [process for process in running if process.has_ended()]:
                running.remove(process)
                yield process.job, process.end()
            progress.look()
    finally:
        for process in running:
            process.close()
        for process in running:
            process.end()


class _Process:
    """The process of a run. workers: the number of its worker processes."""

    def __init__(self, job: Job, nodes: int, workers: int) -> None:
        self.job = job
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        orders, self._orders = os.pipe()
        self._end, ending = os.pipe()  # only the process can write into it
        starter.start(f"{__name__}:main", [orders, ending], self._output)
        os.close(orders)
        os.close(ending)
        order = {"settings": flat_settings(job.settings), "nodes": nodes, "workers": workers}
        with suppress(BrokenPipeError), open(self._orders, "wb", closefd=False) as pipe:
            pipe.write((json.dumps(order) + "\n").encode())  # unless the process has ended

    def has_ended(self) -> bool:
        return bool(select.select([self._end], [], [], 0)[0])

    def close(self) -> None:
        """Let the process end at once, without waiting for it."""
        if self._orders >= 0:
            os.close(self._orders)
        self._orders = -1

    def end(self) -> str:
        """End the process if it still runs. Return why the run failed, or "" if it did not."""
        self.close()
        with open(self._end, "rb") as end, self._output as output:
            if end.read() == _DONE and self.job.finished:  # waits for the process
                return ""
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its process was ended"


class SweepProgress:
    """Shows the progress of a sweep.

    On a terminal, this is a progress bar over the rounds of all runs. Elsewhere, it is a line for
    each finished run. runs: the number of runs of the sweep.
    """

    def __init__(self, console: Console, runs: int) -> None:
        self._console, self._runs = console, runs
        self.jobs: list[Job] = []  # the jobs so far
        self._running: dict[str, Job] = {}  # keys: names, as in the next two
        self._ended: set[str] = set()
        self._rounds: dict[str, int] = {}  # done so far
        self._bar = Progress(
            BarColumn(20),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=math.inf,  # rounds may take minutes
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def add(self, jobs: Sequence[Job]) -> None:
        """Add the next runs. Later trials are assumed to take as many rounds as these."""
        self.jobs += jobs
        self._ended |= {job.name for job in jobs if job.finished}
        for job in jobs:
            done = job.name in self._ended
            self._rounds[job.name] = job.settings.all_rounds if done else job.rounds_done()
        total = sum(job.settings.all_rounds for job in self.jobs) / len(self.jobs) * self._runs
        if self._bar.tasks:
            self._bar.update(self._bar.task_ids[0], total=total)
        else:  # rounds done by an earlier call say nothing about the speed
            self._bar.add_task("", total=total, completed=sum(self._rounds.values()))

    def starts(self, job: Job) -> None:
        """Count the rounds of this run from now on."""
        self._running[job.name] = job

    def ended(self, job: Job, reason: str) -> None:
        """Show that a run has ended. reason: why it failed, or ""."""
        self._ended.add(job.name)
        self._running.pop(job.name, None)
        self._rounds[job.name] = job.settings.all_rounds
        self.look()
        text = f"{len(self._ended)}/{self._runs} runs  {job.name}  {job.trial.text()}"
        if reason:
            self._console.print(f"[yellow]{escape(f'{text}  failed: {reason}')}", soft_wrap=True)
        elif not self._console.is_terminal:
            seconds = self._bar.tasks[0].time_remaining
            text += "" if seconds is None else f"  {clock_text(seconds)} left"
            self._console.print(escape(text), soft_wrap=True)

    def look(self) -> None:
        """Update the progress bar."""
        self._rounds |= {job.name: job.rounds_done() for job in self._running.values()}
        done, text = sum(self._rounds.values()), f"{len(self._ended)}/{self._runs} runs"
        self._bar.update(self._bar.task_ids[0], completed=done, description=text)


def make_run(settings: dict[str, object], nodes: int, workers: int) -> None:
    """Make or resume the run with these settings in this process.

    settings: the settings, with dotted keys. ``output.dir`` and ``output.name`` give its folder.
    """
    look_here_for_users_code()
    folder = Path(str(settings["output.dir"])) / str(settings["output.name"])
    if (folder / "settings.toml").exists():
        complete, nodes = resumed_settings(str(folder), None, [], nodes)
    else:
        if folder.exists():  # claimed, but still empty
            folder.rmdir()
        complete = simulated_settings(settings, nodes)
    simulate_here(complete, nodes, workers, Console(quiet=True), verbose=False)


def main(orders: int, ending: int) -> None:
    """Make one run. If it fails, stderr ends with the reason.

    The arguments are file descriptors. orders: the pipe that delivers the run's settings. ending:
    the pipe that gets `_DONE` after the run.
    """
    with open(orders, "rb", buffering=0, closefd=False) as pipe:
        order = json.loads(pipe.readline())
    end_with(orders)
    try:
        make_run(**order)
        os.write(ending, _DONE)
    except (FedProtoError, OSError) as error:
        print(error, file=sys.stderr)
