"""The charts of runs on sequences: clusters over the rounds, similar clients, embeddings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import (
    Axis,
    Chart,
    Line,
    Lines,
    Matrix,
    Points,
    Section,
    evenly_spaced,
)
from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.images.charts import partition_section
from fedproto_app.report.runs import read_clients, read_run
from fedproto_app.settings import Settings, settings_from

_MOST_RUNS = 3  # with clusters of their own
_FEWEST_ROUNDS = 2  # of a line
_MOST_POINTS = 3000  # more would hide each other

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Clusters:
    """The content of ``clusters.npz``, its N clients sorted by true group or else by last cluster.

    names, groups: [N]. rounds: [R]. labels: [R, N] cluster of each client, -1 for none.
    forgetting_factor, rand_index: [R], NaN where unknown. similarity: [M, N, N] of the rounds
    similarity_rounds [M], NaN where unknown. M is 0 without matrices.
    """

    names: NDArray[np.str_]
    groups: NDArray[np.str_]
    rounds: NDArray[np.int64]
    labels: NDArray[np.int64]
    forgetting_factor: NDArray[np.float64]
    rand_index: NDArray[np.float64]
    similarity: NDArray[np.float32]
    similarity_rounds: NDArray[np.int64]


@dataclass(frozen=True)
class Embeddings:
    """Sequences as vectors [n, D], with their targets [n] and clients [n].

    classes: names in the order of the labels, () if targets are real numbers. groups: [n] the
    clients' true groups, "" where unknown.
    """

    vectors: NDArray[np.float32]
    targets: NDArray[np.generic]
    classes: tuple[str, ...]
    clients: NDArray[np.str_]
    groups: NDArray[np.str_]


def sections(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Return the sections that the runs' artefacts allow. See `TaskReport.sections`."""
    folders = {
        label: folder
        for label, folder in {first: runs[first], **runs}.items()
        if (folder / "clusters.npz").exists()
    }
    charts: list[Chart] = []
    for label, folder in list(folders.items())[:_MOST_RUNS]:
        clusters = read_clusters(folder / "clusters.npz")
        charts += [
            timeline(label, clusters),
            *similarities(label, clusters)[-1:],
            *cluster_indices(label, clusters),
        ]
    about = (
        "The method groups similar clients into clusters and shares models inside them. Each row "
        "is a client and each colour a cluster; a row has settled once its colour stays the same."
    )
    by_cluster = [Section("Clusters of clients", about, charts)] if charts else []
    return [*by_cluster, *partition_section(runs[first])]


def pictures(run_dir: Path) -> dict[str, Sequence[Chart]]:
    """Return the charts of ``clusters.png``, ``similarity.png``, ``forgetting.png`` and
    ``embeddings.png``: the first three for a method with clusters, the last where the clients'
    vectors and the data can be read."""
    charts: dict[str, Sequence[Chart]] = {}
    if (run_dir / "clusters.npz").exists():
        clusters = read_clusters(run_dir / "clusters.npz")
        charts["clusters.png"] = [timeline(run_dir.name, clusters)]
        charts["similarity.png"] = similarities(run_dir.name, clusters)
        charts["forgetting.png"] = cluster_indices(run_dir.name, clusters)
    charts["embeddings.png"] = _embeddings_of(run_dir)
    return {name: drawn for name, drawn in charts.items() if drawn}


def read_clusters(file: Path) -> Clusters:
    """Return the findings of a run, its clients in the order of the charts."""
    with np.load(file, allow_pickle=False) as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    names, groups, labels = stored["names"], stored["groups"], stored["labels"]
    order = np.lexsort([names, groups if groups.any() else labels[-1]])
    matrices = stored.get("similarity", np.zeros((0, len(names), len(names)), np.float32))
    return Clusters(
        names=names[order],
        groups=groups[order],
        rounds=stored["rounds"],
        labels=labels[:, order],
        forgetting_factor=stored["forgetting_factor"],
        rand_index=stored["rand_index"],
        similarity=matrices[:, order[:, None], order],
        similarity_rounds=stored.get("similarity_rounds", np.zeros(0, np.int64)),
    )


