"""Read a table from a Parquet file with pyarrow (the extra ``parquet``), in blocks of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_room
from fedproto_app.data.number_styles import Style
from fedproto_app.data.table import (
    BLOCK_CELLS,
    Columns,
    Head,
    TableFile,
    place_of_times,
    require_few_columns,
)
from fedproto_app.data.table_format import table_format
from fedproto_app.data.table_source import TableFormat
from fedproto_app.settings import DataSettings

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Schema, parquet

PARQUET_SUFFIX = re.compile(r"\.(parquet|pq)$", re.IGNORECASE)


class ParquetFile(TableFile):
    """A Parquet file. The sizes that it declares are checked first."""

    def __init__(self, path: Path, _: DataSettings) -> None:
        self._path = path
        with _opened(path) as file:
            self._schema, self._count = file.schema_arrow, file.metadata.num_rows
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        self._bytes = sum(group.total_byte_size for group in groups)
        require_few_columns(len(self._schema.names), str(path))
        self.head = Head(str(path), list(self._schema.names), _times(self._schema))

    def blocks(self, columns: Columns, style: Style | Literal["texts"]) -> Iterator[DataFrame]:
        """Yield the columns by place, in blocks of rows. Cells have types, whatever the style.

        The file stores a repeated text only once, so a small file may expand to any size. Texts are
        therefore read as a dictionary. Its longest text is checked before the texts are expanded.
        """
        from pyarrow import compute, types

        self._require_readable(columns, style)
        names = [self._schema.names[place] for place in columns.read]
        kinds = (types.is_string, types.is_large_string)
        texts = [f.name for f in self._schema if any(is_text(f.type) for is_text in kinds)]
        size = max(1, BLOCK_CELLS // len(names))
        first = 0
        with _opened(self._path, texts) as file:
            for batch in file.iter_batches(size, columns=names):
                selected = batch.select(names)  # "a" would select "a.b" as well
                for column in selected.columns:
                    if types.is_dictionary(column.type):
                        lengths = compute.binary_length(column.dictionary)
                        longest = compute.max(lengths).as_py() or 0
                        require_room(self._count * longest, self._path)
                frame = selected.to_pandas(ignore_metadata=True, strings_to_categorical=False)
                frame.columns = columns.read
                frame.index = range(first, first + len(frame))
                yield frame
                first += len(frame)

    def _require_readable(self, columns: Columns, style: str) -> None:
        from pyarrow import types

        if not self._count:
            raise DataError(f"{self._path}: no row in it")
        if style == "texts":  # these rows are not kept
            return
        for place in columns.read:
            name, kind = self._schema.names[place], self._schema.types[place]
            if types.is_nested(kind) or types.is_binary(kind):
                raise DataError(f"{self._path}: column {name!r} holds {kind}, not numbers")
            if self._schema.names.count(name) > 1:
                raise DataError(f"{self._path}: two columns are named {name!r}")
        require_room(columns.bytes_of(self._count), self._path)
        require_room(self._bytes, self._path)


@contextmanager
def _opened(path: Path, dictionaries: Sequence[str] = ()) -> Iterator[parquet.ParquetFile]:
    """Open the file. A pyarrow error becomes a `DataError` of one line.

    dictionaries: the names of columns to be read as dictionaries.
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


def _times(schema: Schema) -> int | None:
    from pyarrow import types

    typed = [place for place, kind in enumerate(schema.types) if types.is_temporal(kind)]
    return place_of_times(schema.names, typed)


FORMAT = table_format(
    TableFormat("parquet", PARQUET_SUFFIX, ".parquet", ParquetFile, has_parts=True),
    "a .parquet or .pq file, or a folder of them",
)
