"""What the encoder makes of the clients' sequences, in the plane of its two main directions.

The vectors stand in the node state that a simulation leaves behind, their targets in the data.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.drawing import category_colours
from fedproto_app.report.runs import read_clients, read_run
from fedproto_app.settings import Settings, settings_from

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 3000  # more would hide each other
_NAMED = 20  # kinds; more colours than that cannot be told apart

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Embeddings:
    """Sequences as vectors [n, D], each with its target [n] and whose it is [n].

    classes: names in the order of the labels; () where the target is a real number. groups: [n] the
    clients' true groups, "" where unknown.
    """

    vectors: NDArray[np.float32]
    targets: NDArray[Any]
    classes: tuple[str, ...]
    clients: NDArray[np.str_]
    groups: NDArray[np.str_]


def embedding_picture(run_dir: Path) -> dict[str, Figure]:
    """embeddings.png, where the clients' vectors and the data are there."""
    if not (run_dir / "state").is_dir():
        return {}
    from safetensors import SafetensorError

    try:
        found = read_embeddings(run_dir, settings_from(read_run(run_dir).settings))
    except (FedProtoError, SafetensorError, OSError) as error:
        _log.info("%s: no picture of what the encoder makes: %s", run_dir, error)
        return {}
    return {"embeddings.png": draw_embeddings(found, run_dir.name)}


def read_embeddings(run_dir: Path, settings: Settings) -> Embeddings:
    """The vectors of all clients that have some, with their targets.

    Raises `DataError` if the data cannot be read, and `FedProtoError` if no client has vectors, or
    if they do not fit each other or the data: it is another one now.
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
            raise FedProtoError(f"client {name!r} is not in the data any more")
        parts = (client.train, client.validation, client.test)  # as the vectors stand
        targets.append(np.concatenate([part.targets for part in parts]))
        groups.append(client.group)
        if len(targets[-1]) != len(vectors):
            raise FedProtoError(
                f"client {name!r} has {len(targets[-1])} sequences, but had {len(vectors)}"
            )
    counts = [len(its) for its in targets]
    return Embeddings(
        np.concatenate([vectors for _, vectors in stored.values()]),
        np.concatenate(targets),
        shard.shape.classes,
        np.repeat(np.array(list(stored)), counts),
        np.repeat(np.array(groups), counts),
    )


def _stored_vectors(run_dir: Path) -> dict[str, tuple[str, NDArray[np.float32]]]:
    """For each client that has some: the digest of the encoder, and vectors [n, D]."""
    from safetensors.numpy import load_file

    from fedproto_app.node.encoder_files import VECTORS_FILE, file_name

    found = {}
    for row in read_clients(run_dir):
        file = run_dir / "state" / row["node"] / file_name(row["client"]) / VECTORS_FILE
        if file.exists():
            [(digest, vectors)] = load_file(file).items()
            found[row["client"]] = (digest, vectors)
    return found


def main_plane(vectors: NDArray[np.floating[Any]]) -> tuple[NDArray[np.float64], list[float]]:
    """Principal components: vectors [n, D] → [n, 2], and the share of the variance of each axis.

    Of each direction the sign is such that its largest entry is positive.
    """
    from sklearn.decomposition import PCA

    if (vectors == vectors[0]).all():
        return np.zeros((len(vectors), 2)), [0.0, 0.0]
    components = PCA(min(2, vectors.shape[1]), svd_solver="full")
    plane = components.fit_transform(vectors.astype(np.float64))
    shares = components.explained_variance_ratio_.tolist()
    return np.pad(plane, [(0, 0), (0, 2 - len(shares))]), [*shares, 0.0][:2]


def draw_embeddings(found: Embeddings, name: str) -> Figure:
    """Left coloured by target, right by true group, or by client where groups are unknown."""
    from matplotlib.figure import Figure

    total = len(found.vectors)
    shown = np.arange(min(total, _MOST_POINTS)) * total // min(total, _MOST_POINTS)
    shown = np.random.default_rng(0).permutation(shown)  # else the last kind would hide the others
    plane, shares = main_plane(found.vectors)
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    if found.classes:
        _plot_kinds(left, plane[shown], found.targets[shown], found.classes)
        left.set_title("by class")
    else:
        across, up = plane[shown].T
        points = left.scatter(across, up, c=found.targets[shown], cmap="viridis", **_DOTS)
        figure.colorbar(points, ax=left, location="bottom", label="target", shrink=0.7)
        left.set_title("by target")
    owners = found.groups if found.groups.any() else found.clients
    kinds, numbers = np.unique(owners, return_inverse=True)
    _plot_kinds(right, plane[shown], numbers[shown], kinds.tolist())
    right.set_title("by true group" if found.groups.any() else "by client")
    for axes in (left, right):
        axes.set_xlabel(f"first principal component ({shares[0]:.0%} of the variance)")
    left.set_ylabel(f"second principal component ({shares[1]:.0%})")
    some = f"{len(shown)} of {total}" if len(shown) < total else f"{total}"
    figure.suptitle(f"{name}: representations of {some} sequences", fontsize=12)
    return figure


_DOTS: dict[str, Any] = {"s": 9, "linewidth": 0, "alpha": 0.75}


def _plot_kinds(
    axes: Axes, plane: NDArray[np.float64], kinds: NDArray[Any], names: Sequence[str]
) -> None:
    """Points [n, 2] in the colours of their kinds [n], each the index of a name."""
    from matplotlib.lines import Line2D

    colours = category_colours(len(names))
    axes.scatter(plane[:, 0], plane[:, 1], c=[colours[kind] for kind in kinds], **_DOTS)
    if len(names) <= _NAMED:
        entries = [
            Line2D([], [], marker="o", linestyle="", color=colour, markersize=5, label=name)
            for colour, name in zip(colours, names, strict=True)
        ]
        axes.legend(
            handles=entries,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.13),
            ncols=min(len(names), 5),
            handletextpad=0.1,
        )
