"""Read a table from a Parquet file with pyarrow (the extra ``parquet``), in blocks of rows."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_room
from fedproto_app.data.table import (
    BLOCK_CELLS,
    INDEX,
    LOOKED_AT,
    TIME_NAMES,
    Columns,
    ColumnSelector,
    Head,
    Table,
    require_few_columns,
    table_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame

PARQUET_SUFFIX = re.compile(r"\.(parquet|pq)$", re.IGNORECASE)


def read_parquet_table(path: Path, select_columns: ColumnSelector) -> Table:
    """Read the selected columns of a file, after a check of the sizes that the file declares."""
    with _opened(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    require_few_columns(len(schema.names), str(path))
    head = Head(str(path), list(schema.names), _times(schema))
    columns = select_columns(head)
    if not rows:
        raise DataError(f"{path}: no row in it")
    for place in columns.read:
        _require_cells(schema.field(place), path)
        if head.names.count(head.names[place]) > 1:
            raise DataError(f"{path}: two columns are named {head.names[place]!r}")
    require_room(columns.bytes_of(rows), path)
    require_room(sum(group.total_byte_size for group in groups), path)
    return table_of(head, columns, rows, partial(_blocks, path, schema, columns, rows), "auto")


def _blocks(
    path: Path, schema: Any, columns: Columns, rows: int, style: object
) -> Iterator[DataFrame]:
    """Yield the columns by place, in blocks of rows. style: does not matter, as cells have types.

    A text that repeats is stored once, so a small file may hold texts of any size: they are read as
    a dictionary, and its longest text is looked at before they are written out.
    """
    from pyarrow import compute, types

    names = [schema.names[place] for place in columns.read]
    kinds = (types.is_string, types.is_large_string)
    texts = [field.name for field in schema if any(is_text(field.type) for is_text in kinds)]
    size = max(1, BLOCK_CELLS // len(names))
    first = 0
    with _opened(path, texts) as file:
        for batch in file.iter_batches(size, columns=names):
            selected = batch.select(names)  # "a" would select "a.b" as well
            for column in selected.columns:
                if types.is_dictionary(column.type):
                    lengths = compute.binary_length(column.dictionary)
                    require_room(rows * (compute.max(lengths).as_py() or 0), path)
            frame = selected.to_pandas(ignore_metadata=True, strings_to_categorical=False)
            frame.columns = columns.read
            frame.index = range(first, first + len(frame))
            for place in frame:
                if frame[place].dtype == "category":
                    frame[place] = frame[place].astype(str).where(frame[place].notna())
            yield frame
            first += len(frame)


def end_rows(path: Path) -> tuple[Head, list[list[str]], list[list[str]], int]:
    """Return the columns of a file, the cells of the first and of the last rows as texts, by
    column, and the number of rows."""
    with _opened(path) as file:
        head = Head(str(path), list(file.schema_arrow.names), _times(file.schema_arrow))
        require_few_columns(len(head.names), str(path))
        rows, groups = file.metadata.num_rows, file.num_row_groups
        first = next(file.iter_batches(batch_size=LOOKED_AT), None)
        last = None
        if rows > 2 * LOOKED_AT:
            batches = file.iter_batches(batch_size=LOOKED_AT, row_groups=[groups - 1])
            last = deque(batches, maxlen=1)[0]
        first_cells, last_cells = (
            [list(map(str, column.to_pylist())) for column in batch.columns]
            if batch is not None
            else [list[str]() for _ in head.names]
            for batch in (first, last)
        )
        return head, first_cells, last_cells, rows


@contextmanager
def _opened(path: Path, dictionaries: Sequence[str] = ()) -> Iterator[Any]:
    """Open the file; a pyarrow error becomes a `DataError` of one line.

    dictionaries: names of columns that are read as dictionaries.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path}: Parquet files need pyarrow: pip install 'fedproto-app[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path, read_dictionary=list(dictionaries)) as file:
            yield file
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        line = str(error).partition("\n")[0]
        raise DataError(f"{path}: not a readable Parquet file: {line}") from None


def _times(schema: Any) -> int | None:
    """Return the place of the time column: by its name, else the only column of a time type.

    pandas writes the index of a frame as the last column.
    """
    from pyarrow import types

    names = [name.lower() for name in schema.names]
    named_places = [place for place, name in enumerate(names) if name in {*TIME_NAMES, INDEX}]
    typed = [place for place, kind in enumerate(schema.types) if types.is_temporal(kind)]
    if named_places:
        return next((place for place in named_places if place in typed), named_places[0])
    return typed[0] if len(typed) == 1 else None


def _require_cells(field: Any, path: Path) -> None:
    """Raise `DataError` for a column of lists or bytes."""
    from pyarrow import types

    if types.is_nested(field.type) or types.is_binary(field.type):
        raise DataError(f"{path}: column {field.name!r} holds {field.type}, not numbers")
