"""Recognise which source reads a path, and which settings read a table, from names of files, shapes
of arrays in archives and the first rows of tables.

The result is a proposal to a person, who sees it; a run follows only its settings.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import look_like_times
from fedproto_app.data.excel_table import EXCEL_SUFFIX, first_excel_rows
from fedproto_app.data.files import missing, open_tree
from fedproto_app.data.images.class_folders import SUFFIXES as IMAGE_SUFFIXES
from fedproto_app.data.images.class_folders import is_undivided, wrapping
from fedproto_app.data.images.public_sets import LAYOUTS
from fedproto_app.data.npz_archive import open_archive
from fedproto_app.data.number_styles import is_number
from fedproto_app.data.parquet_table import PARQUET_SUFFIX, first_rows
from fedproto_app.data.table import (
    MISSING,
    TIME_NAMES,
    has_names,
    has_units,
    is_date,
    numbered,
)
from fedproto_app.data.table_source import CLIENT_NAMES, VALUE_NAME
from fedproto_app.data.text_table import SUFFIX, cells, delimiter_of, first_lines
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import DELIMITERS, names_in, text_of
from fedproto_app.settings.reading import flags

_REMEDIES = {
    ".xls": " (save the sheet as .xlsx or CSV)",
    ".feather": " (write it with DataFrame.to_parquet)",
    ".pkl": " (nothing is unpickled; write it with DataFrame.to_parquet)",
    ".json": " (write it with DataFrame.to_csv)",
    ".arff": " (the archive has the same data as .ts)",
}
_CLASS_FOLDERS = ("*", "*/*", "*/*/*", "*/*/*/*")  # depths at which images lie
_NARROWEST_IMAGE = 4  # pixels; fewer uint8 values in a row are the dimensions of a step
_MOST_NAMED = 12  # columns listed in a line for a person
_NO_NUMBER = {text.lower() for text in MISSING} | {"inf", "-inf"}

Settings = dict[str, str | bool]


@dataclass(frozen=True)
class Reading:
    """The settings that read a path: the source, and other settings by their keys.

    notes: remarks for a person, a line each. left_out: columns that are not read, a line each with
    the reason. is_guess: whether the file's content gave no evidence.
    """

    source: str
    settings: Settings = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_guess: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """All settings by their fields in `DataSettings`, validated.

        Raises `DataError` if a setting cannot name the columns, for example two of one name.
        """
        values = {key.removeprefix("data."): value for key, value in self.all_settings.items()}
        try:
            data_settings = DataSettings.model_validate(values)
        except ValidationError as error:
            faults = "; ".join(fault["msg"] for fault in error.errors())
            raise DataError(f"the recognised settings are not valid: {faults}") from None
        names = (key.replace("-", "_") for key in values)
        return {name: getattr(data_settings, name) for name in names}

    @property
    def all_settings(self) -> Settings:
        """All settings, including the source."""
        return {"data.source": self.source, **self.settings}


def reading_of(path: Path) -> Reading:
    """Return the settings that read this path.

    Source "recordings" is never returned, as its files look like series. A damaged file is not
    reported here; its reader names the fault. Raises `DataError` if no source reads such a path.
    """
    name = path.name.lower()
    if name.endswith(".ts") or (path.is_dir() and any(path.glob("*.ts"))):
        return Reading("uea-ts")
    if path.is_dir():
        return _folder_reading(path)
    if name.endswith(".zip"):
        is_csv = _has_csv_files_of_classes(path)
        return Reading("sequence-folder") if is_csv else _class_folders_reading(path)
    if SUFFIX.search(name):
        return reading_of_text(path) if path.is_file() else Reading("wide-csv")
    if EXCEL_SUFFIX.search(name):
        return reading_of_excel(path) if path.is_file() else Reading("wide-excel")
    if name.endswith((".parquet", ".pq")):
        return reading_of_parquet(path) if path.is_file() else Reading("wide-parquet")
    if name.endswith((".h5", ".hdf5")):
        return Reading("hdf5")
    if name.endswith(".npz"):
        return _npz_reading(path)
    if not path.exists():
        raise DataError(missing(path))
    if name.endswith((".txt", ".dat", ".txt.gz", ".data")):
        return reading_of_text(path)
    remedy = _REMEDIES.get(path.suffix.lower(), "")
    raise DataError(
        f"{path}: no source reads such a file{remedy}; known are .csv, .tsv, .txt, all of these "
        ".gz too, .parquet, .xlsx, .h5, .hdf5, .npz, .zip, .ts, folders of .csv or .parquet files "
        "and folders of images"
    )


def advice(data: DataSettings) -> str:
    """Return a hint at settings that may read the path; "" if there are none or these are set."""
    try:
        reading = reading_of(Path(data.path))
        fields = reading.fields
    except (DataError, OSError):
        return ""
    if reading.is_guess:
        return ""
    lacking = {
        key: value
        for (name, value_in_reading), (key, value) in zip(
            fields.items(), reading.all_settings.items(), strict=True
        )
        if getattr(data, name) != value_in_reading
    }
    return f"it looks as if this read it: {flags(lacking)}" if lacking else ""


def source_of(path: Path) -> str:
    """Return the source that reads this path."""
    return reading_of(path).source


def _folder_reading(folder: Path) -> Reading:
    source = _folder_source(folder)
    if source == "class-folders":
        return _class_folders_reading(folder)
    if source != "csv-folder":
        return Reading(source)
    for kind, suffix, read in (
        ("csv", SUFFIX, reading_of_text),
        ("parquet", PARQUET_SUFFIX, reading_of_parquet),
        ("excel", EXCEL_SUFFIX, reading_of_excel),
    ):
        if files := sorted(file for file in folder.iterdir() if suffix.search(file.name)):
            reading = read(files[0])
            if reading.source == "long-parquet":
                return reading
            settings, notes = _of_one_file(reading)
            return replace(reading, source=f"{kind}-folder", settings=settings, notes=notes)
    return Reading(source, is_guess=True)


def _class_folders_reading(path: Path) -> Reading:
    try:
        with open_tree(path) as tree:
            names = [name for name in tree.names() if name.lower().endswith(IMAGE_SUFFIXES)]
    except (DataError, OSError):
        names = []
    wrapped = 0 if path.is_dir() else wrapping(names)
    inside = [name[wrapped:] for name in names]
    note = (
        "no folder is called train or test: a fifth of every client's images of every class, drawn "
        "at random, is the test part"
    )
    return Reading("class-folders", notes=(note,) if is_undivided(inside) else ())


def _of_one_file(reading: Reading) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings for a folder of such files, one per client, and the notes on them."""
    settings, notes = dict(reading.settings), reading.notes
    values = settings.pop("data.clients", "") or settings.get("data.columns", "")
    if values:  # columns of values beside texts
        first, *unread = names_in(str(values))
        settings["data.columns"] = text_of([first])
        notes = (*notes, f"other columns of values: {', '.join(unread)}") if unread else notes
    return {key: value for key, value in settings.items() if key != "data.client-column"}, notes


