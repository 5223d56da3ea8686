"""Show the progress of a run by reading its ``rounds.jsonl`` as it grows."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from rich.progress import TimeElapsedColumn as ElapsedColumn
from rich.table import Column
from rich.text import Text

from fedproto_app.report.run_files import Record
from fedproto_app.report.runs import DATA_NOTES, write_lines
from fedproto_app.tasks.metrics import UNKNOWN, Field, error_text

_PACE_ROUNDS = 10  # the remaining time is estimated from the mean of so many last rounds


class GrowingFile:
    """Reads the lines that were added to a text file since the last call.

    A line is returned once its end has been written. The file need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[str]:
        """Return the complete lines that were not returned before, without line ends."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            added = file.read()
        complete = added[: added.rfind(b"\n") + 1]
        self._offset += len(complete)
        # Not splitlines(): the carriage return of a progress bar does not end a line.
        return complete.decode("utf-8", errors="replace").split("\n")[:-1]


class NewRounds:
    """Reads the rounds that were added to a ``rounds.jsonl`` since the last call.

    Rounds that the file already holds at the start are not returned. A resumed run shortens the
    file and repeats rounds, so the whole file is read whenever it has changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._last = 0
        self.new()

    def new(self) -> list[Record]:
        """Return the records that were not returned before."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._size:
            return []
        self._size = size
        records = [json.loads(line) for line in GrowingFile(self._path).new_lines()]
        added = [record for record in records if record["round"] > self._last]
        if added:
            self._last = added[-1]["round"]
        return added


class Progress:
    """Shows each round when it ends: in a progress bar on a terminal, else as a line.

    rounds: the largest number of rounds. figures: the figures to show beside the loss.
    """

    def __init__(self, console: Console, rounds: int, figures: Sequence[Field]) -> None:
        self._console = console
        self._rounds = rounds
        self._shown = figures
        self._started = time.monotonic()
        self._seconds: list[float] = []  # of each round so far
        self._figures: dict[str, str] = {}  # last known
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                BarColumn(bar_width=8),
                MofNCompleteColumn(),
                ElapsedColumn(),
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._rounds)
            self._bar.start()
        return self

    def stage(self, activity: str) -> None:
        """Show what the run does before or after its rounds."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{activity} …")
        else:
            self._console.print(f"{activity} …")

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, record: Mapping[str, Any]) -> None:
        """Show one round. record: its record in ``rounds.jsonl``."""
        number = record["round"]
        self._seconds.append(record["seconds"]["total"])
        texts = {"loss": error_text(record["loss"].get("total"))}
        texts |= {shown.title: shown.text(record[shown.name]) for shown in self._shown}
        # Not every round trains or evaluates a client.
        self._figures |= {name: text for name, text in texts.items() if text != UNKNOWN}
        self._complain(record)
        if self._bar is not None:
            self._bar.update(self._task, completed=number, description=self._line(number))
        else:
            elapsed = clock_text(time.monotonic() - self._started)
            line = f"round {number}/{self._rounds}  {self._line(number)}  {elapsed} elapsed"
            self._console.print(line, soft_wrap=True)

    def say(self, line: str) -> None:
        """Print a line, such as one of Flower's log, above the bar if there is one."""
        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def _line(self, number: int) -> str:
        """Return the latest figures and the estimated time of the remaining rounds."""
        titles = ["loss", *(shown.title for shown in self._shown)]
        figures = [f"{title} {self._figures[title]}" for title in titles if title in self._figures]
        last = self._seconds[-_PACE_ROUNDS:]
        remaining = clock_text(sum(last) / len(last) * (self._rounds - number))
        return "  ".join([*figures, f"{remaining} left"])

    def _complain(self, record: Mapping[str, Any]) -> None:
        """Print the replies that were missing or refused in this round."""
        number = record["round"]
        if record["answered"] < record["asked"]:
            self._console.print(
                f"[yellow]round {number}: {record['answered']} of {record['asked']} nodes answered"
            )
        for reply in record["refused"]:
            client = f", client {reply['client']}" if reply["client"] else ""
            refusal = escape(f"node {reply['node']}{client}: {reply['reason']}")
            self._console.print(f"[yellow]round {number}: refused {refusal}", soft_wrap=True)


def clock_text(seconds: float) -> str:
    """Return minutes and seconds, and hours if there are any."""
    minutes, second = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def keep_notes(notes: Sequence[str], artefacts: Path, progress: Progress) -> None:
    """Show the notes on what was done to the data, and write them into the run's folder."""
    for note in notes:
        progress.say(f"data: {note}")
    if notes:
        write_lines(artefacts / DATA_NOTES, notes)


def keep_log(log: Path, artefacts: Path) -> None:
    """Append the log to the run's log. A resumed run already has one.

    If the disk has no room for the log, that error must not hide why the run ended.
    """
    if log.exists() and artefacts.exists():
        with (
            suppress(OSError),
            log.open("rb") as source,
            (artefacts / "flower.log").open("ab") as run_log,
        ):
            shutil.copyfileobj(source, run_log)
