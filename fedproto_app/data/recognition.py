"""Which source reads a path: told from names, and in archives from the shapes of arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedproto_app.data.csv_source import SUFFIX
from fedproto_app.data.file_tree import opened as opened_tree
from fedproto_app.data.images.cifar import LAYOUTS
from fedproto_app.data.images.decoding import SUFFIXES as IMAGE_SUFFIXES
from fedproto_app.data.npz_archive import header
from fedproto_app.data.npz_archive import opened as opened_archive
from fedproto_app.errors import DataError

_LAYOUTS_OF_FOLDERS = ("train", "stage-*/train", "*/train", "*/stage-*/train")
_NARROWEST_IMAGE = 4  # pixels; fewer uint8 values in a row are dimensions of a step


def source_of(path: Path) -> str:
    """The source that reads this path. Recordings look like series: they are never told.

    What is damaged is left to a reader, which says what is wrong. Raises `DataError` if no source
    reads such a path.
    """
    name = path.name.lower()
    if name.endswith(".ts") or (path.is_dir() and any(path.glob("*.ts"))):
        return "uea-ts"
    if path.is_dir():
        return _folder_source(path)
    if name.endswith(".zip"):
        return "sequence-folder" if _has_csv_files_of_classes(path) else "class-folders"
    if SUFFIX.search(name):
        return "wide-csv"
    if name.endswith((".h5", ".hdf5")):
        return "hdf5"
    if name.endswith(".npz"):
        return _npz_source(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    raise DataError(
        f"{path}: no source reads such a file; known are .csv, .csv.gz, .h5, .hdf5, .npz, .zip, "
        ".ts, folders of .csv files and folders of images"
    )


def _folder_source(folder: Path) -> str:
    if _has_csv_files_of_classes(folder):
        return "sequence-folder"
    if any((folder / file).exists() for layout in LAYOUTS.values() for file in layout.files):
        return "cifar"
    files = (file for layout in _LAYOUTS_OF_FOLDERS for file in folder.glob(f"{layout}/*/*"))
    has_images = any(file.suffix.lower() in IMAGE_SUFFIXES for file in files)
    return "class-folders" if has_images else "csv-folder"


def _has_csv_files_of_classes(path: Path) -> bool:
    """Whether there are CSV files, all of them in folders, and no image."""
    try:
        with opened_tree(path) as tree:
            names = tree.names()
    except (DataError, OSError):
        return False
    files = [name for name in names if SUFFIX.search(name)]
    images = any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names)
    return bool(files) and all("/" in name for name in files) and not images


def _npz_source(path: Path) -> str:
    names: set[str] = set()
    try:
        with path.open("rb") as file, opened_archive(file, path) as archive:
            names = set(archive.files)
            if {"points", "offsets"} <= names:
                return "sequence-npz"
            if first := next((name for name in ("x", "x_train") if name in names), ""):
                shape, dtype = header(archive, first, path)
                grey = first == "x_train" and dtype == np.uint8 and shape[-1] >= _NARROWEST_IMAGE
                if len(shape) == 3 and not grey:
                    return "sequence-npz"
    except (DataError, OSError):
        pass
    return "image-npz" if "x_train" in names else "npz"
