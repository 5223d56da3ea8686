"""Recognise which source reads a path, and which settings read a table, from names of files, shapes
of arrays in archives and the first rows of tables.

The result is a proposal to a person, who sees it; a run follows only its settings.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedproto_app.core.errors import DataError
from fedproto_app.data.excel_table import EXCEL_SUFFIX
from fedproto_app.data.excel_table import end_rows as end_excel_rows
from fedproto_app.data.files import missing, open_tree
from fedproto_app.data.images.class_folders import SUFFIXES as IMAGE_SUFFIXES
from fedproto_app.data.images.class_folders import is_undivided, wrapping
from fedproto_app.data.images.public_sets import LAYOUTS
from fedproto_app.data.npz_archive import open_archive
from fedproto_app.data.parquet_table import PARQUET_SUFFIX
from fedproto_app.data.parquet_table import end_rows as end_parquet_rows
from fedproto_app.data.table import (
    INDEX,
    has_names,
    has_units,
    header_line,
    is_date,
    is_total,
    numbered,
)
from fedproto_app.data.table_form import Answers, Column, Form, Question, Settings, form_of
from fedproto_app.data.text_table import SUFFIX, cells, delimiter_of, first_lines, last_lines
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


@dataclass(frozen=True)
class Reading:
    """The settings that read a path: the source, and other settings by their keys.

    notes: remarks for a person, a line each. left_out: columns that are not read, a line each with
    the reason. is_guess: whether the file's content gave no evidence. target: the column of a table
    that is forecast, "" if every column is a client.
    """

    source: str
    settings: Settings = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_guess: bool = False
    target: str = ""

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

    def fitting(self, answers: Answers) -> dict[str, Any]:
        """Return the person's settings for this form: a column to forecast is a client if wide."""
        is_wide = self.source.startswith("wide-")
        return {
            "data.clients" if is_wide and key == "data.columns" else key: value
            for key, value in answers.items()
        }

    @property
    def all_settings(self) -> Settings:
        """All settings, including the source."""
        return {"data.source": self.source, **self.settings}


def reading_of(path: Path, answers: Answers | None = None) -> Reading:
    """Return the settings that read this path.

    answers: settings that the person has made, by dotted keys. Source "recordings" is never
    returned, as its files look like series. A damaged file is not reported here; its reader names
    the fault. Raises `DataError` if no source reads such a path, and for a table that can be read
    in several ways, with the setting that decides.
    """
    name, answers = path.name.lower(), answers or {}
    if name.endswith(".ts") or (path.is_dir() and any(path.glob("*.ts"))):
        return Reading("uea-ts")
    if path.is_dir():
        return _folder_reading(path, answers)
    if name.endswith(".zip"):
        is_csv = _has_csv_files_of_classes(path)
        return Reading("sequence-folder") if is_csv else _class_folders_reading(path)
    if SUFFIX.search(name):
        return reading_of_text(path, answers) if path.is_file() else Reading("wide-csv")
    if EXCEL_SUFFIX.search(name):
        return reading_of_excel(path, answers) if path.is_file() else Reading("wide-excel")
    if name.endswith((".parquet", ".pq")):
        return reading_of_parquet(path, answers) if path.is_file() else Reading("wide-parquet")
    if name.endswith((".h5", ".hdf5")):
        return Reading("hdf5")
    if name.endswith(".npz"):
        return _npz_reading(path)
    if not path.exists():
        raise DataError(missing(path))
    if name.endswith((".txt", ".dat", ".txt.gz", ".data")):
        return reading_of_text(path, answers)
    remedy = _REMEDIES.get(path.suffix.lower(), "")
    raise DataError(
        f"{path}: no source reads such a file{remedy}; known are .csv, .tsv, .txt, all of these "
        ".gz too, .parquet, .xlsx, .h5, .hdf5, .npz, .zip, .ts, folders of .csv or .parquet files "
        "and folders of images"
    )


def advice(data: DataSettings) -> str:
    """Return a hint at settings that may read the path; "" if there are none or these are set."""
    answers = {"data.columns": data.columns} if data.columns else {}
    try:
        reading = reading_of(Path(data.path), answers)
        fields = reading.fields
    except Question as question:
        return question.text
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


def _folder_reading(folder: Path, answers: Answers) -> Reading:
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
            reading = read(files[0], answers)
            if reading.source == "long-parquet":
                return reading
            settings = _of_one_file(reading, files[0], answers)
            return replace(reading, source=f"{kind}-folder", settings=settings)
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


