"""Sequences in memory: the clients of a cohort, and one training step of them."""

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
    """What K clients train on and are tested on, padded to the most and the longest.

    Clients stand in falling order of their number of batches. Of a client's n train sequences the
    first `train_samples` have a label, the next `unlabelled` have none.
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
    representation: Tensor | None = None  # [K, n, D] where the encoder does not learn
    test_representation: Tensor | None = None  # [K, m, D] where it was made before

    @property
    def trainable(self) -> list[int]:
        """Each client's train sequences, with a label or without."""
        return [*map(sum, zip(self.train_samples, self.unlabelled, strict=True))]

    @property
    def trained_stages(self) -> list[int]:
        """The stage that each client trains on: sequences come all at once."""
        return [0] * len(self.names)
