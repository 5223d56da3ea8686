"""Samples of series on the device, for a cohort and for a training step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One training step's samples of the first k clients of a cohort.

    inputs: [k, B, c + Q·H + j]; augmented: the same, temporally shifted, or None if not requested;
    targets, present: [k, B, H]; age: [k], how many batches of the client are newer.
    """

    inputs: Tensor
    augmented: Tensor | None
    targets: Tensor
    present: Tensor
    age: Tensor


@dataclass(frozen=True)
class CohortSamples:
    """The samples of K clients, padded to the longest client and most batches.

    Clients stand in falling order of their number of batches, so the clients that still train at
    step s are the first `active(s)` ones.
    """

    names: list[str]
    inputs: Tensor  # [K, n, c + Q·H + j]
    targets: Tensor  # [K, n, H]
    present: Tensor  # [K, n, H] float, 0 where the target is missing or padding
    batches: Tensor  # [K, S, B] int64 sample numbers; 0 in padding
    batch_counts: list[int]
    is_validation: Tensor  # [K, n, H] float
    is_test: Tensor  # [K, n, H] float
    std: Tensor  # [K] float64, the data's units per unit of the standardised scale
    mean: Tensor  # [K] float64, the train mean in the data's units
    seasonal_difference: Tensor  # [K] float64, of the train part, in the data's units
    starts: list[int]  # on the source's clock, of each client's first sample
    lengths: list[int]  # samples of each client

    @property
    def train_samples(self) -> list[int]:
        """The number of samples in each client's batches, its weight in sample-weighted means."""
        return [count * self.batches.shape[2] for count in self.batch_counts]

    def active(self, step: int) -> int:
        """Return how many clients have more than `step` batches."""
        return sum(count > step for count in self.batch_counts)
