"""Faults by name, and the table of their outcomes."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.machine import machine_line

NOT_RUN = "not run"
_TEXTS = ("fault", "outcome")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    expected, happened: the outcome. The table shows what happened only if it was not expected.
    equal: whether the result equals the uninterrupted run's, None if it need not.
    lost: seconds, None if nothing can be lost.
    """

    fault: str
    expected: str
    happened: str
    good: bool
    equal: bool | None = None
    lost: float | None = None


Action = Callable[[Path], Iterator[Row]]


@dataclass(frozen=True)
class Fault:
    """A fault, caused in an empty folder. method: of the run whose result must be equal, or ""."""

    action: Action
    method: str


FAULTS: dict[str, Fault] = {}


def fault(name: str, method: str = "") -> Callable[[Action], Action]:
    def enter(action: Action) -> Action:
        FAULTS[name] = Fault(action, method)
        return action

    return enter


def enter_rows(file: Path, rows: Sequence[Row]) -> None:
    """Enter rows into the table, a CSV file, in the columns of the installed version of Flower.

    The table keeps its other rows, and the columns of other versions. The last column of a version
    says when and on which machine a row was made.
    """
    version_name = ".".join(version("flwr").split(".")[:2])
    origin = f"{date.today()}, {machine_line()}"
    cells: dict[str, dict[str, str]] = {}
    head = list(_TEXTS)
    if file.exists():
        with file.open(encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened)
            cells = {line["fault"]: dict(line) for line in reader}
            head = list(reader.fieldnames or _TEXTS)
    versions = sorted(
        {column.rpartition(" ")[2] for column in head[len(_TEXTS) :]} | {version_name},
        key=lambda name: tuple(map(int, name.split("."))),
    )
    for row in rows:
        of_row = cells.setdefault(row.fault, {"fault": row.fault})
        of_row["outcome"] = row.expected
        of_row |= dict(zip(_columns(version_name), [*_outcome(row), origin], strict=True))
    columns = [*_TEXTS, *(column for name in versions for column in _columns(name))]
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, columns, restval=NOT_RUN, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells.values())


def _columns(version_name: str) -> list[str]:
    return [f"{column}, {version_name}" for column in ("result", "seconds lost", "made")]


def _outcome(row: Row) -> list[str]:
    """Return whether the result is the same, and the seconds lost."""
    if not row.good:
        return [f"not as expected: {row.happened}", "–"]
    outcome = "as expected" if row.equal is None else "same" if row.equal else "differs"
    return [outcome, "–" if row.lost is None else f"{row.lost:.0f}"]


def line_of(row: Row) -> str:
    details = f" ({row.happened})" if row.good and row.happened else ""
    cells = [row.fault, row.expected, *_outcome(row)]
    return f"{'ok' if row.good else 'FAILED'}: {' | '.join(cells)}{details}"


_START = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)
