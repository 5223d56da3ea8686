"""Which client holds which sequences: clusters of clients with one mix of labels, or as given.

Only targets are looked at. Everything is drawn from a stream of the seed, so every node that loads
the same sequences finds the same clients, whichever of them it hosts.
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
Names = NDArray[np.int64]  # [C] of each class of the pool, what a client calls it

_MANY_CLASSES = 20  # in more orders than there are clients
_LEAST_WEIGHT = 1e-9  # Dirichlet shares can be so small that they are 0


@dataclass(frozen=True)
class Holding:
    """One client. group: its true cluster, or "". places: of its sequences, ascending. names: None
    where it calls classes as the pool does."""

    name: str
    group: str
    places: Places
    names: Names | None = None


def deal_sequences(pool: SequencePool, settings: DataSettings, seed: int) -> list[Holding]:
    """Who holds which sequences, by `data.clusters`; those that the node chose, the first
    ``data.max-clients`` of them.

    Raises `DataError` if there are too few, or no classes to make mixes of.
    """
    if settings.clusters.scheme == "given":
        holdings = _given(pool, settings.title)
    else:
        _require_dealable(pool, settings)
        rng = numpy_stream(seed, "clusters")
        labels = pool.targets.astype(np.int64)
        holdings = _dealt(labels, len(pool.classes), settings.clusters, rng)
        if settings.clusters.renamed:
            holdings = _renamed(holdings, len(pool.classes), numpy_stream(seed, "class names"))
    return chosen(holdings, lambda one: one.name, settings, settings.path or settings.source)


def cluster_sizes(clients: int, clusters: int) -> list[int]:
    """⌊N / C⌋ clients each, and the remainder besides in the last: 50 in 3 are 16, 16 and 18."""
    each = clients // clusters
    return [each] * (clusters - 1) + [clients - each * (clusters - 1)]


def draw_mixes(classes: int, settings: ClusterSettings, rng: Generator) -> NDArray[np.float64]:
    """[N, classes] each client's distribution of labels: its cluster's, from Dirichlet(β, …, β)."""
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
    wanted = max(1, settings.clusters.samples)
    if clients * wanted > total:
        each = f" with data.clusters.samples = {wanted}" if settings.clusters.samples else ""
        labelled = " with a label" if total < len(pool.targets) else ""
        raise DataError(
            f"data.clusters.clients = {clients}: {settings.source} has {total} sequences"
            f"{labelled}, enough for at most {total // wanted} clients{each}"
        )


def _dealt(
    labels: NDArray[np.int64], classes: int, settings: ClusterSettings, rng: Generator
) -> list[Holding]:
    """The clients of the scheme "dirichlet", each with the same number of sequences.

    Every client's mix of labels is the one nearest to its cluster's distribution (by maximum
    entropy) that the sequences there are allow for all clients together: none is dealt twice.
    Sequences without a label have no place in a mix and are dealt to nobody.
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
        own = [places[a:b] for places, a, b in zip(by_class, first, end, strict=True)]
        name = f"client-{client:0{digits}d}"
        holdings.append(Holding(name, f"cluster-{group}", np.sort(np.concatenate(own))))
    return holdings


def _renamed(holdings: list[Holding], classes: int, rng: Generator) -> list[Holding]:
    """The same, each cluster with names for the classes that no other one has."""
    names: dict[str, Names] = {}
    for group in sorted({one.group for one in holdings}):
        drawn = rng.permutation(classes)
        while any((drawn == others).all() for others in names.values()):
            drawn = rng.permutation(classes)
        names[group] = drawn
    return [replace(one, names=names[one.group]) for one in holdings]


def _given(pool: SequencePool, default_name: str) -> list[Holding]:
    """The source's own clients, in ascending order of names; without any, one has all.

    A client that only the groups name is one without sequences.
    """
    if pool.clients is None:
        return [Holding(default_name, "", np.arange(len(pool.targets)))]
    names = sorted({*pool.clients.tolist(), *pool.groups})
    return [
        Holding(name, pool.groups.get(name, ""), np.flatnonzero(pool.clients == name))
        for name in names
    ]
