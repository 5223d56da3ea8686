"""Arrays of an npz archive, without pickled objects and with every fault named."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedproto_app.errors import DataError

# What numpy and zipfile raise for damaged bytes; RuntimeError: encrypted, or of a later version.
_FAULTS = (OSError, ValueError, EOFError, RuntimeError, BadZipFile, zlib.error)


def opened(file: BinaryIO, path: Path) -> NpzFile:
    """The archive in an open file; `path` is its name in messages."""
    try:
        archive = np.load(file, allow_pickle=False)
    except _FAULTS:
        raise DataError(f"{path}: not an npz archive") from None
    if not isinstance(archive, NpzFile):
        raise DataError(f"{path}: a single npy array; an npz archive is expected")
    return archive


def array(archive: NpzFile, name: str, path: Path) -> NDArray[Any]:
    """One array of it."""
    try:
        return np.asarray(archive[name])
    except _FAULTS as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: array {name!r} holds pickled Python objects, which are not read"
            ) from None
        raise DataError(f"{path}: array {name!r} is damaged: {error}") from None
