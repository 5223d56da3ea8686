"""Prototypes gathered during an epoch, by hand."""

from __future__ import annotations

import torch

from fedproto_app.strategies.common.prototypes import ConcatenatedPrototype, PeriodPrototype


def rows(*values: float) -> torch.Tensor:
    """One batch of B = 2 rows, D = 1, per client: value and value + 0.5."""
    return torch.tensor([[[v], [v + 0.5]] for v in values])


def test_periodicity_aware_is_the_mean_over_each_clients_own_batches() -> None:
    prototype = PeriodPrototype(2)
    prototype.add(rows(1, 10), torch.tensor([0, 0]))
    prototype.add(rows(3), torch.tensor([1]))  # the second client has no more batches
    assert prototype.value().tolist() == [[[2.0], [2.5]], [[10.0], [10.5]]]
    prototype.clear()
    prototype.add(rows(7, 8), torch.tensor([0, 0]))
    assert prototype.value().tolist() == [[[7.0], [7.5]], [[8.0], [8.5]]]


def test_concatenated_holds_the_newest_batches_oldest_first() -> None:
    prototype = ConcatenatedPrototype(2, batches=2)
    prototype.add(rows(1, 10), torch.tensor([0, 1]))  # in shuffled order
    prototype.add(rows(2, 20), torch.tensor([2, 0]))  # the first client's oldest is left out
    prototype.add(rows(3), torch.tensor([1]))
    assert prototype.value()[..., 0].tolist() == [[3.0, 3.5, 1.0, 1.5], [10.0, 10.5, 20.0, 20.5]]
