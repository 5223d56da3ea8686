"""Read arrays of an npz archive without unpickling objects; errors name the array."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.room import require_room

# numpy and zipfile raise these for damaged bytes; RuntimeError: encrypted, or a later version.
_FAULTS = (OSError, ValueError, EOFError, RuntimeError, BadZipFile, zlib.error)


def opened(file: BinaryIO, path: Path) -> NpzFile:
    """Open the archive in an open file; `path` is the file's name in messages."""
    try:
        archive = np.load(file, allow_pickle=False)
    except _FAULTS:
        raise DataError(f"{path}: not an npz archive") from None
    if not isinstance(archive, NpzFile):
        raise DataError(f"{path}: a single npy array; an npz archive is expected")
    return archive


def header(archive: NpzFile, name: str, path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type of an array without reading the values."""
    assert archive.zip is not None  # the archive is open
    try:
        with archive.zip.open(f"{name}.npy") as member:
            version = npy.read_magic(member)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(member)
    except Exception as error:  # damaged bytes fail in many ways
        raise DataError(f"{path}: array {name!r} is damaged: {error}") from None
    return shape, dtype


def array(archive: NpzFile, name: str, path: Path) -> NDArray[Any]:
    """Return an array of the archive."""
    shape, dtype = header(archive, name, path)
    require_room(prod(shape) * dtype.itemsize, f"{path}: array {name!r}")
    try:
        return np.asarray(archive[name])
    except MemoryError:
        shape, dtype = header(archive, name, path)
        raise DataError(
            f"{path}: array {name!r} declares {shape} of {dtype}, more than there is memory for"
        ) from None
    except _FAULTS as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: array {name!r} holds pickled Python objects, which are not read"
            ) from None
        raise DataError(f"{path}: array {name!r} is damaged: {error}") from None


def require_names(
    archive: NpzFile, required: Sequence[str], optional: Sequence[str], path: Path
) -> None:
    """Raise `DataError` for an archive with a missing or an unexpected array."""
    if missing := set(required) - set(archive.files):
        names = ", ".join(archive.files)
        raise DataError(f"{path}: no array {', '.join(sorted(missing))}; it has {names}")
    if unexpected := set(archive.files) - {*required, *optional}:
        raise DataError(
            f"{path}: beside {', '.join(required)} only {', '.join(optional)} are expected, "
            f"found {', '.join(sorted(unexpected))}"
        )


def column(archive: NpzFile, name: str, kinds: str, path: Path) -> NDArray[Any]:
    """Return a 1-D array. kinds: allowed types, "iu" integers, "f" real numbers, "U" texts."""
    values = array(archive, name, path)
    if values.ndim != 1:
        raise DataError(f"{path}: array {name!r} has shape {values.shape}, expected 1-D")
    if values.dtype.kind not in kinds:
        titles = {"i": "integers", "f": "real numbers", "U": "texts"}
        allowed = " or ".join(title for kind, title in titles.items() if kind in kinds)
        raise DataError(f"{path}: array {name!r} holds {values.dtype}, expected {allowed}")
    return values


def column_of(
    archive: NpzFile, name: str, kinds: str, count: int, items: str, path: Path
) -> NDArray[Any] | None:
    """Return a `column` of `count` values, None if it is missing; items: their name in messages."""
    if name not in archive.files:
        return None
    values = column(archive, name, kinds, path)
    if len(values) != count:
        raise DataError(f"{path}: array {name!r} has {len(values)} values for {count} {items}")
    return values
