"""What clusters did over the rounds: who was where, how similar clients were, how much was kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.report.drawing import category_colours, look, mark_whole, plot_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED_CLIENTS = 40  # more names than that cannot be read
_NAMED_CLUSTERS = 20  # more colours than that cannot be told apart
_NAMED_GROUPS = 25
_CLUSTERS_IN_A_ROW = 7  # of the legend
_MATRICES_IN_A_ROW = (4, 5)  # whichever fills the rows better
_ABSENT = "0.9"  # grey of a client in no cluster


@dataclass(frozen=True)
class Clusters:
    """``clusters.npz``, with its N clients by true group; by the last cluster if there are none.

    names, groups: [N]. rounds: [R]. labels: [R, N] cluster of each client, -1 for none.
    forgetting_factor, rand_index: [R], NaN where unknown. similarity: [M, N, N], NaN where unknown,
    of the rounds similarity_rounds [M]; M = 0 where no matrix was kept.
    """

    names: NDArray[np.str_]
    groups: NDArray[np.str_]
    rounds: NDArray[np.int64]
    labels: NDArray[np.int64]
    forgetting_factor: NDArray[np.float64]
    rand_index: NDArray[np.float64]
    similarity: NDArray[np.float32]
    similarity_rounds: NDArray[np.int64]


def cluster_pictures(run_dir: Path) -> dict[str, Figure]:
    """clusters.png, similarity.png, forgetting.png; empty for a method without clusters."""
    if not (run_dir / "clusters.npz").exists():
        return {}
    found = read_clusters(run_dir / "clusters.npz")
    figures = {"clusters.png": draw_timeline(found, run_dir.name)}
    if len(found.similarity):
        figures["similarity.png"] = draw_similarity(found, run_dir.name)
    if not (np.isnan(found.forgetting_factor).all() and np.isnan(found.rand_index).all()):
        figures["forgetting.png"] = draw_forgetting(found, run_dir.name)
    return figures


def read_clusters(file: Path) -> Clusters:
    """The findings of a run, its clients in the order of the pictures."""
    with np.load(file, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    names, groups, labels = found["names"], found["groups"], found["labels"]
    order = np.lexsort([names, groups if groups.any() else labels[-1]])
    matrices = found.get("similarity", np.zeros((0, len(names), len(names)), np.float32))
    return Clusters(
        names=names[order],
        groups=groups[order],
        rounds=found["rounds"],
        labels=labels[:, order],
        forgetting_factor=found["forgetting_factor"],
        rand_index=found["rand_index"],
        similarity=matrices[:, order[:, None], order],
        similarity_rounds=found.get("similarity_rounds", np.zeros(0, np.int64)),
    )


def draw_timeline(found: Clusters, name: str) -> Figure:
    """Clients × rounds, the colour is the cluster; true groups at the right, with lines between.

    A round that changed nothing, since nobody answered, is grey as a client not heard yet is.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    rounds = np.arange(found.rounds[0], found.rounds[-1] + 1)
    labels = np.full((len(rounds), len(found.names)), -1)
    labels[found.rounds - rounds[0]] = found.labels
    count = int(labels.max()) + 1
    colours = category_colours(count)
    height = float(np.clip(0.22 * len(found.names), 1.6, 8.5))
    figure = Figure(figsize=(10, height + 1.7), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    axes.imshow(
        labels.T,
        cmap=ListedColormap([_ABSENT, *colours]),
        vmin=-1.5,
        vmax=count - 0.5,
        extent=(rounds[0] - 0.5, rounds[-1] + 0.5, len(found.names) - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
    )
    _name_clients(axes, found.names)
    _mark_groups(axes, found.groups, "black")
    mark_whole(axes)
    axes.set(xlabel="round")
    if count <= _NAMED_CLUSTERS:
        _name_clusters(figure, colours, absent=bool((labels < 0).any()))
    figure.suptitle(f"{name}: cluster of each client ({count} clusters)", fontsize=12)
    return figure


def _name_clients(axes: Axes, names: NDArray[np.str_]) -> None:
    if len(names) <= _NAMED_CLIENTS:
        axes.set_yticks(range(len(names)), names.tolist(), fontsize=8)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(names)} clients")


def _name_clusters(figure: Figure, colours: list[Any], absent: bool) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=colour, label=f"cluster {number}") for number, colour in enumerate(colours)
    ]
    if absent:
        patches.append(Patch(facecolor=_ABSENT, label="none"))
    rows = ceil(len(patches) / _CLUSTERS_IN_A_ROW)
    figure.legend(handles=patches, loc="outside lower center", ncols=ceil(len(patches) / rows))


