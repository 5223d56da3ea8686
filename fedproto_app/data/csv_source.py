"""CSV files: one with a column per client, or a folder with a file per client.

Both are UTF-8 (a byte order mark is accepted), comma separated, with one header line, plain or
gzipped. A first column named like a time, or without a name, holds ISO 8601 dates; every other
column holds numbers, and empty, ``NA``, ``NaN`` or ``null`` where a value is missing.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.data.choice import chosen, require_there
from fedproto_app.data.clock import Matrix, Times, clock_of, on_the_clock, sampling_step
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import require_inside
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "date_time", "date time"})
SUFFIX = re.compile(r"\.csv(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """One CSV file: the names [N] and values [T, N] of its number columns, its times [T] if any.

    utc: whether the times had an offset from UTC.
    """

    path: Path
    names: list[str]
    values: Matrix
    times: Times | None
    utc: bool = False


def load_wide_csv(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of one file, a column each; other columns than the chosen ones may hold texts."""
    path, choice = Path(settings.path), settings.choice
    table = read_table(path, choice.time_column, choice.clients, "clients")
    values, start, clock = table.values, 0, None
    if table.times is not None:
        step = sampling_step(table.times)
        values, start = on_the_clock(table.times, values, step, table.path)
        clock = clock_of(table.times, step, utc=table.utc)
    for name, column in zip(table.names, values.T, strict=True):
        yield ClientSeries(name, column, start, clock=clock)


