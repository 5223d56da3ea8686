"""npz archives without pickled objects: one matrix ``values``, or one array per client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.npz_archive import array, opened
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings


def load_npz(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield the clients of an archive.

    The archive has either ``values`` [T, N] with optional ``names`` [N], or 1-D arrays of any
    lengths, each named after a client. All series begin at position 0.
    """
    path = Path(settings.path)
    with path.open("rb") as file, opened(file, path) as archive:
        if "values" in archive.files:
            yield from _columns(archive, path)
            return
        for name in archive.files:
            yield ClientSeries(name, _numbers(archive, name, 1, path))


def _columns(archive: NpzFile, path: Path) -> Iterator[ClientSeries]:
    if unexpected := set(archive.files) - {"values", "names"}:
        raise DataError(
            f"{path}: beside 'values' only 'names' is expected, "
            f"found {', '.join(sorted(unexpected))}"
        )
    values = _numbers(archive, "values", 2, path)
    if "names" in archive.files:
        names = [str(name) for name in array(archive, "names", path).ravel()]
    else:
        names = [f"client-{number:03d}" for number in range(values.shape[1])]
    if len(names) != values.shape[1]:
        raise DataError(f"{path}: {len(names)} names for {values.shape[1]} columns of 'values'")
    for name, column in zip(names, values.T, strict=True):
        yield ClientSeries(name, column)


def _numbers(archive: NpzFile, name: str, dimensions: int, path: Path) -> NDArray[np.float64]:
    numbers = array(archive, name, path)
    if numbers.dtype.kind not in "iuf":
        raise DataError(f"{path}: array {name!r} holds {numbers.dtype}, not numbers")
    if numbers.ndim != dimensions:
        expected = "time steps × clients" if dimensions == 2 else "1-D, a client each"
        raise DataError(f"{path}: array {name!r} has shape {numbers.shape}, expected {expected}")
    return numbers.astype(np.float64)