def _folder_source(folder: Path) -> str:
    if _has_csv_files_of_classes(folder):
        return "sequence-folder"
    if any((folder / file).exists() for layout in LAYOUTS.values() for file in layout.files):
        return "cifar"
    images = [
        file.relative_to(folder).parts
        for layout in _CLASS_FOLDERS
        for file in folder.glob(f"{layout}/*")
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    divided = any("train" in parts[:-2] for parts in images)
    # Images beside tables, in no folder train, are taken for pictures of the tables.
    of_classes = divided or (images and not any(map(_is_table, folder.iterdir())))
    return "class-folders" if of_classes else "csv-folder"


def _is_table(file: Path) -> bool:
    return any(suffix.search(file.name) for suffix in (SUFFIX, PARQUET_SUFFIX, EXCEL_SUFFIX))


def _has_csv_files_of_classes(path: Path) -> bool:
    """Return whether there are CSV files, all in folders, and no image."""
    try:
        with open_tree(path) as tree:
            names = tree.names()
    except (DataError, OSError):
        return False
    files = [name for name in names if SUFFIX.search(name)]
    images = any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names)
    return bool(files) and all("/" in name for name in files) and not images


def _npz_reading(path: Path) -> Reading:
    names: set[str] = set()
    try:
        with open_archive(path) as archive:
            names = set(archive.names)
            if {"points", "offsets"} <= names:
                return Reading("sequence-npz")
            if first := next((name for name in ("x", "x_train") if name in names), ""):
                shape, dtype = archive.header(first)
                grey = dtype == np.uint8 and shape[-1] >= _NARROWEST_IMAGE
                if first == "x" and len(shape) == 3:  # in one part, as sequences often are
                    grey &= shape[1] >= _NARROWEST_IMAGE and max(shape[1:]) <= 4 * min(shape[1:])
                if len(shape) == 3 and not grey:
                    return Reading("sequence-npz", notes=_looks_like_images(first, shape, dtype))
                if first == "x" and dtype == np.uint8 and len(shape) in (3, 4):
                    return Reading("image-npz", notes=_looks_like_sequences(shape))
    except (DataError, OSError):
        pass
    return Reading("image-npz" if "x_train" in names else "npz")


