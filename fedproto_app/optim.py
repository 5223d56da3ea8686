"""Adam for a cohort: every client has its own moments and its own step count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam


class CohortAdam:
    """Adam (Kingma and Ba 2015) on parameters with a leading client axis.

    One fused call updates a run of neighbouring clients that have taken equally many steps, so a
    cohort in step costs one call, and a client that sat out rounds keeps its own bias correction.

    first, second: moment estimates, [K, …] per parameter. steps: [K] int64 per parameter.
    """

    def __init__(
        self, first: dict[str, Tensor], second: dict[str, Tensor], steps: dict[str, Tensor]
    ) -> None:
        self.first, self.second, self.steps = first, second, steps

    @classmethod
    def fresh(cls, parameters: Mapping[str, Tensor]) -> CohortAdam:
        """Zero moments, zero steps."""
        return cls(
            {name: torch.zeros_like(value) for name, value in parameters.items()},
            {name: torch.zeros_like(value) for name, value in parameters.items()},
            {
                name: torch.zeros(len(value), dtype=torch.int64)
                for name, value in parameters.items()
            },
        )

    @torch.no_grad()
    def step(
        self,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        learning_rate: float,
    ) -> None:
        """Update in place the first k clients of `parameters`, k being the gradients' length.

        The parameters named by `gradients` must have been stepped together so far.
        """
        names = list(gradients)
        active = len(gradients[names[0]])
        for run in _equal_runs(self.steps[names[0]][:active].tolist()):
            count = self.steps[names[0]][run][0]
            adam(
                [parameters[name][run] for name in names],
                [gradients[name][run] for name in names],
                [self.first[name][run] for name in names],
                [self.second[name][run] for name in names],
                [],
                [count.to(parameters[name].device, torch.float32) for name in names],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=learning_rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )
        for name in names:
            self.steps[name][:active] += 1


def _equal_runs(values: Sequence[int]) -> Iterator[slice]:
    """Maximal slices of equal neighbours."""
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[start]:
            yield slice(start, end)
            start = end
