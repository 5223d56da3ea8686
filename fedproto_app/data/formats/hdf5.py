"""Read series from HDF5 files like METR-LA and PEMS-BAY.

A file holds one pandas DataFrame in "fixed" format. It is not read with pandas, whose reader
unpickles whatever a file calls an object. Instead, h5py reads its arrays: the column names
``axis0``, the row labels ``axis1``, ``block*_items`` and ``block*_values``. In METR-LA, a 0 often
stands for a missing value. It stays 0 here. A node reads only the named file. Links, virtual data
sets and external storage are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Matrix, Stamps, Times
from fedproto_app.data.files import require_room
from fedproto_app.data.format import Format, Source, by_name
from fedproto_app.data.row_order import FileRows
from fedproto_app.data.series import ClientSeries, ColumnNames, series_of
from fedproto_app.settings import DataSettings

if TYPE_CHECKING:
    from h5py import Dataset, File, Group


def load_hdf5(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield a client for each column of the file's DataFrame."""
    import h5py

    path = Path(settings.path)
    try:
        with h5py.File(path, "r") as file:
            frame = _the_frame(file, path)
            names = _names(_array(frame, "axis0", 1, path), path)
            values = _values(frame, names, path)
            rows = _array(frame, "axis1", 1, path)
            times, utc = _times(rows, path), "tz" in rows.attrs
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:  # h5py's, numpy's
        raise DataError(f"{path}: not a readable HDF5 DataFrame: {error}") from None
    rows = FileRows(None if times is None else Stamps(times, utc), values, path, names)
    yield from series_of([rows], settings, ColumnNames(times="time"))


def _the_frame(file: File, path: Path) -> Group:
    """Return the only group in the file that holds a DataFrame. Links are not followed."""
    import h5py

    frame_keys: list[str] = []

    def look(key: str, item: Group | Dataset) -> None:
        if isinstance(item, h5py.Group) and "pandas_type" in item.attrs:
            frame_keys.append(key)

    file.visititems(look)
    if not frame_keys:
        keys = ", ".join(k if _is_here(file, k) else f"the link {k}" for k in file) or "nothing"
        raise DataError(f"{path}: no pandas DataFrame in it, only {keys}")
    if len(frame_keys) > 1:
        raise DataError(f"{path}: one DataFrame is expected, found {', '.join(frame_keys)}")
    frame = file[frame_keys[0]]
    if (kind := _attribute(frame, "pandas_type")) != "frame":
        raise DataError(
            f"{path}: key {frame_keys[0]!r} is a pandas {kind!r}; write a DataFrame with "
            'to_hdf(..., format="fixed")'
        )
    axes = [_array(frame, axis, 1, path) for axis in ("axis0", "axis1")]
    if any("shape" in axis.attrs for axis in axes):  # pandas' sign for an empty axis
        raise DataError(f"{path}: the DataFrame {frame_keys[0]!r} is empty")
    return frame


def _names(axis: Dataset, path: Path) -> list[str]:
    """Return the labels of an axis as texts. In the file they are bytes or integers."""
    labels = axis[()].tolist()
    names = [label.decode() if isinstance(label, bytes) else str(label) for label in labels]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path}: two columns are named {twice!r}")
    return names


def _values(frame: Group, names: list[str], path: Path) -> Matrix:
    """Return the values [T, N] float64, gathered from the blocks, one block per dtype."""
    rows = _array(frame, "axis1", 1, path).size
    require_room(8 * rows * len(names), path)  # the file may be small: its chunks are compressed
    values = np.full((rows, len(names)), np.nan)
    columns = {name: position for position, name in enumerate(names)}
    for number in range(int(frame.attrs["nblocks"])):
        items = _names(_array(frame, f"block{number}_items", 1, path), path)
        block = _array(frame, f"block{number}_values", 2, path)
        kind = _attribute(block, "value_type") or str(block.dtype)  # dates are stored as integers
        if block.dtype.kind not in "iuf" or kind.startswith(("datetime", "timedelta")):
            raise DataError(f"{path}: column {items[0]!r} holds {kind}, not numbers")
        if not set(items) <= set(columns) or block.shape != (len(values), len(items)):
            raise DataError(f"{path}: {block.name} {block.shape} does not fit the DataFrame's axes")
        values[:, [columns[item] for item in items]] = block[()]
    return values


def _times(axis: Dataset, path: Path) -> Times | None:
    """Return the times [T] as ``datetime64`` in any unit, or None if rows are numbered."""
    kind = _attribute(axis, "kind")
    if kind == "integer":
        return None
    stamp = re.search(r"datetime64(?:\[(\w+)\])?", kind)  # old files have other bytes around it
    if stamp is None:
        raise DataError(f"{path}: rows are labelled by {kind!r}, expected times or integers")
    unit = stamp[1] or "ns"
    stamps: NDArray[np.int64] = axis[()].astype(np.int64)
    return stamps.astype(f"datetime64[{unit}]").astype("datetime64[us]")


def _array(frame: Group, key: str, dimensions: int, path: Path) -> Dataset:
    """Return a data set of the frame. Refuse pickled objects, and data in another file."""
    import h5py

    where = f"{path}: {frame.name}/{key}"
    if key not in list(frame):  # `in frame` would follow a link
        raise DataError(f"{where} is missing")
    if not _is_here(frame, key):
        raise DataError(f"{where} is a link, which is not followed")
    array = frame[key]
    if not isinstance(array, h5py.Dataset):
        raise DataError(f"{where} is no array")
    if array.external or array.is_virtual:
        raise DataError(f"{where} keeps its values in another file, which is not read")
    if array.dtype.hasobject:
        raise DataError(f"{where} holds pickled Python objects, which are not read")
    if array.ndim != dimensions:
        raise DataError(f"{where} has {array.ndim} dimensions, expected {dimensions}")
    return array


def _is_here(group: Group, key: str) -> bool:
    """Return whether the group itself holds the item: no soft link, no link to another file."""
    import h5py

    return bool(group.id.links.get_info(key.encode()).type == h5py.h5l.TYPE_HARD)


def _attribute(item: Group | Dataset, name: str) -> str:
    value = item.attrs.get(name, "")
    return value.decode() if isinstance(value, bytes) else str(value)


FORMAT = Format(
    (Source("hdf5", "series", load_hdf5, keys=("missing",)),),
    "an .h5 or .hdf5 file",
    by_name(".h5", ".hdf5"),
)
