"""Deal sequences to clients: in clusters with a common mix of labels, or as the source gives them.

Only targets are read. Everything is drawn from a stream of the seed, so every node that loads the
same sequences makes the same clients, whichever of them it hosts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.choice import chosen
from fedproto_app.data.mixes import spread
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import ClusterSettings, DataSettings

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # of sequences in the pool
Names = NDArray[np.int64]  # [C] a client's label for each class of the pool

_MANY_CLASSES = 20  # they have more orders than there can be clients
_LEAST_WEIGHT = 1e-9  # Dirichlet shares can be so small that they are 0


@dataclass(frozen=True)
class Holding:
    """The sequences of one client. group: the true cluster, or "". places: of its sequences,
    ascending. names: None if its labels are those in the pool."""

    name: str
    group: str
    places: Places
    names: Names | None = None


def deal_sequences(pool: SequencePool, settings: DataSettings, seed: int) -> list[Holding]:
    """Return the sequences of each client, by `data.clusters`, for the first ``data.max-clients``
    of the chosen clients.

    Raises `DataError` if there are too few sequences, or no classes to mix.
    """
    if settings.clusters.scheme == "given":
        holdings = _source_clients(pool, settings.title)
    else:
        _require_dealable(pool, settings)
        rng = numpy_stream(seed, "clusters")
        labels = pool.targets.astype(np.int64)
        holdings = _dealt(labels, len(pool.classes), settings.clusters, rng)
        if settings.clusters.renamed:
            holdings = _renamed(holdings, len(pool.classes), numpy_stream(seed, "class names"))
    return chosen(
        holdings, lambda holding: holding.name, settings, settings.path or settings.source
    )


def cluster_sizes(clients: int, clusters: int) -> list[int]:
    """Return ⌊N / C⌋ clients for each cluster; the last cluster also gets the remainder.

    50 clients in 3 clusters are 16, 16 and 18.
    """
    size = clients // clusters
    return [size] * (clusters - 1) + [clients - size * (clusters - 1)]


def draw_mixes(classes: int, settings: ClusterSettings, rng: Generator) -> NDArray[np.float64]:
    """Draw the label distribution of each client, [N, classes], by cluster, from Dirichlet(β)."""
    drawn = rng.dirichlet(np.full(classes, settings.beta), settings.clusters)
    sizes = cluster_sizes(settings.clients, settings.clusters)
    return np.repeat(np.maximum(drawn, _LEAST_WEIGHT), sizes, axis=0)


def _require_dealable(pool: SequencePool, settings: DataSettings) -> None:
    if not pool.classes:
        raise DataError(
            "data.clusters.scheme = 'dirichlet': clusters differ in their mix of classes, but the "
            f"targets of {settings.source} are real numbers; set data.clusters.scheme = 'given'"
        )
    orders = math.factorial(min(len(pool.classes), _MANY_CLASSES))
    if settings.clusters.renamed and settings.clusters.clusters > orders:
        raise DataError(
            f"data.clusters.clusters = {settings.clusters.clusters}: with data.clusters.renamed at "
            f"most {orders}, the orders of {len(pool.classes)} classes of {settings.source}"
        )
    clients, total = settings.clusters.clients, int(pool.has_target.sum())
    fewest = max(1, settings.clusters.samples)
    if clients * fewest > total:
        quota = f" with data.clusters.samples = {fewest}" if settings.clusters.samples else ""
        labelled = " with a label" if total < len(pool.targets) else ""
        raise DataError(
            f"data.clusters.clients = {clients}: {settings.source} has {total} sequences"
            f"{labelled}, enough for at most {total // fewest} clients{quota}"
        )


def _dealt(
    labels: NDArray[np.int64], classes: int, settings: ClusterSettings, rng: Generator
) -> list[Holding]:
    """Return the clients of the scheme "dirichlet", each with the same number of sequences.

    Every client's mix of labels is the closest to its cluster's distribution, by maximum entropy,
    that the sequences allow for all clients together, as none is dealt twice. Sequences without a
    label are not dealt.
    """
    mixes = draw_mixes(classes, settings, rng)
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    samples = settings.samples or int(counts.sum()) // settings.clients
    shares = spread(mixes, np.zeros(mixes.shape, dtype=np.int64), samples, counts)  # (N, C)
    by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    ends = np.cumsum(shares, axis=0)
    sizes = cluster_sizes(settings.clients, settings.clusters)
    groups = np.repeat(np.arange(settings.clusters), sizes)
    digits = max(3, len(str(settings.clients - 1)))
    holdings = []
    for client, (group, first, end) in enumerate(zip(groups, ends - shares, ends, strict=True)):
        client_places = [places[a:b] for places, a, b in zip(by_class, first, end, strict=True)]
        name = f"client-{client:0{digits}d}"
        holdings.append(Holding(name, f"cluster-{group}", np.sort(np.concatenate(client_places))))
    return holdings


def _renamed(holdings: list[Holding], classes: int, rng: Generator) -> list[Holding]:
    """Return the holdings with the class names permuted, differently for every cluster."""
    names: dict[str, Names] = {}
    for group in sorted({holding.group for holding in holdings}):
        drawn = rng.permutation(classes)
        while any((drawn == other_names).all() for other_names in names.values()):
            drawn = rng.permutation(classes)
        names[group] = drawn
    return [replace(holding, names=names[holding.group]) for holding in holdings]


def _source_clients(pool: SequencePool, default_name: str) -> list[Holding]:
    """Return the source's clients in ascending order of names, or one client with all sequences.

    A client that is only in the pool's groups has no sequences.
    """
    if pool.clients is None:
        return [Holding(default_name, "", np.arange(len(pool.targets)))]
    names = sorted({*pool.clients.tolist(), *pool.groups})
    return [
        Holding(name, pool.groups.get(name, ""), np.flatnonzero(pool.clients == name))
        for name in names
    ]
