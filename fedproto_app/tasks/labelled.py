"""The common part of all tasks whose samples have a target.

The samples are images, or sequences of any length. The target is a class or a real number. An
encoder turns a sample into a vector, and a head predicts the target from it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.errors import DataError
from fedproto_app.maths.class_gaussian import LabelledVectors
from fedproto_app.models.model import HEAD, Model
from fedproto_app.tasks.task import ClientT, Task, at_once, in_padded, shuffled

NewSamples = Sequence[Any] | NDArray[Any]  # images, or sequences of any lengths

# Samples per client that are encoded without gradients, and their values. They bound the memory.
ENCODED_AT_ONCE, MOST_VALUES = 256, 2**21


@dataclass(frozen=True)
class LabelledBatch:
    """One training step's samples of the first k clients of a cohort.

    inputs: [k, B, …] float, as the encoder takes them. If the encoder does not train (`encoded`),
    they are the representations [k, B, D]. targets: [k, B]. present: [k, B] float, 0 where a
    client's last batch is not full. lengths: [k, B] of sequences, whose inputs are 0 after the end.
    """

    inputs: Tensor
    targets: Tensor
    present: Tensor
    lengths: Tensor | None = None
    encoded: bool = False


@dataclass(frozen=True, kw_only=True)
class LabelledSamples:
    """The train and test samples of K clients in a round, padded with zeros to the largest number.

    Clients are in falling order of their number of batches.
    """

    names: list[str]
    train_samples: list[int]  # samples with a target, which are trained on in this round
    batch_counts: list[int]
    values: Tensor  # [K, n, …]
    targets: Tensor  # [K, n] int64 labels, or float64 numbers in the data's units
    test_values: Tensor  # [K, m, …]: validation and test samples
    test_targets: Tensor  # [K, m]
    is_validation: Tensor  # [K, m] float
    is_test: Tensor  # [K, m] float
    test_stages: Tensor | None = None  # [K, m], None where samples have no stages
    lengths: Tensor | None = None  # [K, n] int64 of sequences, 1 in padding
    test_lengths: Tensor | None = None  # [K, m]
    representation: Tensor | None = None  # [K, n, D] if the encoder does not learn
    test_representation: Tensor | None = None  # [K, m, D] if computed already


LabelledT = TypeVar("LabelledT", bound=LabelledSamples)


class LabelledTask(Task[ClientT, LabelledT, LabelledBatch]):
    """The base of tasks on samples with a target."""

    head = HEAD

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """The number of samples in a full batch."""

    @abstractmethod
    def inputs_of(
        self, samples: LabelledT, order: Tensor, generators: Sequence[torch.Generator]
    ) -> Callable[[Tensor, slice], Tensor]:
        """Return the function that turns stored values into an epoch's inputs.

        It takes values [k, B, …] and the columns of `order` [K, n] that they come from.
        """

    @abstractmethod
    def read(self, path: Path) -> tuple[Sequence[str], NewSamples]:
        """Return the names and values of the samples in a file, or in a folder or archive of files.
        Samples without names have their numbers, from 0. Raises `DataError` if they do not fit."""

    @abstractmethod
    def stored(
        self, scale: Mapping[str, float], samples: NewSamples
    ) -> tuple[Tensor, Tensor | None]:
        """Return new samples of a client as `LabelledSamples` has them, [1, n, …], and the lengths
        of sequences, [1, n]. scale: the client's `Task.scale`. Raises `DataError` for samples of
        another type or shape."""

    def predictions(
        self, parameters: Mapping[str, Tensor], scale: Mapping[str, float], samples: NewSamples
    ) -> Tensor:
        """Return the head's outputs for new samples of a client, [n, outputs].

        parameters: the client's model, without the client axis. scale: the client's `Task.scale`.
        """
        if not hasattr(samples, "__len__"):
            raise DataError(f"the samples are {samples!r}, expected an array or a list")
        values, lengths = self.stored(scale, samples)
        model = {name: value.unsqueeze(0).to(self.device) for name, value in parameters.items()}
        return self.predict(model, self.encode_all(model, values, lengths))[0]

    def batches(
        self, samples: LabelledT, generators: Sequence[torch.Generator]
    ) -> Iterator[LabelledBatch]:
        size, longest_epoch = self.batch_size, samples.batch_counts[0]
        order, present = shuffled(samples.train_samples, longest_epoch * size, generators)
        fixed = samples.representation
        as_inputs = self.inputs_of(samples, order, generators) if fixed is None else None
        client_rows = torch.arange(len(samples.names), device=self.device).unsqueeze(1)
        order, present = order.to(self.device), present.to(self.device)
        for step in range(longest_epoch):
            k = sum(count > step for count in samples.batch_counts)
            columns = slice(step * size, (step + 1) * size)
            picked = client_rows[:k], order[:k, columns]
            stored = samples.values if fixed is None else fixed
            yield LabelledBatch(
                as_inputs(stored[picked], columns) if as_inputs else stored[picked],
                samples.targets[picked],
                present[:k, columns],
                None if samples.lengths is None else samples.lengths[picked],
                encoded=fixed is not None,
            )

    def fix_encoder(self, parameters: Mapping[str, Tensor], samples: LabelledT) -> LabelledT:
        """Represent every train sample once, without augmentation."""
        representation = self.encode_all(parameters, samples.values, samples.lengths)
        return replace(samples, representation=representation)

    def represent(self, parameters: Mapping[str, Tensor], batch: LabelledBatch) -> Tensor:
        if batch.encoded:
            return batch.inputs
        return self.encode(parameters, batch.inputs, batch.lengths)

    def encode(
        self,
        parameters: Mapping[str, Tensor],
        inputs: Tensor,
        lengths: Tensor | None = None,
        model: Model | None = None,
    ) -> Tensor:
        """Return representations [k, B, D] float32 of inputs [k, B, …], in mixed precision if set.

        lengths: [k, B] of sequences. model: None for the task's model.
        """
        with self.mixed_precision():
            arguments = (inputs,) if lengths is None else (inputs, lengths)
            return (model or self.model).encode(parameters, *arguments).float()

    @torch.no_grad()
    def encode_all(
        self, parameters: Mapping[str, Tensor], values: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """Encode stored values [K, n, …] in chunks, without gradients: [K, n, D]."""
        size = max(1, min(ENCODED_AT_ONCE, MOST_VALUES // max(1, prod(values.shape[2:]))))
        size = at_once(size, len(values))
        chunks = torch.split(values, size, dim=1)
        counts = [None] * len(chunks) if lengths is None else torch.split(lengths, size, dim=1)
        parts = zip(chunks, counts, strict=True)
        return torch.cat(
            [self.encode(parameters, self.normalised(x), count) for x, count in parts], dim=1
        )

    def normalised(self, values: Tensor) -> Tensor:
        """Return the encoder's inputs for stored values, without augmentation."""
        return values

    def train_vectors(
        self, parameters: Mapping[str, Tensor], samples: LabelledT
    ) -> LabelledVectors:
        """Return the encoder's vectors of this round's train samples.

        Sequences without a label are marked as not present.
        """
        present = in_padded(samples.train_samples, samples.targets.shape[1], self.device)
        features = self.encode_all(parameters, samples.values, samples.lengths)
        return LabelledVectors(features, samples.targets, present)

    def validation_vectors(
        self, parameters: Mapping[str, Tensor], samples: LabelledT, stages: Tensor | None = None
    ) -> LabelledVectors:
        """Return the encoder's vectors of the validation samples.

        stages: how many of each client's stages count, [K]. None: all that the client has.
        """
        kept = samples.is_validation
        if stages is not None:
            of_sample = 0 if samples.test_stages is None else samples.test_stages
            kept = kept * (of_sample < stages.unsqueeze(1))
        # Only validation samples are encoded, as there may be many more test samples.
        longest = max(1, int(samples.is_validation.sum(dim=1).max()))
        places = samples.is_validation.argsort(dim=1, descending=True, stable=True)[:, :longest]
        rows = torch.arange(len(places), device=places.device).unsqueeze(1), places
        if samples.test_representation is None:
            lengths = None if samples.test_lengths is None else samples.test_lengths[rows]
            features = self.encode_all(parameters, samples.test_values[rows], lengths)
        else:
            features = samples.test_representation[rows]
        return LabelledVectors(features, samples.test_targets[rows], kept[rows])

    def tests_encoded(self, parameters: Mapping[str, Tensor], samples: LabelledT) -> LabelledT:
        """Return the samples with vectors of validation and test samples, for a fixed encoder."""
        return replace(samples, test_representation=self.test_vectors(parameters, samples))

    def test_vectors(self, parameters: Mapping[str, Tensor], samples: LabelledT) -> Tensor:
        """Return the encoder's vectors of the validation and test samples, [K, m, D]."""
        if samples.test_representation is not None:
            return samples.test_representation
        return self.encode_all(parameters, samples.test_values, samples.test_lengths)

    def loss(self, prediction: Tensor, batch: LabelledBatch) -> Tensor:
        """Return the mean cross-entropy over each client's samples in the batch, [k] (GLDP, eq. 2).

        prediction: logits [k, B, C].
        """
        flat = prediction.flatten(end_dim=1), batch.targets.flatten()
        loss = functional.cross_entropy(*flat, reduction="none").view_as(batch.present)
        return (loss * batch.present).sum(dim=1) / batch.present.sum(dim=1)


def numbered(samples: Sized) -> list[str]:
    """Return the numbers of samples, from 0, as their names."""
    return [str(number) for number in range(len(samples))]


def as_array(values: Any, name: str) -> NDArray[np.generic]:
    """Return values as an array. Raises `DataError` if they do not form one."""
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(f"{name}: expected an array, got parts of different shapes") from None
    except RuntimeError as error:  # a tensor that needs a gradient, or on another device
        raise DataError(f"{name}: {error}") from None


def masked_mean(values: Tensor, mask: Tensor) -> list[float]:
    """Return the mean of each client's values [K, m] under the mask, 0 if the mask is empty."""
    means: list[float] = ((values * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).tolist()
    return means
