"""What a page shows of runs on sequences: clusters over the rounds, how alike clients are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedproto_app.report.images.page_pictures import partition_section
from fedproto_app.report.page.charts import Axis, Chart, Line, Lines, Matrix, Section
from fedproto_app.report.sequences.cluster_pictures import Clusters, read_clusters

_MOST_RUNS = 3  # with clusters of their own
_FEWEST_ROUNDS = 2  # of a line


def sequence_sections(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Each where its artefacts are there."""
    found = {
        label: read_clusters(at / "clusters.npz")
        for label, at in {first: runs[first], **runs}.items()
        if (at / "clusters.npz").exists()
    }
    shown = dict(list(found.items())[:_MOST_RUNS])
    charts: list[Chart] = []
    for label, one in shown.items():
        charts += [_timeline(label, one), *_similarity(label, one), *_indices(label, one)]
    about = (
        "The method puts clients that seem alike into clusters, in which they share. A row is a "
        "client and a colour a cluster; rows that keep a colour to the right have settled."
    )
    clusters = [Section("Clusters of clients", about, charts)] if charts else []
    return [*clusters, *partition_section(runs[first])]


def _timeline(label: str, found: Clusters) -> Matrix:
    rounds = np.arange(found.rounds[0], found.rounds[-1] + 1)
    cells = np.full((len(found.names), len(rounds)), np.nan)
    cells[:, found.rounds - rounds[0]] = np.where(found.labels < 0, np.nan, found.labels).T
    count = int(found.labels.max()) + 1
    moved = (found.labels[:-1] != found.labels[1:]).any(axis=0).sum()
    text = (
        f"Who was in which of {count} clusters in rounds {rounds[0]} to {rounds[-1]}: {moved} of "
        f"{len(found.names)} clients changed theirs at least once."
    )
    return Matrix(
        f"{label}: cluster of each client", text, cells, "cluster",
        rows=found.names.tolist(), groups=found.groups.tolist() if found.groups.any() else (),
        columns=[str(number) for number in rounds], column_title="round",
        kinds=[f"cluster {number}" for number in range(count)],
    )  # fmt: skip


def _similarity(label: str, found: Clusters) -> list[Matrix]:
    if not len(found.similarity):
        return []
    cells = found.similarity[-1].astype(np.float64)
    np.fill_diagonal(cells, np.nan)
    number = int(found.similarity_rounds[-1])
    text = f"Heat map of how similar the heads of {len(cells)} clients are after round {number}."
    return [
        Matrix(
            f"{label}: similarity after round {number}", text, cells, "similarity of heads",
            rows=found.names.tolist(), groups=found.groups.tolist() if found.groups.any() else (),
            column_title="the same clients in the same order", square=True,
        )
    ]  # fmt: skip


def _indices(label: str, found: Clusters) -> list[Lines]:
    lines = [
        Line(name, found.rounds.astype(np.float64), values, look=number)
        for number, (name, values) in enumerate(
            {
                "Rand index (1: the true groups)": found.rand_index,
                "forgetting factor (1: the past alone)": found.forgetting_factor,
            }.items()
        )
        if np.isfinite(values).sum() >= _FEWEST_ROUNDS
    ]
    if not lines:
        return []
    ends = ", ".join(f"{one.label} {one.y[np.isfinite(one.y)][-1]:.2f}" for one in lines)
    text = f"Line chart over the rounds; at the end {ends}."
    x, y = Axis("round", whole=True), Axis("", limits=(0.0, 1.0))
    # One line has no legend, so the heading says what it is.
    what = "how settled the clusters are" if len(lines) > 1 else lines[0].label
    return [Lines(f"{label}: {what}", text, x, y, lines)]
