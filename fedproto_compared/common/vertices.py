"""Build the graph that ``[graph]`` names, over clients of series, on a server or in one process.

Weights of edges come from a file, from clients' places, or from their profiles. A profile is a
client's mean standardised day over its train part, one value per phase. Files with weights or
places are CSV: UTF-8, comma separated, plain or gzipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import torch_stream
from fedproto_app.data.table import TIME_NAMES
from fedproto_app.maths.noise import noisy
from fedproto_app.settings import GraphSettings, Settings
from fedproto_app.tasks.forecasting.task import CohortSamples, mean_day
from fedproto_compared.common.adjacency import Adjacency, weights_of_places, weights_of_profiles

if TYPE_CHECKING:
    from pandas import DataFrame

Place = tuple[float, float]

NAME_COLUMNS = ("name", "client", "sensor_id", "id")
EAST_COLUMNS, NORTH_COLUMNS = ("x", "longitude"), ("y", "latitude")
LARGEST = 1e30  # largest weight, so that the sum over any number of clients is finite
_CELL = re.compile(r"(\d+)[_, ](\d+)$")


class Vertices:
    """The clients' rows or places in the graph, by name. Reads the file ``graph.path`` once."""

    def __init__(self, settings: GraphSettings) -> None:
        self._settings = settings
        self._rows: dict[str, int] = {}
        self._weights: Adjacency = np.zeros((0, 0), np.float32)
        self._places: dict[str, Place] = {}
        if settings.source == "file":
            names, self._weights = read_weights(Path(settings.path), settings.names)
            self._rows = {name: row for row, name in enumerate(names)}
        elif settings.path:
            self._places = read_places(Path(settings.path))

    def require(self, names: Sequence[str]) -> None:
        """Raise `DataError` for a client that has no row in the file and no place."""
        if self._settings.source == "file":
            unknown = [name for name in names if name not in self._rows]
        elif self._settings.source == "positions":
            unknown = [name for name in names if self.place(name) is None]
        else:
            unknown = []
        if unknown and self._settings.path:
            raise DataError(f"{self._settings.path}: has no entry of client {unknown[0]!r}")
        if unknown:
            raise DataError(
                f"graph.source = 'positions': client {unknown[0]!r} is not named as a cell of a "
                "grid (cell_41_42); graph.path must name a file with places"
            )

    def place(self, name: str | None) -> Place | None:
        """Return the place of a client, None if it is unknown or the client has no name."""
        if name is None:
            return None
        return self._places.get(name) if self._settings.path else cell_of(name)

    def adjacency(
        self, names: Sequence[str | None], profiles: NDArray[np.float32] | None = None
    ) -> Adjacency:
        """Return the adjacency of these clients, [N, N]. Unknown or unnamed clients have no edges.

        profiles: [N, B], of the same clients, NaN if missing. Only "profiles" needs them.
        """
        if self._settings.source == "file":
            has_vertex = np.array([name in self._rows for name in names], bool)
            rows = [self._rows[name] for name in names if name in self._rows]
            weights = self._weights[np.ix_(rows, rows)].copy()
            np.fill_diagonal(weights, 0.0)
        elif self._settings.source == "positions":
            places = [self.place(name) for name in names]
            has_vertex = np.array([place is not None for place in places], bool)
            present_places = [place for place in places if place is not None]
            weights = weights_of_places(np.array(present_places, dtype=np.float64).reshape(-1, 2))
        else:
            assert profiles is not None, "a graph of profiles needs them"
            has_vertex = np.array([np.isfinite(profile).all() for profile in profiles], bool)
            present_profiles = profiles[has_vertex].astype(np.float64)
            weights = weights_of_profiles(present_profiles, self._settings.neighbours)
        adjacency = np.zeros((len(names), len(names)), np.float32)
        adjacency[np.ix_(has_vertex, has_vertex)] = weights
        return adjacency


def reported_days(samples: CohortSamples, settings: Settings) -> Tensor:
    """Return the mean days that clients report, [K, p], with noise of ``graph.noise`` added.

    The noise is drawn from the run's seed, so it only serves to measure what noise costs.
    """
    days = mean_day(samples).cpu()
    if not settings.graph.noise:
        return days
    streams = [torch_stream(settings.seed, name, "profile") for name in samples.names]
    rows = zip(days, streams, strict=True)
    return torch.stack(
        [noisy(day, "gaussian", settings.graph.noise, stream) for day, stream in rows]
    )


def read_weights(path: Path, names: str = "") -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Return the clients' names, and as weights [M, M] the larger weight of the two directions.

    The names are in the first line. The first column may have them too. If the file has only
    numbers, the names are in the header of another file, `names`. The diagonal is set to 0.
    """
    table = _table(path).to_numpy(dtype=str)
    if names:
        names_of_rows, numbers = _header(Path(names)), table
    else:
        names_of_rows, numbers = _split_names(table, path)
    if numbers.shape != (len(names_of_rows), len(names_of_rows)):
        raise DataError(
            f"{path}: {numbers.shape[0]} × {numbers.shape[1]} weights for {len(names_of_rows)} "
            "names; expected a row and a column for each name; if the file has only numbers, "
            "graph.names must name the file that has their names"
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
            f"{path}: its first line holds no names, or its first column holds others; if the file "
            "has only numbers, graph.names must name the file that has their names"
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
