"""Prototypes of a cohort's clients, gathered during a training epoch without a second pass.

Both kinds take the representations of each step, [k, B, D] of the first k clients.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PeriodPrototype:
    """Periodicity-aware (P, eq. 8): the mean over the epoch's batches, [K, B, D]."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self.clear()

    def clear(self) -> None:
        """Forget the batches seen so far."""
        self._sum: Tensor | None = None
        self._count = torch.zeros(self._clients)

    def add(self, representation: Tensor, age: Tensor) -> None:
        """Take in one batch of the first k clients."""
        active = len(representation)
        if self._sum is None:
            self._sum = representation.new_zeros(self._clients, *representation.shape[1:])
        self._sum[:active] += representation
        self._count[:active] += 1

    def value(self) -> Tensor:
        """R_n, [K, B, D]."""
        assert self._sum is not None, "no batch was added"
        return self._sum / self._count.to(self._sum.device).view(-1, 1, 1)


class ConcatenatedPrototype:
    """Concatenation-based (P, eq. 7; ablation "w/o p-aware"): the rows of the newest `batches`
    batches, [K, batches·B, D], oldest first. All clients must have that many batches."""

    def __init__(self, clients: int, batches: int) -> None:
        self._clients, self._batches = clients, batches
        self.clear()

    def clear(self) -> None:
        """Forget the batches seen so far."""
        self._rows: Tensor | None = None

    def add(self, representation: Tensor, age: Tensor) -> None:
        """Take in one batch of the first k clients; age [k] counts the client's newer batches."""
        if self._rows is None:  # the last place is for batches that are too old
            shape = (self._clients, self._batches + 1, *representation.shape[1:])
            self._rows = representation.new_zeros(shape)
        place = torch.where(age < self._batches, self._batches - 1 - age, self._batches)
        self._rows[torch.arange(len(age), device=age.device), place] = representation

    def value(self) -> Tensor:
        """R_n, [K, batches·B, D]."""
        assert self._rows is not None, "no batch was added"
        return self._rows[:, : self._batches].flatten(start_dim=1, end_dim=2)
