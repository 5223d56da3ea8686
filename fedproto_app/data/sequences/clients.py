"""The labelled sequences of clients, split, resampled and scaled for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.sequences.partition import Holding, Places, Split, split_holding, why_refused
from fedproto_app.data.sequences.pool import SequencePool, Targets
from fedproto_app.settings import DataSettings, SequenceSettings

Steps = NDArray[np.float32]
Scaling = Callable[[Steps], Steps]


def _unscaled(steps: Steps) -> Steps:
    return steps


@dataclass(frozen=True)
class LabelledSequences:
    """Some sequences with their targets.

    values: [n] arrays [T_i, d] float32. targets: [n], labels as int64, or real numbers in the
    data's units as float64.
    """

    values: Sequence[Steps]
    targets: Targets

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class ClientSequences:
    """The sequences of one client.

    group: the true cluster, or "". class_counts: the number of train sequences of each class, in a
    single row as there are no stages, or () if the target is a real number. unlabelled: [u] arrays
    [T_i, d] float32, the train sequences without a label. It is empty if the run does not learn
    from them. learns_validation: whether the method also learns from the validation sequences.
    scaled: scales further sequences of the client, [T, d] each, like these.
    """

    name: str
    train: LabelledSequences
    validation: LabelledSequences
    test: LabelledSequences
    group: str = ""
    class_counts: tuple[tuple[int, ...], ...] = ()
    missing_share: float = 0.0
    note: str = ""
    unlabelled: Sequence[Steps] = ()
    learns_validation: bool = False
    scaled: Scaling = field(default=_unscaled, compare=False)

    @property
    def train_samples(self) -> int:
        """How many sequences the client learns from, with or without a label."""
        validation = len(self.validation) if self.learns_validation else 0
        return len(self.train) + len(self.unlabelled) + validation


def make_sequence_clients(
    pool: SequencePool,
    holdings: Sequence[Holding],
    settings: DataSettings,
    seed: int,
    *,
    unlabelled: bool = True,
) -> tuple[dict[str, ClientSequences], dict[str, str]]:
    """Return the clients of these holdings, and why some cannot take part.

    unlabelled: whether unlabelled sequences are kept.
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
    def read(places: Places) -> list[Steps]:
        return [resampled(pool.sequences[place], settings.sequences.steps) for place in places]

    def targets(places: Places) -> Targets:
        numbers = pool.targets[places]
        return numbers if holding.names is None else holding.names[numbers.astype(np.int64)]

    train, unlabelled = read(split.train), read(split.unlabelled)
    scaled = scaling([*train, *unlabelled], settings.sequences)

    def labelled(sequences: list[Steps], places: Places) -> LabelledSequences:
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
        scaled=scaled,
    )


def resampled(steps: Steps, longest: int) -> Steps:
    """Return the steps [T, d] as [min(T, longest), d], interpolated linearly between the ends.

    longest: the largest length. If it is 0, sequences of any length stay as they are.
    """
    if longest == 0 or len(steps) <= longest:
        return steps
    index, places = np.arange(len(steps)), np.linspace(0, len(steps) - 1, longest)
    columns = [np.interp(places, index, column) for column in steps.T]
    return np.stack(columns, axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Standardisation:
    """x → (x − mean) · factor for each dimension. mean, factor: [d] float64."""

    mean: NDArray[np.float64]
    factor: NDArray[np.float64]

    @classmethod
    def of(cls, train: Steps) -> Standardisation:
        """Return the one that gives these steps [S, d] mean 0 and deviation 1, 0 if constant."""
        deviation = train.std(axis=0, dtype=np.float64)
        constant = (train == train[0]).all(axis=0)
        factor = np.where(constant, 0.0, 1 / np.where(constant, 1.0, deviation))
        return cls(train.mean(axis=0, dtype=np.float64), factor)

    @classmethod
    def read(cls, numbers: Mapping[str, float]) -> Standardisation:
        """Return the one with these `numbers`."""
        places = range(len(numbers) // 2)
        mean, factor = ([numbers[f"{name} {n}"] for n in places] for name in ("mean", "factor"))
        return cls(np.array(mean), np.array(factor))

    def numbers(self) -> dict[str, float]:
        """Return the numbers that `read` needs, by name."""
        columns = {"mean": self.mean.tolist(), "factor": self.factor.tolist()}
        return {f"{name} {n}": x for name, column in columns.items() for n, x in enumerate(column)}

    def __call__(self, steps: Steps) -> Steps:
        return np.asarray((steps - self.mean) * self.factor, dtype=np.float32)


def scaling(train: Sequence[Steps], settings: SequenceSettings) -> Scaling:
    """Return the function that scales a client's sequences as ``data.sequences.scaling`` says.

    "auto" means "sequence" here, for methods that do not ask for anything else.

    train: the client's train sequences, at least one. For "client", means and deviations are
    computed from them alone.
    """
    if settings.scaling == "client":
        return Standardisation.of(np.concatenate(train))
    return scaling_from({}, settings)


def scaling_from(numbers: Mapping[str, float], settings: SequenceSettings) -> Scaling:
    """Return a client's `scaling` again. numbers: see `scaling_numbers`."""
    if settings.scaling == "client":
        return Standardisation.read(numbers)
    return _unscaled if settings.scaling == "none" else scaled_by_itself


def scaling_numbers(scaled: Scaling) -> dict[str, float]:
    """Return the numbers that a client's scaling has from the train sequences, {} for none."""
    return scaled.numbers() if isinstance(scaled, Standardisation) else {}


def scaled_by_itself(steps: Steps) -> Steps:
    """Return the steps [T, d] minus their mean over time, divided by one scale.

    The scale is the root of the mean variance over dimensions, so that a shape keeps its
    proportions. A constant sequence becomes zeros.
    """
    if (steps == steps[0]).all():
        return np.zeros_like(steps)
    centred = steps - steps.mean(axis=0, dtype=np.float64)
    return np.asarray(centred / np.sqrt(np.square(centred).mean()), dtype=np.float32)
