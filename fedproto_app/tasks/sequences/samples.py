"""Sequences on the device, for a cohort and for a training step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SequenceBatch:
    """One training step's sequences of the first k clients of a cohort.

    inputs: [k, B, T, d], zeros after a sequence's end, or where the encoder does not learn
    (`encoded`) the representations [k, B, D]; lengths: [k, B]; targets: [k, B]; present: [k, B]
    float, 0 where a client's last batch is not full.
    """

    inputs: Tensor
    lengths: Tensor
    targets: Tensor
    present: Tensor
    encoded: bool = False


@dataclass(frozen=True)
class CohortSequences:
    """The train and test sequences of K clients, padded to the largest number and length.

    Clients are in falling order of their number of batches. The first `train_samples` of a client's
    train sequences have a label, the next `unlabelled` have none.
    """

    names: list[str]
    train_samples: list[int]
    unlabelled: list[int]
    batch_counts: list[int]
    values: Tensor  # [K, n, T, d], zeros after the end
    lengths: Tensor  # [K, n] int64, 1 in padding
    targets: Tensor  # [K, n] int64 labels, 0 without one, or float64 numbers in the data's units
    test_values: Tensor  # [K, m, T', d]: validation and test sequences
    test_lengths: Tensor  # [K, m]
    test_targets: Tensor  # [K, m]
    is_validation: Tensor  # [K, m] float
    is_test: Tensor  # [K, m] float
    representation: Tensor | None = None  # [K, n, D] if the encoder does not learn
    test_representation: Tensor | None = None  # [K, m, D] if computed already

    @property
    def trainable(self) -> list[int]:
        """The number of each client's train sequences, with or without a label."""
        return [*map(sum, zip(self.train_samples, self.unlabelled, strict=True))]

    @property
    def trained_stages(self) -> list[int]:
        """The stage of each client: always 0, as sequences have no stages."""
        return [0] * len(self.names)
