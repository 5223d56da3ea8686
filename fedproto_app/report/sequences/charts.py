"""Make the charts of runs on sequences: clusters over the rounds, and similar clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import Axis, Chart, Line, Lines, Matrix, Section
from fedproto_app.report.images.charts import partition_section

_MOST_RUNS = 3  # runs whose clusters are shown
_FEWEST_ROUNDS = 2  # points of a line


@dataclass(frozen=True)
class Clusters:
    """The content of ``clusters.npz``, with N clients sorted by true group, else by last cluster.

    names, groups: [N]. rounds: [R]. labels: [R, N], each client's cluster, -1 for none.
    forgetting_factor, rand_index: [R], NaN where unknown. similarity: [M, N, N], a matrix for each
    of the rounds in similarity_rounds [M], NaN where unknown. M is 0 without matrices.
    """

    names: NDArray[np.str_]
    groups: NDArray[np.str_]
    rounds: NDArray[np.int64]
    labels: NDArray[np.int64]
    forgetting_factor: NDArray[np.float64]
    rand_index: NDArray[np.float64]
    similarity: NDArray[np.float32]
    similarity_rounds: NDArray[np.int64]


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
    """Return the charts of ``clusters.png``, ``similarity.png`` and ``forgetting.png``.

    Only methods with clusters have them.
    """
    if not (run_dir / "clusters.npz").exists():
        return {}
    clusters = read_clusters(run_dir / "clusters.npz")
    charts: dict[str, Sequence[Chart]] = {
        "clusters.png": [timeline(run_dir.name, clusters)],
        "similarity.png": similarities(run_dir.name, clusters),
        "forgetting.png": cluster_indices(run_dir.name, clusters),
    }
    return {name: drawn for name, drawn in charts.items() if drawn}


def read_clusters(file: Path) -> Clusters:
    """Return the content of a run's ``clusters.npz``, with the clients in the charts' order."""
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
        f"Which of {count} clusters each client was in, in rounds {rounds[0]} to {rounds[-1]}: "
        f"{moved} of {len(clusters.names)} clients changed theirs at least once."
    )
    return Matrix(
        f"{label}: cluster of each client", text, cells, "cluster",
        rows=clusters.names.tolist(), groups=clusters.groups.tolist(),
        columns=[str(number) for number in rounds], column_title="round",
        kinds=[f"cluster {number}" for number in range(count)],
    )  # fmt: skip


def similarities(label: str, clusters: Clusters) -> list[Matrix]:
    """Return a chart of the similarity ψ̂ for each round that stored it, all on one scale."""
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
    """Return a chart of the forgetting factor and the Rand index, or of either alone."""
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