def _looks_like_sequences(shape: tuple[int, ...]) -> tuple[str, ...]:
    drawn = "a fifth of every client's images of every class, drawn at random, is the test part"
    if len(shape) == 4:
        return (drawn,)
    count, height, width = shape
    read = f"x is read as {count} grey images of {width} × {height}; if these are sequences, set "
    return (f"{read}data.source=sequence-npz", drawn)


def _looks_like_images(name: str, shape: tuple[int, ...], dtype: np.dtype) -> tuple[str, ...]:
    """Return a note if the sequences have as many steps as dimensions, as images would."""
    count, steps, dimensions = shape
    if steps != dimensions or steps < _NARROWEST_IMAGE:
        return ()
    return (
        f"{name} is read as {count} sequences of {steps} steps with {dimensions} values each; if "
        f"these are images, save them as x_train and x_test of uint8 (0 to 255) instead of {dtype}",
    )


@dataclass(frozen=True)
class Column:
    """The cells of a column in the first rows. name: "" if it has none."""

    name: str
    cells: list[str]

    @property
    def is_number(self) -> bool:
        """Whether all cells are numbers."""
        return all(map(_is_number, self.cells))

    @property
    def has_numbers(self) -> bool:
        """Whether 90% of the cells are numbers; the others are errors that the reader reports."""
        return 10 * sum(map(_is_number, self.cells)) >= 9 * len(self.cells)

    @property
    def is_time(self) -> bool:
        """Whether the cells are dates or counts since 1970."""
        if not self.cells:
            return False
        if all(map(is_date, self.cells)):
            return True
        return len(self.cells) > 1 and look_like_times(sorted(set(self.cells)))


def _is_number(cell: str) -> bool:
    return is_number(cell) or cell.lower() in _NO_NUMBER


def reading_of_text(path: Path) -> Reading:
    """Return the settings that read a CSV file; if it is damaged, its reader reports the fault."""
    settings: Settings = {}
    try:
        lines = first_lines(path, str(path))
        delimiter = _delimiter(lines, path, settings)
        rows = [cells(line, delimiter) for line in lines]
    except (DataError, OSError, csv.Error):
        return Reading("wide-csv", is_guess=True)
    return _reading_of_rows(rows, "csv", settings)


def reading_of_excel(path: Path) -> Reading:
    """Return the settings that read an Excel file; if it is damaged, its reader reports it."""
    try:
        return _reading_of_rows(first_excel_rows(path), "excel", {})
    except DataError:
        return Reading("wide-excel", is_guess=True)


