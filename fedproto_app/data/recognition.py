"""Recognise which source reads a path, by file names and by the shapes of arrays in archives."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.file_tree import opened as opened_tree
from fedproto_app.data.images.cifar import LAYOUTS
from fedproto_app.data.images.decoding import SUFFIXES as IMAGE_SUFFIXES
from fedproto_app.data.npz_archive import header
from fedproto_app.data.npz_archive import opened as opened_archive
from fedproto_app.data.parquet_table import PARQUET_SUFFIX
from fedproto_app.data.source_checks import missing
from fedproto_app.data.table_recognition import (
    Reading,
    Settings,
    reading_of_parquet,
    reading_of_text,
)
from fedproto_app.data.text_table import SUFFIX
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import names_in
from fedproto_app.settings.reading import flags

_REMEDIES = {
    ".xlsx": " (save the sheet as CSV)",
    ".xls": " (save the sheet as CSV)",
    ".feather": " (write it with DataFrame.to_parquet)",
    ".pkl": " (nothing is unpickled; write it with DataFrame.to_parquet)",
    ".json": " (write it with DataFrame.to_csv)",
    ".arff": " (the archive has the same data as .ts)",
}
_LAYOUTS_OF_FOLDERS = ("train", "stage-*/train", "*/train", "*/stage-*/train")
_NARROWEST_IMAGE = 4  # pixels; fewer uint8 values in a row are the dimensions of a step


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
        return Reading("sequence-folder" if is_csv else "class-folders")
    if SUFFIX.search(name):
        return reading_of_text(path) if path.is_file() else Reading("wide-csv")
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
        ".gz too, .parquet, .h5, .hdf5, .npz, .zip, .ts, folders of .csv or .parquet files "
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
    files = sorted(file for file in folder.iterdir() if SUFFIX.search(file.name))
    parquet = sorted(file for file in folder.iterdir() if PARQUET_SUFFIX.search(file.name))
    if source == "csv-folder" and parquet and not files:
        reading = reading_of_parquet(parquet[0])
        if reading.source == "long-parquet":
            return reading
        return Reading("parquet-folder", _of_one_file(reading), reading.notes, reading.is_guess)
    if source != "csv-folder" or not files:
        return Reading(source, is_guess=source == "csv-folder")
    return Reading(source, _of_one_file(reading_of_text(files[0])))


def _of_one_file(reading: Reading) -> Settings:
    """Return the settings for a folder of such files, one per client."""
    settings = dict(reading.settings)
    values = settings.pop("data.clients", "") or settings.get("data.columns", "")
    if values:  # columns of values beside texts
        settings["data.columns"] = names_in(str(values))[0]
    return {key: value for key, value in settings.items() if key != "data.client-column"}


def _folder_source(folder: Path) -> str:
    if _has_csv_files_of_classes(folder):
        return "sequence-folder"
    if any((folder / file).exists() for layout in LAYOUTS.values() for file in layout.files):
        return "cifar"
    files = (file for layout in _LAYOUTS_OF_FOLDERS for file in folder.glob(f"{layout}/*/*"))
    has_images = any(file.suffix.lower() in IMAGE_SUFFIXES for file in files)
    return "class-folders" if has_images else "csv-folder"


def _has_csv_files_of_classes(path: Path) -> bool:
    """Return whether there are CSV files, all in folders, and no image."""
    try:
        with opened_tree(path) as tree:
            names = tree.names()
    except (DataError, OSError):
        return False
    files = [name for name in names if SUFFIX.search(name)]
    images = any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names)
    return bool(files) and all("/" in name for name in files) and not images


def _npz_reading(path: Path) -> Reading:
    names: set[str] = set()
    try:
        with path.open("rb") as file, opened_archive(file, path) as archive:
            names = set(archive.files)
            if {"points", "offsets"} <= names:
                return Reading("sequence-npz")
            if first := next((name for name in ("x", "x_train") if name in names), ""):
                shape, dtype = header(archive, first, path)
                grey = first == "x_train" and dtype == np.uint8 and shape[-1] >= _NARROWEST_IMAGE
                if len(shape) == 3 and not grey:
                    return Reading("sequence-npz", notes=_looks_like_images(first, shape, dtype))
    except (DataError, OSError):
        pass
    return Reading("image-npz" if "x_train" in names else "npz")


def _looks_like_images(name: str, shape: tuple[int, ...], dtype: np.dtype) -> tuple[str, ...]:
    """Return a note if the sequences have as many steps as dimensions, as images would."""
    count, steps, dimensions = shape
    if steps != dimensions or steps < _NARROWEST_IMAGE:
        return ()
    return (
        f"{name} is read as {count} sequences of {steps} steps with {dimensions} values each; if "
        f"these are images, save them as x_train and x_test of uint8 (0 to 255) instead of {dtype}",
    )