def load_csv_folder(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of a folder, a file each, named by the file and in the order of the names."""
    choice, files = settings.choice, _files(Path(settings.path))
    paths = chosen(files, _client_of, settings, settings.path)
    tables = [
        _single_column(read_table(path, choice.time_column, choice.columns)) for path in paths
    ]
    first = tables[0]
    for table in tables:
        if (table.times is None) != (first.times is None):
            having, lacking = (first, table) if table.times is None else (table, first)
            raise DataError(
                f"{lacking.path} has no time column, but {having.path} has one: "
                "phases can be aligned only if all files have it or none"
            )
    # One step for all, because all clients share one period; a file with one row cannot tell it.
    steps = (sampling_step(table.times) for table in tables if table.times is not None)
    step = next((step for step in steps if step is not None), None)
    for table in tables:
        values, start, clock = table.values, 0, None
        if table.times is not None:
            values, start = on_the_clock(table.times, values, step, table.path)
            clock = clock_of(table.times, step, utc=table.utc)
        yield ClientSeries(_client_of(table.path), values[:, 0], start, clock=clock)


def _client_of(path: Path) -> str:
    return re.sub(SUFFIX, "", path.name)


def read_table(
    path: Path, time_column: str = "", columns: Sequence[str] = (), key: str = "columns"
) -> Table:
    """Read one CSV file; raises `DataError` naming the file, the column and the line.

    time_column: the one with the times; "": the first, if it is named like one or has no name.
    columns: those of values that are read, as ``data.<key>`` names them; none: all.
    """
    import pandas as pd

    try:
        text = _read_text(path).rstrip("\r\n")
        names = _header(text, path)
        times = time_position(names, time_column, str(path))
        there = [name for place, name in enumerate(names) if place != times]
        require_there(columns, there, key, "column", str(path))
        places = [
            place
            for place, name in enumerate(names)
            if place != times and (not columns or name in columns)
        ]
        return _parsed(text, names, times, places, path)
    except (csv.Error, pd.errors.ParserError) as error:
        raise DataError(f"{path}: not a readable CSV file: {error}") from None


def time_position(names: Sequence[str], time_column: str, where: str) -> int | None:
    """The place in the header of the column of times, None where there is none."""
    if time_column:
        require_there([time_column], names, "time-column", "column", where)
        return names.index(time_column)
    return 0 if names[0].lower() in TIME_NAMES or names[0] == "" else None


def _parsed(
    text: str, header: list[str], times: int | None, places: list[int], path: Path
) -> Table:
    """The table of these columns: that of the times, and those of values."""
    import pandas as pd

    names = [header[place] for place in places]
    _require_named(names, path)
    _require_rectangle(text, len(header), path)
    frame = pd.read_csv(
        io.StringIO(text),
        header=None,
        names=range(len(header)),
        usecols=places if times is None else [times, *places],
        skiprows=1,
        index_col=False,
        dtype=None if times is None else {times: str},
        skip_blank_lines=False,  # in a file of one column an empty line is a missing value
        skipinitialspace=True,
        low_memory=False,
    )
    values = _numbers(frame[places], names, path)
    if times is None:
        return Table(path, names, values, None)
    stamps = _times(frame[times], header[times], path)
    utc = pd.Timestamp(frame[times].iloc[0]).tzinfo is not None
    return Table(path, names, values, stamps, utc)


def _files(folder: Path) -> list[Path]:
    inside = folder.resolve()
    paths = sorted(
        path
        for path in folder.iterdir()
        if SUFFIX.search(path.name) and not path.name.startswith(".")
    )
    if not paths:
        raise DataError(f"{folder}: the folder holds no .csv or .csv.gz file")
    for path in paths:
        require_inside(path, inside)
    return paths


def _single_column(table: Table) -> Table:
    if len(table.names) != 1:
        found = f"{len(table.names)} columns of values ({', '.join(table.names[:5])})"
        raise DataError(
            f"{table.path}: {found}, but source csv-folder reads one a file; "
            "a column per client is source wide-csv, one to be predicted is source recordings; "
            "a node may choose one in its data.columns"
        )
    return table


def _read_text(path: Path) -> str:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            return str(file.read())
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"{path}: not UTF-8 text: byte {byte:#04x} at offset {error.start}"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _header(text: str, path: Path) -> list[str]:
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    header, *_ = text.split("\n", 1)
    if len(text) == len(header):
        raise DataError(f"{path}: only a header line, no values")
    cells = next(csv.reader([header.rstrip("\r")], skipinitialspace=True), [""])
    names = [name.strip() for name in cells]
    if len(names) == 1 and ";" in names[0]:
        raise DataError(f"{path}: columns are separated by semicolons; commas are expected")
    return names


def _require_named(names: list[str], path: Path) -> None:
    if not names:
        raise DataError(f"{path}: a time column, but no column of values")
    seen: set[str] = set()
    for name in names:
        if not name:
            raise DataError(f"{path}: a column of values has no name in the header")
        if name in seen:
            raise DataError(f"{path}: two columns are named {name!r}")
        seen.add(name)


def _require_rectangle(text: str, columns: int, path: Path) -> None:
    """Refuse a line with too few or too many cells, which pandas would fill or cut in silence."""
    if '"' in text:
        widths = (
            max(1, len(row))
            for row in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
        )
    else:
        widths = (line.count(",") + 1 for line in text.split("\n"))
    for line, width in enumerate(widths, start=1):
        if width != columns:
            raise DataError(f"{path}: line {line} has {width} cells, the header has {columns}")


def _times(column: Series, name: str, path: Path) -> Times:
    """[T] times; stamps with an offset from UTC are counted in UTC, others as they are."""
    import pandas as pd

    parsed = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    if parsed.isna().any():
        row = int(parsed.isna().to_numpy().argmax())
        given = "nothing" if pd.isna(column.iloc[row]) else repr(column.iloc[row])
        title = f"column {name!r}" if name else "the first column (without a name: the times)"
        raise DataError(
            f"{path}: {title}, line {row + 2}: expected a date such as 2014-01-31 13:00, "
            f"got {given}"
        )
    return parsed.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")


def _numbers(frame: DataFrame, names: list[str], path: Path) -> Matrix:
    """[T, N] float64; refuses a cell that is no number."""
    import pandas as pd

    values = np.empty(frame.shape)
    for position, (name, (_, column)) in enumerate(zip(names, frame.items(), strict=True)):
        if column.dtype.kind in "iuf":
            values[:, position] = column.to_numpy()
            continue
        numbers = pd.to_numeric(column.astype(str), errors="coerce")
        text = (numbers.isna() & column.notna()).to_numpy()
        if text.any():
            row = int(text.argmax())
            raise DataError(
                f"{path}: column {name!r}, line {row + 2}: {str(column.iloc[row])!r} "
                "is not a number"
            )
        values[:, position] = numbers.to_numpy(dtype=np.float64)
    return values
