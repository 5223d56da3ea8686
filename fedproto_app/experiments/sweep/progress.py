"""What a person sees while a sweep goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar

from fedproto_app.experiments.sweep.runner import Job
from fedproto_app.report.progress import clock_text


class SweepProgress:
    """A moving bar on a terminal, a line for each run that ends elsewhere.

    runs: how many the sweep has. jobs: those that are known so far. The time left follows the pace
    of the rounds of all runs so far.
    """

    def __init__(self, console: Console, runs: int) -> None:
        self._console, self._runs = console, runs
        self.jobs: list[Job] = []
        self._had: dict[str, int] = {}  # rounds of runs that were there before
        self._ended: set[str] = set()
        self._started = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("runs"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._runs)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, jobs: Sequence[Job]) -> None:
        """Runs that are to be there next."""
        for job in jobs:
            self.jobs.append(job)
            self._had[job.settings.output.name] = job.rounds_done()
            if job.finished:
                self._ended.add(job.settings.output.name)
        self.look()

    def ended(self, job: Job, reason: str) -> None:
        """A run has ended. reason: why it failed, or ""."""
        name = job.settings.output.name
        self._ended.add(name)
        what = f"{len(self._ended)}/{self._runs} runs  {name}  {job.trial.text()}"
        if reason:
            self._console.print(f"[yellow]{escape(f'{what}  failed: {reason}')}", soft_wrap=True)
        elif self._bar is None:
            self._console.print(escape(f"{what}  {self._left()}"), soft_wrap=True)

    def look(self) -> None:
        """Show where it stands."""
        if self._bar is not None:
            self._bar.update(self._task, completed=len(self._ended), description=self._left())

    def _left(self) -> str:
        done = now = 0
        for job in self.jobs:
            name = job.settings.output.name
            rounds = job.settings.all_rounds if name in self._ended else job.rounds_done()
            done += rounds
            now += max(0, rounds - self._had[name])
        if not now:
            return ""
        # Trials that are not known yet are as long as those that are.
        known = sum(job.settings.all_rounds for job in self.jobs)
        whole = known / len(self.jobs) * self._runs
        pace = (time.monotonic() - self._started) / now
        return f"{clock_text(pace * max(0.0, whole - done))} left"
