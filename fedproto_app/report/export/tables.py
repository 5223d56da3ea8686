"""Finished runs as long tables: each row holds one number and its keys."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fedproto_app.report.runs import Run, read_clients, read_rounds

RUN_COLUMNS = ("run", "method", "dataset", "seed")
# Names of the tables, and the key columns of their rows in addition to the run's columns.
ROUNDS, CLIENTS, STEPS = "rounds", "clients", "steps"
KEYS = {ROUNDS: ("round",), CLIENTS: ("client", "node"), STEPS: ("step",)}
_INTEGER_COLUMNS = ("seed", "round", "step")  # columns of integers
_NOT_FIGURES = ("round", "client", "node", "group", "step")


@dataclass(frozen=True)
class LongTable:
    """A long table. name: a key of `KEYS`. columns: the run's, the table's keys, figure, value."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def types(self) -> dict[str, type]:
        """Return the type of each column."""
        types = {**dict.fromkeys(_INTEGER_COLUMNS, int), "value": float}
        return {column: types.get(column, str) for column in self.columns}


def long_tables(runs: Sequence[Run]) -> list[LongTable]:
    """Return the tables that have rows."""
    makers = {ROUNDS: _rows_of_rounds, CLIENTS: _rows_of_clients, STEPS: _rows_of_steps}
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
    """Return the finite numbers of a JSON object by their dotted names.

    Numbers in a list are named by their position from 1; a list of anything else by its length.
    """
    flat_numbers: dict[str, float] = {}
    for key, value in record.items():
        name = prefix + key
        if isinstance(value, Mapping):
            flat_numbers |= numbers(value, f"{name}.")
        elif isinstance(value, list):
            if all(item is None or _is_number(item) for item in value):
                listed = {str(place): item for place, item in enumerate(value, 1)}
                flat_numbers |= numbers(listed, f"{name}.")
            else:
                flat_numbers[name] = len(value)
        elif _is_number(value) and isfinite(value):
            flat_numbers[name] = value
    return flat_numbers


def cell_number(cell: str) -> float | None:
    """Return the number in a cell of a CSV table, None if it is not a finite number."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _about(run: Run) -> tuple[Any, ...]:
    return run.folder.name, *(run.summary[name] for name in RUN_COLUMNS[1:])


def _rows_of_rounds(run: Run) -> Iterator[tuple[Any, ...]]:
    for record in read_rounds(run.folder):
        for figure, value in numbers(record).items():
            if figure not in _NOT_FIGURES:
                yield record["round"], figure, float(value)


def _rows_of_clients(run: Run) -> Iterator[tuple[Any, ...]]:
    for row in read_clients(run.folder):
        for figure, value in _figures(row):
            yield row["client"], row["node"], figure, value


def _rows_of_steps(run: Run) -> Iterator[tuple[Any, ...]]:
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
