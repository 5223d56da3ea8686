"""Finished runs as long tables: one number a row, with what it is of."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fedproto_app.report.runs import Run, read_clients, read_rounds

RUN_COLUMNS = ("run", "method", "dataset", "seed")
# Names of the tables, and by what their rows are told apart besides the run.
ROUNDS, CLIENTS, STEPS = "rounds", "clients", "steps"
KEYS = {ROUNDS: ("round",), CLIENTS: ("client", "node"), STEPS: ("step",)}
_WHOLE = ("seed", "round", "step")  # columns of whole numbers
_NOT_FIGURES = ("round", "client", "node", "group", "step")


@dataclass(frozen=True)
class LongTable:
    """name: one of `KEYS`. columns: those of the run, the table's keys, figure, value."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def types(self) -> dict[str, type]:
        """Of the columns."""
        of = {**dict.fromkeys(_WHOLE, int), "value": float}
        return {column: of.get(column, str) for column in self.columns}


def long_tables(runs: Sequence[Run]) -> list[LongTable]:
    """Those that have rows."""
    makers = {ROUNDS: _of_rounds, CLIENTS: _of_clients, STEPS: _of_steps}
    tables = [
        LongTable(
            name,
            (*RUN_COLUMNS, *KEYS[name], "figure", "value"),
            [(*_about(run), *row) for run in runs for row in make(run)],
        )
        for name, make in makers.items()
    ]
    return [table for table in tables if table.rows]


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers of a JSON object by their dotted names.

    Numbers in a list are counted from 1; of a list of anything else its length is told.
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        name = prefix + key
        if isinstance(value, Mapping):
            found |= numbers(value, f"{name}.")
        elif isinstance(value, list):
            if all(one is None or _is_number(one) for one in value):
                listed = {str(place): one for place, one in enumerate(value, 1)}
                found |= numbers(listed, f"{name}.")
            else:
                found[name] = len(value)
        elif _is_number(value) and isfinite(value):
            found[name] = value
    return found


def cell_number(cell: str) -> float | None:
    """Of a cell of a CSV table; None where it holds no finite number."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _about(run: Run) -> tuple[Any, ...]:
    return run.folder.name, *(run.summary[name] for name in RUN_COLUMNS[1:])


def _of_rounds(run: Run) -> Iterator[tuple[Any, ...]]:
    for record in read_rounds(run.folder):
        for figure, value in numbers(record).items():
            if figure not in _NOT_FIGURES:
                yield record["round"], figure, float(value)


def _of_clients(run: Run) -> Iterator[tuple[Any, ...]]:
    for row in read_clients(run.folder):
        for figure, value in _figures(row):
            yield row["client"], row["node"], figure, value


def _of_steps(run: Run) -> Iterator[tuple[Any, ...]]:
    file = run.folder / "steps.csv"
    if file.exists():
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))):
            for figure, value in _figures(row):
                yield int(row["step"]), figure, value


def _figures(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for figure, cell in row.items():
        if figure not in _NOT_FIGURES and (value := cell_number(cell or "")) is not None:
            yield figure, value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