def timeline(label: str, clusters: Clusters) -> Matrix:
    """Return a matrix of clients × rounds with the cluster of each client.

    The cluster is unknown in rounds without replies, and until a client's first reply.
    """
    rounds = np.arange(clusters.rounds[0], clusters.rounds[-1] + 1)
    cells = np.full((len(clusters.names), len(rounds)), np.nan)
    cells[:, clusters.rounds - rounds[0]] = np.where(clusters.labels < 0, np.nan, clusters.labels).T
    count = int(clusters.labels.max()) + 1
    moved = (clusters.labels[:-1] != clusters.labels[1:]).any(axis=0).sum()
    text = (
        f"Which of {count} clusters each client was in, rounds {rounds[0]} to {rounds[-1]}: "
        f"{moved} of {len(clusters.names)} clients changed theirs at least once."
    )
    return Matrix(
        f"{label}: cluster of each client", text, cells, "cluster",
        rows=clusters.names.tolist(), groups=clusters.groups.tolist(),
        columns=[str(number) for number in rounds], column_title="round",
        kinds=[f"cluster {number}" for number in range(count)],
    )  # fmt: skip


def similarities(label: str, clusters: Clusters) -> list[Matrix]:
    """Return ψ̂ of the rounds that stored it, with one scale."""
    cells = clusters.similarity.astype(np.float64)
    cells[:, np.eye(len(clusters.names), dtype=bool)] = np.nan
    finite = cells[np.isfinite(cells)]
    span = (float(finite.min()), float(finite.max())) if finite.size else None
    return [
        Matrix(
            f"{label}: similarity after round {number}",
            f"Heat map of how similar the heads of {len(matrix)} clients are after round {number}.",
            matrix, "smoothed similarity of the clients' heads",
            rows=clusters.names.tolist(), groups=clusters.groups.tolist(),
            column_title="the same clients in the same order", square=True, span=span,
        )
        for number, matrix in zip(clusters.similarity_rounds, cells, strict=True)
    ]  # fmt: skip


def cluster_indices(label: str, clusters: Clusters) -> list[Lines]:
    """Return a chart of the forgetting factor and the Rand index, as far as the run has them."""
    indices = {
        "Rand index (1: the true groups)": clusters.rand_index,
        "forgetting factor α (1: the past alone)": clusters.forgetting_factor,
    }
    lines = [
        Line(name, clusters.rounds.astype(np.float64), values, look=place)
        for place, (name, values) in enumerate(indices.items())
        if np.isfinite(values).sum() >= _FEWEST_ROUNDS
    ]
    if not lines:
        return []
    ends = ", ".join(f"{line.label} {line.y[np.isfinite(line.y)][-1]:.2f}" for line in lines)
    text = f"Line chart over the rounds; at the end {ends}."
    x, y = Axis("round", integers=True), Axis(limits=(0.0, 1.0))
    # A single line has no legend, so the title names it.
    title = "how settled the clusters are" if len(lines) > 1 else lines[0].label
    return [Lines(f"{label}: {title}", text, x, y, lines)]


def _embeddings_of(run_dir: Path) -> list[Points]:
    if not (run_dir / "state").is_dir():
        return []
    from safetensors import SafetensorError

    try:
        embeddings = read_embeddings(run_dir, settings_from(read_run(run_dir).settings))
    except (FedProtoError, SafetensorError, OSError) as error:
        _log.info("%s: no picture of the embeddings: %s", run_dir, error)
        return []
    return embedding_charts(embeddings)


