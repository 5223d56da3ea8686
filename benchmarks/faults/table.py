"""Faults by name, and the table of their outcomes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.machine import machine_line


@dataclass(frozen=True)
class Row:
    """One line of the table.

    expected, happened: the outcome; the table shows what happened only if it was not expected.
    same: whether the result equals the uninterrupted run's, None if it need not.
    lost: seconds, None if nothing can be lost.
    """

    fault: str
    expected: str
    happened: str
    good: bool
    same: bool | None = None
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


def table(output: Path) -> list[str]:
    lines = [["fault", "outcome", "same result", "seconds lost"], ["---"] * 3 + ["---:"]]
    for name in FAULTS:
        file = output / f"{name}.json"
        if file.exists():
            rows = [Row(**fields) for fields in json.loads(file.read_text(encoding="utf-8"))]
            lines += [_cells(row) for row in rows]
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    return [*table, "", f"`python -m benchmarks.faults`, {date.today()}; {machine_line()}."]


def _cells(row: Row) -> list[str]:
    equal = "–" if row.same is None else _yes(row.same)
    lost = "–" if row.lost is None else f"{row.lost:.0f}"
    failed = f"**not as expected** ({row.expected}): {row.happened}"
    cells = [row.fault, row.expected if row.good else failed, equal, lost]
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]


def line_of(row: Row) -> str:
    details = f" ({row.happened})" if row.good and row.happened else ""
    return f"{'ok' if row.good else 'FAILED'}: {' | '.join(_cells(row))}{details}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


_START = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)
