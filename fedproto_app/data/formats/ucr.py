"""Read text files of the UCR archive (Dau et al. 2019): a class and a sequence of values per line.

The archive of 2018 has tabs between the values, and the one of 2015 commas. The same sets are also
distributed with blanks. Sequences of different lengths are filled up with NaN.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import Candidate, Fit, Format, Source
from fedproto_app.data.formats.csv_table import text_lines
from fedproto_app.data.formats.uea import split_files
from fedproto_app.data.sequences.pool import SequencePool, float32_steps, numbered_dimensions
from fedproto_app.settings import DataSettings

_ENDINGS = (".tsv", ".txt", "")
_NAME = re.compile(r".+_(TRAIN|TEST)(\.tsv|\.txt)?")
_BETWEEN = re.compile(r"[\s,]+")


def load_ucr(settings: DataSettings) -> SequencePool:
    """Return the sequences of one file, or of a folder with a train and a test file.

    Only a folder has a test split. A `DataError` names the file and the line.
    """
    path = Path(settings.path)
    ending = next((end for end in _ENDINGS if any(path.glob(f"*_TRAIN{end}"))), _ENDINGS[0])
    files = [_read(file) for file in split_files(path, ending)]
    names = [name for file_names, _ in files for name in file_names]
    classes = tuple(sorted(set(names), key=_order))
    label_of = {name: label for label, name in enumerate(classes)}
    return SequencePool(
        numbered_dimensions(1),
        classes,
        [steps for _, sequences in files for steps in sequences],
        np.array([label_of[name] for name in names], dtype=np.int64),
        is_test=np.arange(len(names)) >= len(files[0][0]) if len(files) == 2 else None,
    )


def _read(path: Path) -> tuple[list[str], list[NDArray[np.float32]]]:
    """Return the names of the classes and the sequences [T, 1] of a file's lines."""
    classes, sequences = [], []
    for number, line in enumerate(text_lines(path, str(path)), start=1):
        name, *cells = _BETWEEN.split(line.strip())
        if not name:
            continue
        where = f"{path}: line {number}"
        try:
            values = np.array(cells, dtype=np.float64)
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        length = np.flatnonzero(~np.isnan(values)).max(initial=-1) + 1  # the rest fills it up
        if not length:
            raise DataError(f"{where}: no value after the class {name}")
        if np.isnan(values[:length]).any():
            raise DataError(f"{where}: a value is missing; sequences must be complete")
        classes.append(_class_name(name))
        sequences.append(float32_steps(values[:length, None]))
    if not classes:
        raise DataError(f"{path}: the file is empty")
    return classes, sequences


def _class_name(text: str) -> str:
    """Return the class as text, where 1, 1.0 and 1.0000000e+00 are the same."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else text


def _order(name: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by size, before other names."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def _fit(candidate: Candidate) -> Fit:
    files = candidate.files_beside if candidate.is_folder else [candidate.path]
    if candidate.is_folder and any(file.suffix == ".ts" for file in files):
        return Fit.NONE  # the archive's other form, which says more
    return Fit.CERTAIN if any(_NAME.fullmatch(file.name) for file in files) else Fit.NONE


FORMAT = Format(
    (Source("ucr-text", "labelled sequences", load_ucr, "a file or a folder"),),
    "NAME_TRAIN.tsv of the UCR archive, or the folder of a train and a test file",
    _fit,
)
