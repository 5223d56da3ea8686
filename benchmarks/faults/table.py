"""Faults by name, and the table of their outcomes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from benchmarks.machine import machine_line
from benchmarks.pages import table_texts


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


def write_rows(output: Path, name: str, rows: Sequence[Row]) -> None:
    """Write a fault's rows, and when and where they were made, below the version of Flower."""
    folder = output / ".".join(version("flwr").split(".")[:2])
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    origin = f"{date.today()}, {machine_line()}\n"
    (folder / "made.txt").write_text(origin, encoding="utf-8")


def table(output: Path) -> list[str]:
    """Return the table of all written rows, with columns for each version of Flower."""
    folders = sorted(output.iterdir(), key=lambda path: tuple(map(int, path.name.split("."))))
    versions = [folder.name for folder in folders]
    head = ["fault", "outcome"]
    head += [f"{column}, {name}" for column in ("same result", "seconds lost") for name in versions]
    lines = [head]
    for name in FAULTS:
        rows: dict[str, dict[str, Row]] = {}  # by fault, then by version
        for folder in folders:
            file = folder / f"{name}.json"
            for fields in json.loads(file.read_text("utf-8")) if file.exists() else []:
                rows.setdefault(fields["fault"], {})[folder.name] = Row(**fields)
        lines += [_cells(of_versions, versions) for of_versions in rows.values()]
    origin = [
        f"Flower {path.name}: {(path / 'made.txt').read_text('utf-8').strip()}." for path in folders
    ]
    return [
        *table_texts(lines, 2 + len(versions)),
        "",
        f"`python -m benchmarks.faults`. {' '.join(origin)}",
    ]


def _cells(rows: Mapping[str, Row], versions: Sequence[str]) -> list[str]:
    """Return a line's cells. rows: what happened, by version."""
    first, *_ = rows.values()
    failed = [
        f"**not as expected with {name}** ({row.expected}): {row.happened}"
        for name, row in rows.items()
        if not row.good
    ]
    results, lost = [], []
    for name in versions:
        row = rows.get(name)
        results.append("not run" if row is None else "–" if row.same is None else _yes(row.same))
        lost.append("–" if row is None or row.lost is None else f"{row.lost:.0f}")
    cells = [first.fault, "; ".join(failed) or first.expected, *results, *lost]
    return [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]


def line_of(row: Row) -> str:
    details = f" ({row.happened})" if row.good and row.happened else ""
    cells = _cells({"this Flower": row}, ["this Flower"])
    return f"{'ok' if row.good else 'FAILED'}: {' | '.join(cells)}{details}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


_START = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)
