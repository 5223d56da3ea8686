"""Optimisers for a cohort: every client has its own moments and its own step count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class CohortOptimizer(ABC):
    """Updates parameters with a leading client axis.

    state: what a client keeps between rounds, {kind: {parameter: [K, …]}}, zero at first.
    """

    state: dict[str, dict[str, Tensor]]

    @abstractmethod
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Update in place the first k clients of `parameters`, k being the gradients' length.

        The parameters named by `gradients` must have been stepped together so far.
        """

    @torch.no_grad()
    def renew(self, clients: Tensor) -> None:
        """Reset the state of these clients, [K] bool, to zero."""
        values = [value for tensors in self.state.values() for value in tensors.values()]
        on = {device: clients.to(device) for device in {value.device for value in values}}
        for value in values:
            value[on[value.device]] = 0


class CohortAdam(CohortOptimizer):
    """Adam (Kingma and Ba 2015).

    One fused call updates a run of neighbouring clients that have taken equally many steps, so a
    cohort in step costs one call, and a client that sat out rounds keeps its own bias correction.
    On a GPU many runs would cost more in calls than in work, so one unfused call updates them all.

    first, second: moment estimates, [K, …] per parameter. steps: [K] int64 per parameter.
    """

    def __init__(self, parameters: Mapping[str, Tensor], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.first = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.second = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.steps = {
            name: torch.zeros(len(value), dtype=torch.int64) for name, value in parameters.items()
        }
        self.state = {"first": self.first, "second": self.second, "steps": self.steps}

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        names = list(gradients)
        active, device = len(gradients[names[0]]), parameters[names[0]].device
        steps = self.steps[names[0]][:active]
        runs = list(_equal_runs(steps.tolist()))
        if len(runs) > 1 and device.type != "cpu":
            steps_on_device = steps.to(device, torch.float32)  # (k,)
            shapes = [(-1, *[1] * (gradients[name].dim() - 1)) for name in names]
            counts = [steps_on_device.view(shape).clone() for shape in shapes]
            self._update(parameters, gradients, slice(active), counts, fused=False)
        else:
            for run in runs:
                count = int(steps[run.start])
                step_counts = torch.full((len(names),), count, dtype=torch.float32, device=device)
                self._update(parameters, gradients, run, list(step_counts.unbind()), fused=True)
        for name in names:
            self.steps[name][:active] += 1

    def _update(
        self,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        run: slice,
        counts: list[Tensor],
        *,
        fused: bool,
    ) -> None:
        """Take torch's step for these clients.

        counts: steps so far by parameter, one number or, if not fused, one per client. The call
        increments them.
        """
        adam(
            [parameters[name][run] for name in gradients],
            [gradient[run] for gradient in gradients.values()],
            [self.first[name][run] for name in gradients],
            [self.second[name][run] for name in gradients],
            [],
            counts,
            fused=fused,
            foreach=False,
            differentiable=not fused,  # so that it takes counts which are tensors
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class CohortSGD(CohortOptimizer):
    """SGD with momentum and weight decay, as torch's: b ← m·b + (g + d·w), then w ← w − η·b."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        learning_rate: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self._learning_rate, self._momentum = learning_rate, momentum
        self._weight_decay = weight_decay
        self.momentum = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.state = {"momentum": self.momentum}

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        names = list(gradients)
        active = len(gradients[names[0]])
        buffers: list[Tensor | None] = [self.momentum[name][:active] for name in names]
        sgd(
            [parameters[name][:active] for name in names],
            list(gradients.values()),
            buffers,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


class TimeSmoothed(CohortOptimizer):
    """Time-smoothed gradients (DTSSGD, Aydore, Zhu, Foster, NeurIPS 2019) for another optimiser.

    With window w and factor γ, a client's step t hands on

        1/W · Σ_{j<w} γ^j · g_{t−j},    W = Σ_{j<w} γ^j

    W is always the full sum, as in the paper, where losses before the first are 0: a client's first
    w − 1 smoothed gradients are shortened. g_{t−1} is the client's own last gradient, even if it
    did not take part in some steps of the cohort.

    state: the other optimiser's. The gradients are not part of it, so every round starts without
    past gradients.
    """

    def __init__(
        self,
        smoothed: CohortOptimizer,
        parameters: Mapping[str, Tensor],
        window: int,
        factor: float,
    ) -> None:
        self._smoothed, self.state = smoothed, smoothed.state
        self._window, self._factor = window, factor
        # The last w gradients, [K, w, …] each. Step t of a client writes its row t mod w.
        self._last = {
            name: value.new_zeros(len(value), window, *value.shape[1:])
            for name, value in parameters.items()
        }
        self._steps = {
            name: torch.zeros(len(value), dtype=torch.int64, device=value.device)
            for name, value in parameters.items()
        }

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        self._smoothed.step(parameters, {n: self._mean(n, g) for n, g in gradients.items()})

    def _mean(self, name: str, gradient: Tensor) -> Tensor:
        """Store a gradient [k, …] and return the weighted mean of the last w gradients, [k, …]."""
        active = len(gradient)
        row = self._steps[name][:active] % self._window
        rows = torch.arange(self._window, device=gradient.device)
        ages = (row.unsqueeze(1) - rows) % self._window  # (k, w)
        weights = self._factor**ages
        weights = weights / weights.sum(dim=1, keepdim=True)
        last = self._last[name][:active]
        last[torch.arange(active, device=gradient.device), row] = gradient
        self._steps[name][:active] += 1
        # (k, 1, w) x (k, w, size)
        mean = torch.bmm(weights.unsqueeze(1), last.reshape(active, self._window, -1))
        return mean.view_as(gradient)


class ScaledSteps(CohortOptimizer):
    """Another optimiser's steps, scaled for some parameters: w ← w + f·Δw.

    f acts as a factor of the learning rate, because Adam's and SGD's steps are linear in it.

    factors: f by parameter. Other parameters' steps are unchanged, bit for bit. state: the other
    optimiser's.
    """

    def __init__(self, scaled: CohortOptimizer, factors: Mapping[str, float]) -> None:
        self._scaled, self._factors, self.state = scaled, factors, scaled.state

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        before = {
            name: parameters[name][: len(gradient)].clone()
            for name, gradient in gradients.items()
            if name in self._factors
        }
        self._scaled.step(parameters, gradients)
        for name, old in before.items():
            stepped = parameters[name][: len(old)]
            stepped.copy_(old + self._factors[name] * (stepped - old))


def _equal_runs(values: Sequence[int]) -> Iterator[slice]:
    """Yield the maximal slices of equal neighbours."""
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[start]:
            yield slice(start, end)
            start = end
