"""Read files that define which clients are neighbours: weights of edges, or places.

CSV files: UTF-8, comma separated, plain or gzipped. `DataError` names the file and the fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.table import TIME_NAMES

if TYPE_CHECKING:
    from pandas import DataFrame

Place = tuple[float, float]

NAME_COLUMNS = ("name", "client", "sensor_id", "id")
EAST_COLUMNS, NORTH_COLUMNS = ("x", "longitude"), ("y", "latitude")
LARGEST = 1e30  # weight: the sum over any number of clients is still finite
_CELL = re.compile(r"(\d+)[_, ](\d+)$")


def read_weights(path: Path, names: str = "") -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Return the clients' names and the weights [M, M], the larger of the two directions.

    The first line has the names; the first column may have them too. If the file has only numbers,
    the names are in the header of another file, `names`. The diagonal is set to 0.
    """
    table = _table(path).to_numpy(dtype=str)
    if names:
        names_of_rows, numbers = _header(Path(names)), table
    else:
        names_of_rows, numbers = _split_names(table, path)
    if numbers.shape != (len(names_of_rows), len(names_of_rows)):
        raise DataError(
            f"{path}: {numbers.shape[0]} × {numbers.shape[1]} weights for {len(names_of_rows)} "
            "names; a row and a column for each name is expected; for numbers alone graph.names "
            "says where their names are"
        )
    if len(set(names_of_rows)) != len(names_of_rows):
        raise DataError(f"{path}: {_twice(names_of_rows)!r} is named twice")
    weights = _numbers(numbers, path)
    if not ((weights >= 0) & (weights <= LARGEST)).all():
        raise DataError(
            f"{path}: weights from {weights.min():g} to {weights.max():g}; "
            f"expected 0 to {LARGEST:g}"
        )
    symmetric = np.maximum(weights, weights.T).astype(np.float32)
    np.fill_diagonal(symmetric, 0.0)
    return tuple(names_of_rows), symmetric


def read_places(path: Path) -> dict[str, Place]:
    """Return the place (x, y) of each name. For degrees, x = longitude · cos(mean latitude)."""
    table = _table(path)
    header = [cell.strip().lower() for cell in table.iloc[0]]
    columns = []
    for column_names in (NAME_COLUMNS, EAST_COLUMNS, NORTH_COLUMNS):
        present = [name for name in column_names if name in header]
        if not present:
            raise DataError(
                f"{path}: no column {' or '.join(map(repr, column_names))} in its header {header}"
            )
        columns.append(header.index(present[0]))
    names = [name.strip() for name in table.iloc[1:, columns[0]]]
    if len(set(names)) != len(names):
        raise DataError(f"{path}: {_twice(names)!r} has two places")
    places = _numbers(table.iloc[1:, columns[1:]].to_numpy(dtype=str), path)
    if header[columns[2]] == "latitude" and len(places):
        places[:, 0] *= np.cos(np.radians(places[:, 1].mean()))
    return {name: (x, y) for name, (x, y) in zip(names, places.tolist(), strict=True)}


def cell_of(name: str) -> Place | None:
    """Return the place (column, row) of a client named after a grid cell, such as `cell_41_42`."""
    match = _CELL.search(name)
    return (float(match[2]), float(match[1])) if match else None


def _table(path: Path) -> DataFrame:
    """Return all cells as texts."""
    import pandas as pd

    try:
        return pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8")
    except (OSError, ValueError) as error:  # a file that is not there, empty, or no table
        raise DataError(f"{path}: not a readable CSV file: {error}") from None


def _header(path: Path) -> list[str]:
    """Return the names in a table's first line, without the name of a time column."""
    names = [cell.strip() for cell in _table(path).iloc[0]]
    return names[1:] if names[0].lower() in ("", *TIME_NAMES) else names


def _split_names(table: NDArray[np.str_], path: Path) -> tuple[list[str], NDArray[np.str_]]:
    """Return the names in the first line, and the cells below it without the column of names."""
    names = [cell.strip() for cell in table[0]]
    if table.shape[0] != table.shape[1]:
        return names, table[1:]
    if _is_number(names[0]) or [cell.strip() for cell in table[1:, 0]] != names[1:]:
        raise DataError(
            f"{path}: its first line holds no names, or its first column holds others; graph.names "
            "says where the names of a file of numbers are"
        )
    return names[1:], table[1:, 1:]


def _numbers(cells: NDArray[np.str_], path: Path) -> NDArray[np.float64]:
    try:
        values = cells.astype(np.float64)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    if not np.isfinite(values).all():
        raise DataError(f"{path}: a value is missing or not finite")
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _twice(names: Sequence[str]) -> str:
    return next(name for name in names if names.count(name) > 1)
