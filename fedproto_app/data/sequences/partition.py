"""Deal sequences to clients, and split each client's sequences into train, validation and test.

The source gives the clients, or they are drawn in clusters, each with one mix of labels. Only
targets are read. Everything is drawn from a stream of the seed, so every node that loads the same
sequences makes the same clients, whichever of them it hosts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.mixes import client_names, deal, dirichlet_mixes, split_off, spread
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.source_checks import chosen
from fedproto_app.settings import ClusterSettings, DataSettings

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # places of sequences in the pool
Names = NDArray[np.int64]  # [C], for each class of the pool, the client's label for it

_MANY_CLASSES = 20  # so many classes have more orders than there can be clients


@dataclass(frozen=True)
class Holding:
    """The sequences of one client.

    group: the true cluster, or "". places: the places of its sequences, ascending. names: its own
    labels, or None if they are those in the pool.
    """

    name: str
    group: str
    places: Places
    names: Names | None = None


def deal_sequences(pool: SequencePool, settings: DataSettings, seed: int) -> list[Holding]:
    """Return the sequences of each client according to `data.clusters`.

    Only the first ``data.max-clients`` of the chosen clients are returned. Raises `DataError` if
    there are too few sequences, or no classes to mix.
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
    """Return the number of clients in each cluster: ⌊N / C⌋, and in the last also the remainder.

    For instance, 50 clients in 3 clusters are 16, 16 and 18.
    """
    size = clients // clusters
    return [size] * (clusters - 1) + [clients - size * (clusters - 1)]


def draw_mixes(classes: int, settings: ClusterSettings, rng: Generator) -> NDArray[np.float64]:
    """Draw from Dirichlet(β) the label distribution of each cluster's clients, [N, classes]."""
    drawn = dirichlet_mixes(classes, settings.beta, settings.clusters, rng)
    return np.repeat(drawn, cluster_sizes(settings.clients, settings.clusters), axis=0)


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

    A client's mix of labels is as close to its cluster's distribution, by maximum entropy, as the
    sequences allow for all clients together. No sequence is dealt twice. Sequences without a label
    are not dealt.
    """
    mixes = draw_mixes(classes, settings, rng)
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    samples = settings.samples or int(counts.sum()) // settings.clients
    shares = spread(mixes, np.zeros(mixes.shape, dtype=np.int64), samples, counts)  # (N, C)
    by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    sizes = cluster_sizes(settings.clients, settings.clusters)
    groups = [f"cluster-{group}" for group, size in enumerate(sizes) for _ in range(size)]
    rows = zip(client_names(settings.clients), groups, deal(by_class, shares), strict=True)
    return [Holding(*row) for row in rows]


def _renamed(holdings: list[Holding], classes: int, rng: Generator) -> list[Holding]:
    """Return the holdings with the class names permuted in a different way for every cluster."""
    names: dict[str, Names] = {}
    for group in sorted({holding.group for holding in holdings}):
        drawn = rng.permutation(classes)
        while any((drawn == other_names).all() for other_names in names.values()):
            drawn = rng.permutation(classes)
        names[group] = drawn
    return [replace(holding, names=names[holding.group]) for holding in holdings]


def _source_clients(pool: SequencePool, default_name: str) -> list[Holding]:
    """Return the source's clients in ascending order of names.

    If the source gives none, one client has all sequences. A client that is only in the pool's
    groups has no sequences.
    """
    if pool.clients is None:
        return [Holding(default_name, "", np.arange(len(pool.targets)))]
    names = sorted({*pool.clients.tolist(), *pool.groups})
    return [
        Holding(name, pool.groups.get(name, ""), np.flatnonzero(pool.clients == name))
        for name in names
    ]


@dataclass(frozen=True)
class Split:
    """Places of a client's sequences in the pool. unlabelled: train sequences without a label."""

    train: Places
    validation: Places
    test: Places
    unlabelled: Places = field(default_factory=lambda: np.zeros(0, np.int64))


def split_holding(pool: SequencePool, holding: Holding, settings: DataSettings, seed: int) -> Split:
    """Split the client's sequences by ``data.train-share`` and ``data.validation-share``.

    The remaining share is the test part. With classes, sequences are drawn from a stream of the
    client's name, class by class as far as whole numbers allow. At least one sequence of each class
    is for training. With real targets, the pool's order stays, train first and test last, because
    neighbouring windows of a recording are alike. Overlapping windows still share steps across the
    borders of the parts. If the source has a split and its clients are taken as given, its test
    sequences are the test part, and the shares apply to the other sequences.

    ``data.clusters.labels`` limits the labelled train sequences and the validation sequences to
    this number each, drawn regardless of class. The client also trains on sequences without a
    label. With ``data.clusters.unlabelled``, the train sequences above the limit are kept too, but
    without their labels.
    """
    rng = numpy_stream(seed, "sequences", holding.name)
    labelled, unlabelled = _parted_by(pool.has_target, holding.places)
    fit_share = settings.train_share + settings.validation_share
    if pool.is_test is not None and settings.clusters.scheme == "given":
        test, remaining = _parted_by(pool.is_test, labelled)
        _, unlabelled = _parted_by(pool.is_test, unlabelled)
    else:
        remaining, test = _parted(pool, labelled, 1 - fit_share, rng)
    train, validation = _parted(pool, remaining, settings.validation_share / fit_share, rng)
    if labels := settings.clusters.labels:
        draws = numpy_stream(seed, "labels", holding.name)
        shuffled = draws.permutation(train)
        train, without_label = np.sort(shuffled[:labels]), shuffled[labels:]
        validation = np.sort(draws.permutation(validation)[:labels])
        if settings.clusters.unlabelled:
            unlabelled = np.sort(np.concatenate([unlabelled, without_label]))
    return Split(train, validation, test, unlabelled)


def _parted_by(mask: NDArray[np.bool_], places: Places) -> tuple[Places, Places]:
    """Divide places into those where the mask [n] over the pool is set, and the others."""
    in_mask = mask[places]
    return places[in_mask], places[~in_mask]


def _parted(
    pool: SequencePool, places: Places, share: float, rng: np.random.Generator
) -> tuple[Places, Places]:
    """Return the places that stay and the places that are held out, which are this share of all."""
    if pool.classes:
        return split_off(places, pool.targets[places].astype(np.int64), share, rng)
    remaining = len(places) - int(np.floor(share * len(places) + 0.5 + 1e-9))
    return places[:remaining], places[remaining:]


def why_refused(split: Split, settings: DataSettings) -> str | None:
    """Return why a client with this split cannot take part, or None if it can."""
    parts = {"train": split.train, "validation": split.validation, "test": split.test}
    empty = [title for title, places in parts.items() if not len(places)]
    if not empty:
        return None
    if len(empty) == len(parts) and len(split.unlabelled):
        return f"no sequence with a label among its {len(split.unlabelled)}"
    if len(empty) == len(parts):
        window = f" of data.sequences.window = {settings.sequences.window} steps"
        return "no sequence" + (window if settings.source == "recordings" else "")
    dealt = settings.clusters.scheme != "given"
    labelled = " with a label" if len(split.unlabelled) else ""
    return (
        f"no {empty[0]} sequence among its {sum(map(len, parts.values()))}{labelled}: "
        f"data.train-share = {settings.train_share:g}, "
        f"data.validation-share = {settings.validation_share:g}"
        + f", data.clusters.clients = {settings.clusters.clients}"
        * dealt
    )
