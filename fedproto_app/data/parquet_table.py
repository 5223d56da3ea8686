"""Tables in Parquet files, read column by column with pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import DataError
from fedproto_app.data.room import require_room
from fedproto_app.data.table import TIME_NAMES, ColumnSelector, Head, Table

PARQUET_SUFFIX = re.compile(r"\.(parquet|pq)$", re.IGNORECASE)
_INDEX = "__index_level_0__"  # pandas' name for an index without a name
_LOOKED_AT = 50  # rows, to recognise the file's form
_BYTES = {True: 8, False: 64}  # of a cell that is a number, or is not


def read_parquet_table(path: Path, select_columns: ColumnSelector) -> Table:
    """Read the selected columns of a file, after a check of the sizes that the file declares."""
    with _opened(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        head = _head(file, path)
        columns = select_columns(head)
        if not rows:
            raise DataError(f"{path}: no row in it")
        places = sorted({*columns.texts, *columns.values})
        names = [head.names[place] for place in places]
        for place, name in zip(places, names, strict=True):
            _require_flat(schema.field(place), path)
            if head.names.count(name) > 1:
                raise DataError(f"{path}: two columns are named {name!r}")
        require_room(rows * sum(_cell(schema.field(place)) for place in places), path)
        read = file.read(columns=names).select(names)  # "a" would select "a.b" as well
        frame = read.to_pandas(ignore_metadata=True)
    frame.columns = places
    return Table(head, columns, frame)


def first_rows(path: Path) -> tuple[Head, list[list[str]]]:
    """Return the columns of a file, and the cells of the first rows as texts, by column."""
    with _opened(path) as file:
        head = _head(file, path)
        require_room(file.metadata.num_rows * len(head.names), path)
        batch = next(file.iter_batches(batch_size=_LOOKED_AT), None)
        texts_by_column = (
            []
            if batch is None
            else [list(map(str, column.to_pylist())) for column in batch.columns]
        )
        return head, texts_by_column or [[] for _ in head.names]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file; a pyarrow error becomes a `DataError` of one line."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path}: Parquet files need pyarrow: pip install 'fedproto-app[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        line = str(error).partition("\n")[0]
        raise DataError(f"{path}: not a readable Parquet file: {line}") from None


def _head(file: Any, path: Path) -> Head:
    schema = file.schema_arrow
    return Head(str(path), list(schema.names), _times(schema))


def _times(schema: Any) -> int | None:
    """Return the place of the time column: by its name, else the only column of a time type.

    pandas writes the index of a frame as the last column.
    """
    from pyarrow import types

    names = [name.lower() for name in schema.names]
    named_places = [place for place, name in enumerate(names) if name in {*TIME_NAMES, _INDEX}]
    typed = [place for place, kind in enumerate(schema.types) if types.is_temporal(kind)]
    if named_places:
        return next((place for place in named_places if place in typed), named_places[0])
    return typed[0] if len(typed) == 1 else None


def _require_flat(field: Any, path: Path) -> None:
    from pyarrow import types

    if types.is_nested(field.type) or types.is_binary(field.type):
        raise DataError(f"{path}: column {field.name!r} holds {field.type}, not numbers")


def _cell(field: Any) -> int:
    from pyarrow import types

    return _BYTES[types.is_primitive(field.type)]
