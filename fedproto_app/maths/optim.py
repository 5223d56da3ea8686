"""Optimisers for a cohort, where every client has its own moments and its own step count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class CohortOptimizer(ABC):
    """The base of optimisers that update parameters with a client axis in front.

    state: what clients keep between rounds, {kind: {parameter: [K, …]}}. It is zero at first.
    """

    state: dict[str, dict[str, Tensor]]

    @abstractmethod
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Update in place the first k clients of `parameters`, where k is the gradients' length.

        All parameters that `gradients` names must have taken equally many steps so far.
        """

    @torch.no_grad()
    def renew(self, clients: Tensor) -> None:
        """Reset the state of these clients [K] bool to zero."""
        values = [value for tensors in self.state.values() for value in tensors.values()]
        on = {device: clients.to(device) for device in {value.device for value in values}}
        for value in values:
            value[on[value.device]] = 0


class CohortAdam(CohortOptimizer):
    """Adam (Kingma and Ba 2015).

    One fused call updates a group of neighbouring clients that have taken equally many steps. If
    that is all clients, one call suffices. A client that missed rounds keeps its own bias
    correction. On a GPU, calls for many groups would take longer than the work itself. There one
    unfused call updates all clients.

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

        counts: for each parameter, the number of steps so far: a single number if fused, else one
        per client. The call increments them.
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
            differentiable=not fused,  # so that torch accepts one count per client
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class CohortSGD(CohortOptimizer):
    """SGD with momentum and weight decay as in torch: b ← m·b + (g + d·w), then w ← w − η·b."""

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
    """Smooths gradients over time for another optimiser (DTSSGD, Aydore et al., NeurIPS 2019).

    With window w and factor γ, a client's step t passes on

        1/W · Σ_{j<w} γ^j · g_{t−j},    W = Σ_{j<w} γ^j

    W is always the full sum. In the paper, too, losses before the first step are 0, so a client's
    first w − 1 smoothed gradients are shorter. g_{t−1} is the client's own last gradient, even if
    the client missed some steps of the cohort.

    state: the state of the other optimiser. Gradients are not part of it, so every round starts
    without past gradients.
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
        # The last w gradients, [K, w, …] per parameter. A client's step t writes its row t mod w.
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
    """Scales another optimiser's steps for some parameters: w ← w + f·Δw.

    f acts as a factor of the learning rate, because Adam's and SGD's steps are linear in it.

    factors: f by parameter. The steps of other parameters stay the same, bit for bit. state: the
    state of the other optimiser.
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
    """Yield the longest slices where all values are equal."""
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[start]:
            yield slice(start, end)
            start = end
