"""One client's labelled sequences, ready to train: scaled, resampled, split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.sequences.clusters import Holding, Places
from fedproto_app.data.sequences.pool import SequencePool, Targets
from fedproto_app.data.sequences.preparation import resampled, scaling
from fedproto_app.data.sequences.split import Split, split_holding, why_refused
from fedproto_app.settings import DataSettings


@dataclass(frozen=True)
class LabelledSequences:
    """values: [n] arrays [T_i, d] float32. targets: [n] labels int64, or real numbers float64, in
    the data's units."""

    values: Sequence[NDArray[np.float32]]
    targets: Targets

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class ClientSequences:
    """The sequences of one client.

    group: its true cluster, or "". class_counts: train sequences of each class, in one row (there
    are no stages); () where the target is a real number. unlabelled: [u] arrays [T_i, d] float32,
    sequences to train on whose class nobody has told; none where a run does not learn from such.
    """

    name: str
    train: LabelledSequences
    validation: LabelledSequences
    test: LabelledSequences
    group: str = ""
    class_counts: tuple[tuple[int, ...], ...] = ()
    missing_share: float = 0.0
    note: str = ""
    unlabelled: Sequence[NDArray[np.float32]] = ()

    @property
    def train_samples(self) -> int:
        """Train sequences, with a label or without."""
        return len(self.train) + len(self.unlabelled)


def make_sequence_clients(
    pool: SequencePool,
    holdings: Sequence[Holding],
    settings: DataSettings,
    seed: int,
    *,
    unlabelled: bool = True,
) -> tuple[dict[str, ClientSequences], dict[str, str]]:
    """These clients with their sequences split and prepared, and why some cannot take part.

    unlabelled: whether they keep sequences without a label.
    """
    clients: dict[str, ClientSequences] = {}
    refused: dict[str, str] = {}
    for holding in holdings:
        split = split_holding(pool, holding, settings, seed)
        reason = why_refused(split, settings)
        if not unlabelled:
            split = replace(split, unlabelled=split.unlabelled[:0])
        if reason is None:
            clients[holding.name] = _client(pool, holding, split, settings)
        else:
            refused[holding.name] = reason
    return clients, refused


def _client(
    pool: SequencePool, holding: Holding, split: Split, settings: DataSettings
) -> ClientSequences:
    def read(places: Places) -> list[NDArray[np.float32]]:
        return [resampled(pool.sequences[place], settings.sequences.steps) for place in places]

    def targets(places: Places) -> Targets:
        own = pool.targets[places]
        return own if holding.names is None else holding.names[own.astype(np.int64)]

    train, unlabelled = read(split.train), read(split.unlabelled)
    scaled = scaling([*train, *unlabelled], settings.sequences)

    def labelled(sequences: list[NDArray[np.float32]], places: Places) -> LabelledSequences:
        return LabelledSequences([scaled(steps) for steps in sequences], targets(places))

    counts: tuple[tuple[int, ...], ...] = ()
    if pool.classes:
        labels = targets(split.train).astype(np.int64)
        counts = (tuple(np.bincount(labels, minlength=len(pool.classes)).tolist()),)
    return ClientSequences(
        holding.name,
        labelled(train, split.train),
        labelled(read(split.validation), split.validation),
        labelled(read(split.test), split.test),
        holding.group,
        counts,
        unlabelled=[scaled(steps) for steps in unlabelled],
    )