def _reading_of_rows(rows: list[list[str]], kind: str, settings: Settings) -> Reading:
    """Return the settings that read a table with these first rows.

    settings: those that were needed to cut lines into cells.
    """
    if len({len(row) for row in rows}) > 1 or len(rows) < 2:
        return Reading(f"wide-{kind}", settings, is_guess=True)
    notes: tuple[str, ...] = ()
    names = rows[0]
    if has_names(rows, "auto"):
        rows = rows[2 if has_units(rows) else 1 :]
    else:
        names = numbered(len(rows[0]))
        settings["data.header"] = False
        notes = ("line 1 is read as values; if it has names, set data.header = true",)
    columns = [Column(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    form = form_of(columns, first_column_counts="data.header" in settings)
    return replace(
        form,
        source=f"{form.source}-{kind}",
        settings=settings | form.settings,
        notes=(*notes, *form.notes),
    )


def reading_of_parquet(path: Path) -> Reading:
    """Return the settings that read a Parquet file; if it is damaged, its reader reports it."""
    try:
        head, rows = first_rows(path)
    except DataError:
        return Reading("wide-parquet", is_guess=True)
    columns = [
        Column(name, column_cells) for name, column_cells in zip(head.names, rows, strict=True)
    ]
    form = form_of(columns)
    if head.times is not None:  # the reader recognises it by its type
        form.settings.pop("data.time-column", None)
    return replace(form, source=f"{form.source}-parquet")


def _delimiter(lines: list[str], path: Path, settings: Settings) -> str:
    try:
        return delimiter_of(lines, str(path))
    except DataError:
        # Several delimiters fit; if the comma is among them, take it as the decimal comma.
        sign = delimiter_of(lines, str(path), "comma")
        settings["data.delimiter"] = next(k for k, value in DELIMITERS.items() if value == sign)
        return sign


def form_of(columns: Sequence[Column], *, first_column_counts: bool = True) -> Reading:
    """Return whether the table is ``wide`` or ``long``, and the settings that read it.

    first_column_counts: whether the reader takes times in the first column without a setting.
    """
    settings: Settings = {}
    times = _times(columns)
    client = _client(columns, times)
    if client is not None and times is not None:
        if client.name.lower() not in CLIENT_NAMES:
            settings["data.client-column"] = client.name
        if times.name.lower() not in TIME_NAMES:
            settings["data.time-column"] = times.name
        _count_steps(times, settings)
        other_columns = [
            column for column in columns if column is not client and column is not times
        ]
        values = [column for column in other_columns if column.has_numbers]
        if not values or len(other_columns) == 1:
            return Reading("long", settings)
        chosen = next((column for column in values if column.name == VALUE_NAME), values[0])
        if chosen.name != VALUE_NAME:
            settings["data.columns"] = text_of([chosen.name])
        return Reading("long", settings, _further_values(values, chosen), _left_out(other_columns))
    if times is not None:
        is_first = times is columns[0]
        is_named = times.name.lower() in TIME_NAMES or times.name == ""
        if not (is_first and (is_named or first_column_counts)):
            settings["data.time-column"] = times.name
        if is_named:
            _count_steps(times, settings)
    candidates = [column for column in columns if column is not times]
    values = [column for column in candidates if column.has_numbers]
    if values and len(values) < len(candidates) and len(values) <= _MOST_NAMED:
        settings["data.clients"] = text_of(column.name for column in values)
        return Reading("wide", settings, left_out=_left_out(candidates))
    return Reading("wide", settings)


def _further_values(values: Sequence[Column], chosen: Column) -> tuple[str, ...]:
    """Return a note on the columns of values that are not read."""
    names = [column.name for column in values if column is not chosen][:_MOST_NAMED]
    return (f"other columns of values: {', '.join(names)}",) if names else ()


def _left_out(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return a line about each column that is not read because its cells are no numbers."""
    texts = [column for column in columns if not column.has_numbers]
    lines = [
        f"column {column.name!r} is left out, as it holds no numbers, such as "
        f"{next(cell for cell in column.cells if not _is_number(cell))!r}"
        for column in texts[:_MOST_NAMED]
    ]
    more = len(texts) - len(lines)
    return (*lines, f"and {more} more columns") if more else tuple(lines)


def _count_steps(times: Column, settings: Settings) -> None:
    """Set the time unit to steps if the time column holds small whole numbers."""
    if not times.is_time and all(map(str.isdecimal, times.cells)):
        settings["data.time-unit"] = "step"


def _times(columns: Sequence[Column]) -> Column | None:
    """Return the time column: one with a usual name, or the first that looks like times."""
    named_columns = [column for column in columns if column.name.lower() in TIME_NAMES]
    if columns[0].name == "" and columns[0].is_time:
        return columns[0]
    return next(
        (
            column
            for column in [*named_columns, *columns]
            if column in named_columns or column.is_time
        ),
        None,
    )


def _client(columns: Sequence[Column], times: Column | None) -> Column | None:
    """Return the column of clients' names, None without one.

    It has a usual name, or holds texts or whole numbers that repeat while times repeat too. The
    first rows may be of a single client, whose name must then be a text.
    """
    candidates = [column for column in columns if column is not times]
    for column in candidates:
        if column.name.lower() in CLIENT_NAMES:
            return column
    if times is None:
        return None
    repeated = [column for column in candidates if 0 < len(set(column.cells)) < len(column.cells)]
    texts = [column for column in repeated if not column.is_number]
    if len(set(times.cells)) == len(times.cells):
        return next((column for column in texts if len(set(column.cells)) == 1), None)
    if texts:
        return texts[0]
    whole_numbers = [column for column in repeated if all(map(str.isdecimal, column.cells))]
    return whole_numbers[0] if whole_numbers else None