def _of_one_file(reading: Reading, file: Path, answers: Answers) -> Settings:
    """Return the settings for a folder of such files, one per client.

    Raises `DataError` if a file has several columns of values and none is chosen.
    """
    settings = dict(reading.settings)
    if values := settings.pop("data.clients", ""):  # columns of values beside others
        names = names_in(str(values))
        if len(names) > 1 and not answers.get("data.columns"):
            raise DataError(
                f"{file}: which column is to be forecast: {', '.join(names)}? name it with "
                "--target COLUMN or --set data.columns=COLUMN"
            )
        settings["data.columns"] = text_of(names[:1])
    return {key: value for key, value in settings.items() if key != "data.client-column"}


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


def reading_of_text(path: Path, answers: Answers) -> Reading:
    """Return the settings that read a CSV file; if it is damaged, its reader reports the fault."""
    settings: Settings = {}
    try:
        lines = first_lines(path, str(path))
        delimiter = _delimiter(lines, path, settings)
        rows = [cells(line, delimiter) for line in lines]
        further, count = last_lines(path, str(path))
        last = [cells(line, delimiter) for line in further]
    except (DataError, OSError, csv.Error):
        return Reading("wide-csv", is_guess=True)
    return _reading_of_rows(rows, last, count, "csv", settings, path, answers)


def reading_of_excel(path: Path, answers: Answers) -> Reading:
    """Return the settings that read an Excel file; if it is damaged, its reader reports it."""
    try:
        rows, last, count = end_excel_rows(path)
    except DataError:
        return Reading("wide-excel", is_guess=True)
    return _reading_of_rows(rows, last, count, "excel", {}, path, answers)


def _reading_of_rows(
    rows: list[list[str]],
    last: list[list[str]],
    count: int,
    kind: str,
    settings: Settings,
    path: Path,
    answers: Answers,
) -> Reading:
    """Return the settings that read a table with these first and last rows, of so many rows.

    settings: those that were needed to cut lines into cells.
    """
    if len({len(row) for row in rows}) > 1 or len(rows) < 2 or header_line(rows):
        return Reading(f"wide-{kind}", settings, is_guess=True)
    notes: tuple[str, ...] = ()
    names = rows[0]
    if sum(map(is_date, names)) > max(1, len(names) // 2) and not is_date(rows[1][0]):
        raise DataError(
            f"{path}: line 1 holds times, such as {names[-1]!r}, so its rows look like series; "
            "turn the table, so that every row is a time and every series a column (pandas: "
            "frame.T)"
        )
    if has_names(rows, "auto"):
        rows = rows[2 if has_units(rows) else 1 :]
    else:
        names = numbered(len(rows[0]))
        settings["data.header"] = False
        notes = ("line 1 is read as values; if it has names, set data.header = true",)
    last = [row for row in last if len(row) == len(names) and not any(map(is_total, row))]
    columns = [
        Column(name, [row[place] for row in rows], [row[place] for row in last])
        for place, name in enumerate(names)
    ]
    form = form_of(
        columns,
        answers,
        rows=count,
        where=str(path),
        first_column_counts="data.header" in settings,
    )
    return _reading(form, kind, settings, notes)


def _reading(
    form: Form, kind: str, settings: Settings | None = None, notes: tuple[str, ...] = ()
) -> Reading:
    """Return the settings that read a table of this form from this kind of file."""
    return Reading(
        f"{form.kind}-{kind}",
        (settings or {}) | form.settings,
        (*notes, *form.notes),
        form.left_out,
        target=form.target,
    )


def reading_of_parquet(path: Path, answers: Answers) -> Reading:
    """Return the settings that read a Parquet file; if it is damaged, its reader reports it."""
    try:
        head, rows, last, count = end_parquet_rows(path)
    except DataError:
        return Reading("wide-parquet", is_guess=True)
    columns = [
        Column("" if name == INDEX else name, first_cells, last_cells)
        for name, first_cells, last_cells in zip(head.names, rows, last, strict=True)
    ]
    form = form_of(columns, answers, rows=count, where=str(path))
    if head.times is not None:  # the reader recognises it by its type
        form.settings.pop("data.time-column", None)
    return _reading(form, "parquet")


def _delimiter(lines: list[str], path: Path, settings: Settings) -> str:
    try:
        return delimiter_of(lines, str(path))
    except DataError:
        # Several delimiters fit; if the comma is among them, take it as the decimal comma.
        sign = delimiter_of(lines, str(path), "comma")
        settings["data.delimiter"] = next(k for k, value in DELIMITERS.items() if value == sign)
        return sign
