"""Write long tables as CSV or Parquet files."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from fedproto_app.core.errors import FedProtoError, optional
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.csv_text import csv_text
from fedproto_app.report.export.tables import LongTable, long_tables
from fedproto_app.report.runs import Run


def write_csv(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.csv``, ``clients.csv`` and ``steps.csv``, and return the files."""
    return _write(
        runs, folder, ".csv", lambda table: csv_text([table.columns, *table.rows]).encode()
    )


def write_parquet(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write ``rounds.parquet``, ``clients.parquet`` and ``steps.parquet``, and return the files."""
    arrow = optional("pyarrow", "parquet", "parquet")
    parquet = optional("pyarrow.parquet", "parquet", "parquet")
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}

    def content(table: LongTable) -> bytes:
        columns = list(zip(*table.rows, strict=True))
        schema = arrow.schema([(name, types[kind]) for name, kind in table.types().items()])
        arrays = [
            arrow.array(column, type=field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        buffer = io.BytesIO()
        parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), buffer)
        return buffer.getvalue()

    return _write(runs, folder, ".parquet", content)


def _write(
    runs: Sequence[Run], folder: Path, ending: str, content: Callable[[LongTable], bytes]
) -> list[Path]:
    tables = {folder / (table.name + ending): table for table in long_tables(runs)}
    for file in tables:
        if file.exists():
            raise FedProtoError(f"{file}: exists already; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    for file, table in tables.items():
        write_whole(file, content(table))
    return list(tables)
