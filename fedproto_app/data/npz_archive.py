"""Read arrays of an npz archive without unpickling objects. Errors name the array."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_file, require_room

Array = NDArray[np.generic]  # numbers or texts of any type

# numpy and zipfile raise these for damaged bytes. They raise RuntimeError if a file is encrypted or
# has a later version.
_FAULTS = (OSError, ValueError, EOFError, RuntimeError, BadZipFile, zlib.error)


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open the archive at a path."""
    if path.exists():
        require_file(path)
    with path.open("rb") as file:
        try:
            arrays = np.load(file, allow_pickle=False)
        except _FAULTS:
            raise DataError(f"{path}: not an npz archive") from None
        if not isinstance(arrays, NpzFile):
            raise DataError(f"{path}: a single npy array; an npz archive is expected")
        with arrays:
            yield Archive(arrays, path)


class Archive:
    """An open archive. names: the names of its arrays. path: the file's name in messages."""

    def __init__(self, arrays: NpzFile, path: Path) -> None:
        self._arrays, self.path = arrays, path
        self.names: list[str] = arrays.files

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return the shape and type of an array without reading the values."""
        assert self._arrays.zip is not None  # the archive is open
        try:
            with self._arrays.zip.open(f"{name}.npy") as member:
                version = npy.read_magic(member)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, _, dtype = read(member)
        except Exception as error:  # damaged bytes fail in many ways
            raise DataError(f"{self._where(name)} is damaged: {error}") from None
        return shape, dtype

    def array(self, name: str) -> Array:
        """Return an array of the archive."""
        shape, dtype = self.header(name)
        require_room(prod(shape) * dtype.itemsize, self._where(name))
        try:
            return np.asarray(self._arrays[name])
        except MemoryError:
            raise DataError(
                f"{self._where(name)} declares {shape} of {dtype}, more than there is memory for"
            ) from None
        except _FAULTS as error:
            fault = f"is damaged: {error}"
            if "allow_pickle" in str(error):
                fault = "holds pickled Python objects, which are not read"
            raise DataError(f"{self._where(name)} {fault}") from None

    def require_names(self, required: Sequence[str], optional: Sequence[str]) -> None:
        """Raise `DataError` if an array is missing or unexpected.

        Optional arrays must be there for both splits or for neither, so not client_train alone.
        """
        if missing := set(required) - set(self.names):
            names = ", ".join(self.names)
            raise DataError(f"{self.path}: no array {', '.join(sorted(missing))}; it has {names}")
        if unexpected := set(self.names) - {*required, *optional}:
            raise DataError(
                f"{self.path}: beside {', '.join(required)} only {', '.join(optional)} are "
                f"expected, found {', '.join(sorted(unexpected))}"
            )
        for name in self.names:
            kind, _, split = name.rpartition("_")
            if split in ("train", "test") and not {f"{kind}_train", f"{kind}_test"} <= {
                *self.names
            }:
                raise DataError(
                    f"{self.path}: {name} is given for one split only; both need it, or none"
                )

    def numbers(self, name: str, axes: int, expected: str) -> Array:
        """Return an array of numbers with this many axes. expected: its shape in messages."""
        numbers = self.array(name)
        if numbers.dtype.kind not in "iuf":
            raise DataError(f"{self._where(name)} holds {numbers.dtype}, not numbers")
        if numbers.ndim != axes:
            raise DataError(f"{self._where(name)} has shape {numbers.shape}, expected {expected}")
        return numbers

    def column(self, name: str, kinds: str) -> Array:
        """Return a 1-D array. kinds: letters of allowed types: iu integers, f reals, U texts."""
        values = self.array(name)
        if values.ndim != 1:
            raise DataError(f"{self._where(name)} has shape {values.shape}, expected 1-D")
        if values.dtype.kind not in kinds:
            titles = {"i": "integers", "f": "real numbers", "U": "texts"}
            allowed = " or ".join(title for kind, title in titles.items() if kind in kinds)
            raise DataError(f"{self._where(name)} holds {values.dtype}, expected {allowed}")
        return values

    def column_of(self, name: str, kinds: str, count: int, items: str) -> Array | None:
        """Return a `column` of `count` values, or None. items: what messages call the values."""
        if name not in self.names:
            return None
        values = self.column(name, kinds)
        if len(values) != count:
            raise DataError(f"{self._where(name)} has {len(values)} values for {count} {items}")
        return values

    def texts_of(self, name: str, count: int, items: str) -> NDArray[np.str_] | None:
        """Return a `column_of` names as texts. In the file they may be integers."""
        values = self.column_of(name, "iuU", count, items)
        return None if values is None else values.astype(np.str_)

    def _where(self, name: str) -> str:
        return f"{self.path}: array {name!r}"