def read_embeddings(run_dir: Path, settings: Settings) -> Embeddings:
    """Return the vectors of all clients that have some, with their targets.

    The vectors are in the node state of a simulation, the targets in the data. Raises `DataError`
    if the data cannot be read, and `FedProtoError` if no client has vectors, or if the vectors do
    not match each other or the data, which may have changed.
    """
    stored = _stored_vectors(run_dir)
    if not stored:
        raise FedProtoError(f"{run_dir / 'state'}: no client has vectors")
    if len({digest for digest, _ in stored.values()}) > 1:
        raise FedProtoError("the clients' vectors are of different encoders")
    from fedproto_app.data.sequences.clients import ClientSequences
    from fedproto_app.tasks.sequences.clients import load_shard

    shard = load_shard(settings, 0, 1)
    targets, groups = [], []
    for name, (_, vectors) in stored.items():
        client = shard.clients.get(name)
        if not isinstance(client, ClientSequences):
            raise FedProtoError(f"client {name!r} is not in the data, which have changed")
        parts = (client.train, client.validation, client.test)  # in the order of the vectors
        targets.append(np.concatenate([part.targets for part in parts]))
        groups.append(client.group)
        if len(targets[-1]) != len(vectors):
            raise FedProtoError(
                f"client {name!r} has {len(targets[-1])} sequences, but had {len(vectors)}"
            )
    counts = [len(part) for part in targets]
    return Embeddings(
        np.concatenate([vectors for _, vectors in stored.values()]),
        np.concatenate(targets),
        shard.shape.classes,
        np.repeat(np.array(list(stored)), counts),
        np.repeat(np.array(groups), counts),
    )


def _stored_vectors(run_dir: Path) -> dict[str, tuple[str, NDArray[np.float32]]]:
    """Return each client's encoder digest and vectors [n, D], where it has some."""
    from safetensors.numpy import load_file

    from fedproto_app.node.store import VECTORS_FILE, file_name

    vectors_of = {}
    table = read_clients(run_dir)
    for client, node in zip(table.clients, table.nodes, strict=True):
        file = run_dir / "state" / node / file_name(client) / VECTORS_FILE
        if file.exists():
            [(digest, vectors)] = load_file(file).items()
            vectors_of[client] = (digest, vectors)
    return vectors_of


def embedding_charts(embeddings: Embeddings) -> list[Points]:
    """Return charts of the sequences in the plane of their two principal components.

    One is coloured by target, the other by true group, or by client if groups are unknown.
    """
    total = len(embeddings.vectors)
    # In random order, as otherwise the last kind would hide the others.
    shown = np.random.default_rng(0).permutation(evenly_spaced(total, _MOST_POINTS))
    plane, shares = main_plane(embeddings.vectors)
    x = Axis(f"first principal component ({shares[0]:.0%} of the variance)")
    y = Axis(f"second principal component ({shares[1]:.0%})")
    count = f"{len(shown)} of {total}" if len(shown) < total else f"{total}"
    by_group = bool(embeddings.groups.any())
    owners, numbers = np.unique(
        embeddings.groups if by_group else embeddings.clients, return_inverse=True
    )
    colours = {
        "class" if embeddings.classes else "target": (embeddings.targets, embeddings.classes),
        "true group" if by_group else "client": (numbers, owners.tolist()),
    }
    return [
        Points(
            f"{count} sequences by {meaning}",
            f"Representations of {count} sequences in a plane, coloured by {meaning}.",
            x, y, plane[shown], values[shown], meaning, kinds,
        )
        for meaning, (values, kinds) in colours.items()
    ]  # fmt: skip


def main_plane(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float64], list[float]]:
    """Project vectors [n, D] on two principal components, [n, 2], and return variance shares too.

    The sign of each direction is chosen so that its largest entry is positive.
    """
    from sklearn.decomposition import PCA

    if (vectors == vectors[0]).all():
        return np.zeros((len(vectors), 2)), [0.0, 0.0]
    components = PCA(min(2, vectors.shape[1]), svd_solver="full")
    plane = components.fit_transform(vectors.astype(np.float64))
    shares = components.explained_variance_ratio_.tolist()
    return np.pad(plane, [(0, 0), (0, 2 - len(shares))]), [*shares, 0.0][:2]
