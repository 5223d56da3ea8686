"""Export finished runs for other tools, as long tables in CSV or Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import FedProtoError, optional
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.run_files import CsvTable, csv_text, read_table
from fedproto_app.report.runs import Run
from fedproto_app.settings.reading import flat

RUN_COLUMNS = ("run", "method", "dataset", "seed")
KEYS = {"rounds": ("round",), "clients": ("client", "node"), "steps": ("step",)}  # by table

Rows = list[tuple[object, ...]]


def numbers(record: Mapping[str, object]) -> dict[str, float]:
    """Return the finite numbers of a JSON object by their dotted names.

    Numbers in a list are named by their position, starting at 1. Any other list is replaced by its
    length.
    """
    values: dict[str, Any] = {}
    for name, value in flat(record).items():
        if not isinstance(value, list):
            values[name] = value
        elif all(item is None or _is_number(item) for item in value):
            values |= {f"{name}.{place}": item for place, item in enumerate(value, 1)}
        else:
            values[name] = len(value)
    return {name: value for name, value in values.items() if _is_number(value) and isfinite(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def long_tables(runs: Sequence[Run]) -> dict[str, Rows]:
    """Return the tables with rows. Columns: `RUN_COLUMNS`, the `KEYS`, a figure and its value."""
    makers = {"rounds": _rows_of_rounds, "clients": _rows_of_clients, "steps": _rows_of_steps}
    tables: dict[str, Rows] = {
        name: [
            (run.folder.name, *(run.summary[column] for column in RUN_COLUMNS[1:]), *row)
            for run in runs
            for row in make(run)
        ]
        for name, make in makers.items()
    }
    return {name: rows for name, rows in tables.items() if rows}


def _rows_of_rounds(run: Run) -> Iterator[tuple[object, ...]]:
    for record in run.rounds:
        figures = numbers({name: value for name, value in record.items() if name != "round"})
        for figure, value in figures.items():
            yield record["round"], figure, float(value)


def _rows_of_clients(run: Run) -> Iterator[tuple[object, ...]]:
    return _rows_of_table(run.clients, zip(run.clients.clients, run.clients.nodes, strict=True))


def _rows_of_steps(run: Run) -> Iterator[tuple[object, ...]]:
    file = run.folder / "steps.csv"
    if not file.exists():
        return iter(())
    table = read_table(file)
    return _rows_of_table(table, ((int(step),) for step in table["step"]))


def _rows_of_table(
    table: CsvTable, keys: Iterable[tuple[object, ...]]
) -> Iterator[tuple[object, ...]]:
    figures = {name: table[name].tolist() for name in table.numbers if name != "step"}
    for row, key in enumerate(keys):
        for figure, values in figures.items():
            if isfinite(values[row]):
                yield *key, figure, values[row]


def write_csv(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.csv``, ``clients.csv`` and ``steps.csv``, and return the files."""
    return _write(runs, folder, ".csv", lambda titles, rows: csv_text([titles, *rows]).encode())


def write_parquet(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.parquet``, ``clients.parquet`` and ``steps.parquet``, and return the files."""
    arrow = optional("pyarrow", "parquet", "parquet")
    parquet = optional("pyarrow.parquet", "parquet", "parquet")
    types = dict.fromkeys(("seed", "round", "step"), arrow.int64()) | {"value": arrow.float64()}

    def content(titles: Sequence[str], rows: Rows) -> bytes:
        schema = arrow.schema([(name, types.get(name, arrow.string())) for name in titles])
        columns = dict(zip(titles, map(list, zip(*rows, strict=True)), strict=True))
        buffer = io.BytesIO()
        parquet.write_table(arrow.Table.from_pydict(columns, schema=schema), buffer)
        return buffer.getvalue()

    return _write(runs, folder, ".parquet", content)


def _write(
    runs: Sequence[Run],
    folder: Path,
    ending: str,
    content: Callable[[Sequence[str], Rows], bytes],
) -> list[Path]:
    tables = long_tables(runs)
    files = {folder / (name + ending): name for name in tables}
    for file in files:
        if file.exists():
            raise FedProtoError(f"{file}: already exists; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    for file, name in files.items():
        titles = (*RUN_COLUMNS, *KEYS[name], "figure", "value")
        write_whole(file, content(titles, tables[name]))
    return list(files)
