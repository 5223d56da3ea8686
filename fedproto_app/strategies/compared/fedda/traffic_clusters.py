"""FedDA's clusters at the server: it collects, checks and compares clients' statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.data.windows import lookback_text, shortest_length
from fedproto_app.maths.clustering import Labels, by_first_appearance
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.client_graph import ClientGraph
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.compared.fedda import FedDaSettings
from fedproto_app.strategies.compared.fedda.learner import STATISTICS
from fedproto_app.tasks.forecasting.weekly_statistics import weeks_needed

# FedDA's clusters (Zhang et al., INFOCOM 2021) use the clients' measurements and their places.

MOST_TURNS = 20

Points = NDArray[np.float64]


def two_view_clusters(
    patterns: Points, places: Points | None, clusters: int, seed: int = 0
) -> Labels:
    """Run k-means on the patterns and on the places in turns, each from the other's clusters.

    Stops when the clusters of the patterns no longer change, or after 20 turns. Without places it
    is k-means of the patterns. Labels [N] are numbered by first appearance; equal points can leave
    fewer than C. patterns: [N, m]; places: [N, 2]; clusters: C ≤ N; seed: for the first centres
    (k-means++).
    """
    first = KMeans(min(clusters, len(np.unique(patterns, axis=0))), n_init=10, random_state=seed)
    labels = by_first_appearance(first.fit(patterns).labels_.astype(np.int64))
    for _ in range(MOST_TURNS if places is not None else 0):
        assert places is not None
        before = labels
        labels = _k_means(patterns, _k_means(places, labels))
        if (labels == before).all():
            break
    return labels


def centroids(points: Points, labels: Labels) -> Points:
    """Return the mean point of each of the clusters 0 … C−1, [C, m]."""
    return np.stack([points[labels == label].mean(axis=0) for label in range(labels.max() + 1)])


def nearest(points: Points, centres: Points) -> Labels:
    """Return the index of the nearest centre [C, m] for each of the points [N, m]: [N]."""
    distances = ((points[:, None] - centres) ** 2).sum(axis=2)
    labels: Labels = distances.argmin(axis=1)
    return labels


def _k_means(points: Points, start: Labels) -> Labels:
    """Run Lloyd's algorithm from the centroids of these clusters."""
    centres = np.unique(centroids(points, start), axis=0)
    fitted = KMeans(len(centres), init=centres, n_init=1).fit(points)
    return by_first_appearance(fitted.labels_.astype(np.int64))


# Standardised statistics have mean square 1, or 0; noise adds its variance, up to chance.
LARGEST_FACTOR = 2.0
MOST_CLUSTERS, CLIENTS_OF_CLUSTER = 16, 4  # unless fedda.clusters sets the number

Statistics = dict[ClientKey, NDArray[np.float32]]  # [W, B] each


class TrafficClusters:
    """State: each client's cluster, and the clusters' mean statistics [C, W·B].

    label_of: the cluster of each client whose statistics were accepted. Raises `SettingsError` if
    the history that clients train on is too short for statistics.
    """

    def __init__(self, settings: Settings, section: FedDaSettings, federation: Federation) -> None:
        self._settings, self._section, self._federation = settings, section, federation
        self._graph = (
            ClientGraph(settings, federation) if settings.graph.source == "positions" else None
        )
        self.label_of: dict[ClientKey, int] = {}
        self._centres: NDArray[np.float64] | None = None
        self._needed = weeks_needed(settings.data)
        history = settings.data.history
        if 0 < history < section.week * self._needed:
            raise SettingsError(f"data.history = {history}: {self._what_it_needs()}")

    @property
    def weeks(self) -> int:
        """W, the number of weeks that all clients had at the beginning."""
        if self._centres is not None:
            return int(self._centres.shape[1]) // self._settings.data.period
        facts = self._federation.members.facts
        weeks_of_clients = [
            self._weeks(facts[key].samples) for key in self._federation.members.clients()
        ]
        return min(
            (weeks for weeks in weeks_of_clients if weeks >= self._needed), default=self._needed
        )

    def askable(self, round_: Round) -> list[ClientKey]:
        """Return the connected clients without accepted statistics whose history is long enough.

        A client with a shorter history is refused, with the length needed.
        """
        weeks, able = self.weeks, []
        for key in self._federation.members.clients():
            samples = round_.facts[key].samples
            if key in self.label_of:
                continue
            if self._weeks(samples) >= weeks:
                able.append(key)
            else:
                periods = samples // self._settings.data.period
                reason = f"it trains on {periods} periods; {self._what_it_needs(weeks)}"
                round_.refused[key] = reason
        return able

    def why_nobody(self) -> str:
        """Return why no client's statistics can be used."""
        return f"no client has statistics that can be used; {self._what_it_needs()}"

    def standardised(self, replies: Sequence[ClientReply], round_: Round) -> Statistics:
        """Return the statistics in these replies; refuse clients with unstandardised ones."""
        limit = LARGEST_FACTOR * (1 + self._section.statistics_noise**2)
        usable: Statistics = {}
        for reply in replies:
            statistics = reply.arrays[STATISTICS]
            if (size := float(np.square(statistics.astype(np.float64)).mean())) > limit:
                reason = f"its statistics have mean square {size:.3g}, more than {limit:g}"
                round_.refused[reply.key] = reason
            else:
                usable[reply.key] = statistics
        return usable

    def begin(self, statistics: Statistics) -> None:
        """Cluster these clients."""
        keys = sorted(statistics)
        patterns = _flat(statistics, keys)
        clusters = self._section.clusters or min(
            MOST_CLUSTERS, max(1, len(keys) // CLIENTS_OF_CLUSTER)
        )
        places = None if self._graph is None else self._graph.places(keys)
        if places is not None and not np.isfinite(places).all():
            places = None  # a client has no place: use statistics alone
        labels = two_view_clusters(patterns, places, min(clusters, len(keys)), self._settings.seed)
        self._centres = centroids(patterns, labels)
        self.label_of = dict(zip(keys, labels.tolist(), strict=True))

    def join(self, statistics: Statistics) -> None:
        """Assign later clients to the cluster with the nearest mean statistics."""
        assert self._centres is not None
        keys = sorted(statistics)
        if keys:
            labels = nearest(_flat(statistics, keys), self._centres)
            self.label_of |= dict(zip(keys, labels.tolist(), strict=True))

    def members(self) -> dict[str, NDArray[Any]]:
        """Return names, nodes and clusters, rows in the same order."""
        keys = sorted(self.label_of)
        return {**key_arrays(keys), "clusters": np.array([self.label_of[key] for key in keys])}

    def state(self) -> dict[str, NDArray[Any]]:
        assert self._centres is not None
        return {**self.members(), "centres": self._centres}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if state:
            labels = state["clusters"].tolist()
            self.label_of = dict(zip(keys_of(state), labels, strict=True))
            self._centres = state["centres"]

    def _weeks(self, samples: int) -> int:
        return samples // (self._section.week * self._settings.data.period)

    def _what_it_needs(self, weeks: int | None = None) -> str:
        data, weeks = self._settings.data, weeks or self._needed
        periods = self._section.week * weeks
        return (
            f"method = 'fedda' needs {periods} periods to train on, which a series of "
            f"{shortest_length(data, periods)} steps has: {weeks} weeks of fedda.week = "
            f"{self._section.week} periods, for {lookback_text(data)}"
        )


def _flat(statistics: Statistics, keys: list[ClientKey]) -> NDArray[np.float64]:
    """Return the clients' statistics as rows, [N, W·B]."""
    return np.stack([statistics[key].ravel() for key in keys]).astype(np.float64)