def group_bounds(groups: NDArray[np.str_]) -> list[int]:
    """Where each true group starts, and the end of the last; groups [N] stand side by side."""
    return [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(groups)]


def _mark_groups(axes: Axes, groups: NDArray[np.str_], colour: str) -> None:
    """Lines between the true groups, their names at the right; nothing where they are unknown."""
    if not groups.any():
        return
    bounds = group_bounds(groups)
    for edge in bounds[1:-1]:
        axes.axhline(edge - 0.5, color=colour, linewidth=1.5)
    if len(bounds) - 1 > _NAMED_GROUPS:
        return
    middles = [(first + end - 1) / 2 for first, end in pairwise(bounds)]
    right = axes.secondary_yaxis("right")
    right.set_yticks(middles, groups[bounds[:-1]].tolist(), fontsize=9)
    right.set_ylabel("true group")
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)


def draw_similarity(found: Clusters, name: str) -> Figure:
    """ψ̂ of some rounds as small heat maps with one scale; lines between the true groups."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    others = found.similarity[:, ~np.eye(len(found.names), dtype=bool)]
    known = others[~np.isnan(others)]
    lowest, highest = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    count = len(found.similarity)
    columns = min(count, min(_MATRICES_IN_A_ROW, key=lambda some: -count % some))
    rows = ceil(count / columns)
    figure = Figure(figsize=(2.5 * columns + 1.2, 2.7 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    colours = colormaps["viridis"].with_extremes(bad=_ABSENT)
    for axes in panels.flat[count:]:
        axes.set_visible(False)
    for axes, matrix, number in zip(
        panels.flat, found.similarity, found.similarity_rounds, strict=False
    ):
        axes.grid(False)
        image = axes.imshow(
            matrix, cmap=colours, vmin=lowest, vmax=highest, interpolation="nearest"
        )
        axes.set_title(f"round {number}", fontsize=10)
        axes.set(xticks=[], yticks=[])
        if found.groups.any():
            for edge in group_bounds(found.groups)[1:-1]:
                axes.axhline(edge - 0.5, color="white", linewidth=1)
                axes.axvline(edge - 0.5, color="white", linewidth=1)
    label = "smoothed similarity of the clients' heads"
    figure.colorbar(image, ax=panels, label=label, shrink=0.8, extend="max")
    by = "true group" if found.groups.any() else "last cluster"
    figure.suptitle(f"{name}: {len(found.names)} clients by {by}", fontsize=12)
    return figure


def draw_forgetting(found: Clusters, name: str) -> Figure:
    """The forgetting factor and the Rand index of each round, whichever are known."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    lines = {
        "Rand index (1: the true groups)": found.rand_index,
        "forgetting factor α (1: the past alone)": found.forgetting_factor,
    }
    for number, (label, values) in enumerate(lines.items()):
        known = [None if np.isnan(value) else float(value) for value in values]
        plot_known(axes, found.rounds.tolist(), known, label=label, **look(number))
    axes.set(xlabel="round", ylim=(-0.03, 1.05))
    mark_whole(axes)
    figure.legend(loc="outside lower center", ncols=2)
    axes.set_title(name)
    return figure
