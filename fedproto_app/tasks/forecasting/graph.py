"""Build the graph over clients of series by ``[graph]``, on a server or in one process.

Weights of edges come from a file, from places, or from profiles. A profile is a client's mean
standardised day over its train part, one value per phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import torch_stream
from fedproto_app.data.graph_files import Place, cell_of, read_places, read_weights
from fedproto_app.maths.graph import Adjacency, weights_of_places, weights_of_profiles
from fedproto_app.maths.noise import noisy
from fedproto_app.settings import GraphSettings, Settings
from fedproto_app.tasks.forecasting.task import CohortSamples, mean_day


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
        """Return the adjacency of these clients, [N, N]; unknown or unnamed clients have no edges.

        profiles: [N, B] of the same clients, NaN if missing; needed for source "profiles" only.
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

    The noise is drawn from the run's seed, so it is for experiments on the cost of noise only.
    """
    days = mean_day(samples).cpu()
    if not settings.graph.noise:
        return days
    streams = [torch_stream(settings.seed, name, "profile") for name in samples.names]
    rows = zip(days, streams, strict=True)
    return torch.stack(
        [noisy(day, "gaussian", settings.graph.noise, stream) for day, stream in rows]
    )
