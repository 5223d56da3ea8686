"""What a pool of sequences holds, and what dealing it to clients would come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.csv_source import SUFFIX
from fedproto_app.data.file_tree import opened as opened_tree
from fedproto_app.data.images.decoding import SUFFIXES as IMAGE_SUFFIXES
from fedproto_app.data.npz_archive import header
from fedproto_app.data.npz_archive import opened as opened_archive
from fedproto_app.data.sequences.clients import ClientSequences, make_sequence_clients
from fedproto_app.data.sequences.clusters import Holding, deal_sequences
from fedproto_app.data.sequences.pool import SequencePool, Targets
from fedproto_app.data.sequences.split import split_holding, why_refused
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings

Counts = NDArray[np.int64]

_NARROWEST_IMAGE = 4  # pixels; fewer uint8 values in a row are dimensions of a step


@dataclass(frozen=True)
class DealtClient:
    """One client: its true cluster, or "", the targets [n] of its three parts, why a run would
    leave it out."""

    name: str
    group: str
    train: Targets
    validation: Targets
    test: Targets
    refused: str | None

    @property
    def targets(self) -> Targets:
        """Of all three parts."""
        return np.concatenate([self.train, self.validation, self.test])


@dataclass(frozen=True)
class Dealing:
    """Who would hold what. prepared: the clients that can take part, scaled and resampled."""

    clients: tuple[DealtClient, ...]
    prepared: tuple[ClientSequences, ...]

    @property
    def refused(self) -> dict[str, str]:
        """The reason for each client that a run would leave out."""
        return {one.name: one.refused for one in self.clients if one.refused is not None}

    @property
    def groups(self) -> dict[str, list[DealtClient]]:
        """The clients of each true cluster, in ascending order; without those that have none."""
        names = sorted({one.group for one in self.clients if one.group})
        return {name: [one for one in self.clients if one.group == name] for name in names}

    @property
    def value_range(self) -> tuple[float, float] | None:
        """The lowest and the highest value that models would see."""
        parts = [
            steps
            for one in self.prepared
            for part in (one.train, one.validation, one.test)
            for steps in part.values
        ]
        if not parts:
            return None
        return min(float(steps.min()) for steps in parts), max(float(s.max()) for s in parts)


def inspect_dealing(pool: SequencePool, settings: DataSettings, seed: int) -> Dealing:
    """Deal the sequences as a run with these settings and this seed would.

    Raises `DataError` if they are too few, or cannot be dealt so.
    """
    holdings = deal_sequences(pool, settings, seed)
    prepared, _ = make_sequence_clients(pool, holdings, settings, seed)
    return Dealing(
        tuple(_dealt(pool, holding, settings, seed) for holding in holdings),
        tuple(prepared.values()),
    )


def _dealt(pool: SequencePool, holding: Holding, settings: DataSettings, seed: int) -> DealtClient:
    split = split_holding(pool, holding, settings, seed)
    return DealtClient(
        holding.name,
        holding.group,
        pool.targets[split.train],
        pool.targets[split.validation],
        pool.targets[split.test],
        why_refused(split, settings),
    )


def class_counts(clients: Sequence[DealtClient], classes: int) -> Counts:
    """[N, C] sequences of each class in all parts of each client."""
    labels = [one.targets.astype(np.int64) for one in clients]
    return np.stack([np.bincount(own, minlength=classes) for own in labels])


def constant_sequences(pool: SequencePool) -> int:
    """Sequences whose steps are all alike, such as those of one step."""
    return sum(bool((steps == steps[0]).all()) for steps in pool.sequences)


def sequence_source_of(path: Path) -> str | None:
    """The source of labelled sequences that reads this path, or None.

    Told from names, and in npz archives from the shapes of the arrays. Recordings look like series:
    they are never told.
    """
    name = path.name.lower()
    if name.endswith(".ts") or (path.is_dir() and any(path.glob("*.ts"))):
        return "uea-ts"
    if not path.exists():
        return None
    try:
        if name.endswith(".npz") and path.is_file():
            return "sequence-npz" if _has_sequence_arrays(path) else None
        if name.endswith(".zip") or path.is_dir():
            return "sequence-folder" if _has_files_of_classes(path) else None
    except (DataError, OSError):
        pass  # its reader will say what is wrong with it
    return None


def _has_sequence_arrays(path: Path) -> bool:
    with path.open("rb") as file, opened_archive(file, path) as archive:
        if {"points", "offsets"} <= set(archive.files):
            return True
        for name in ("x", "x_train"):
            if name in archive.files:
                shape, dtype = header(archive, name, path)
                grey = name == "x_train" and dtype == np.uint8 and shape[-1] >= _NARROWEST_IMAGE
                return len(shape) == 3 and not grey
    return False


def _has_files_of_classes(path: Path) -> bool:
    """Whether there are CSV files, all of them in folders, and no image."""
    with opened_tree(path) as tree:
        names = tree.names()
    files = [name for name in names if SUFFIX.search(name)]
    images = any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names)
    return bool(files) and all("/" in name for name in files) and not images
