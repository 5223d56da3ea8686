"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, "Personalized federated learning with theoretical
guarantees", NeurIPS 2020).

The shared model w should be good after one step on a client's own data. With batches D and D', a
step of training is

    w̃ = w − α·∇f(w; D),    w ← w − β·(I − α·∇²f(w; D))·∇f(w̃; D')

The first-order variant leaves out the Hessian. β is the optimiser's step. A client is evaluated,
and forecasts, with w̃ computed from one batch of its own train part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.section import NonNegative, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.strategies.common.learner import Cohort, Context
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner

# Batches of a task, combined as the method needs them.


@dataclass(frozen=True)
class Pair:
    """Two batches for one step, of the same first k clients of a cohort."""

    first: Any
    second: Any

    @property
    def inputs(self) -> Tensor:
        """Return the values of the second batch, [k]."""
        inputs: Tensor = self.second.inputs
        return inputs


def pairs_of(batches: Iterator[Any]) -> Iterator[Pair]:
    """Yield an epoch's batches in pairs. A client's last batch is left out if it has no partner."""
    for first in batches:
        second = next(batches, None)
        if second is None:
            return
        yield Pair(_first_clients(first, len(second.inputs)), second)


def _first_clients(batch: Any, count: int) -> Any:
    """Return the batch of the first clients only."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    cut = {name: value[:count] for name, value in values.items() if isinstance(value, Tensor)}
    return replace(batch, **cut)


class PerFedAvgSettings(Section):
    """``[per-fedavg]``."""

    step_size: NonNegative = setting(
        0.01, "size of the step on a client's own data (α). 0 gives FedAvg"
    )
    gradient: Literal["first-order", "exact"] = setting(
        "first-order",
        "gradient of the loss after that step. `exact` includes the Hessian and costs twice as "
        "much",
    )


class PerFedAvgLearner(SoloLearner):
    """Solo's loss on a second batch, for the shared model after a step on the first batch."""

    section: PerFedAvgSettings
    personalises = True

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [model()]

    def batches(self, samples: Any, generators: Sequence[torch.Generator]) -> Iterator[Pair]:
        """Yield pairs of batches. A client with a single batch does not train."""
        return pairs_of(super().batches(samples, generators))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Pair, context: Context
    ) -> dict[str, Tensor]:
        exact = self.section.gradient == "exact"
        adapted = self.adapted(parameters, batch.first, context, differentiable=exact)
        return super().loss(adapted, batch.second, context)

    def adapted(
        self,
        parameters: Mapping[str, Tensor],
        batch: Any,
        context: Context,
        *,
        differentiable: bool = False,
    ) -> dict[str, Tensor]:
        """Return w̃ for leaves w. differentiable: whether the gradient includes the Hessian."""
        names = [name for name, value in parameters.items() if value.requires_grad]
        loss = super().loss(parameters, batch, context)["prediction"].sum()
        gradients = torch.autograd.grad(
            loss,
            [parameters[name] for name in names],
            create_graph=differentiable,
            materialize_grads=True,
        )
        steps = dict(zip(names, gradients, strict=True))
        return {
            name: value - self.section.step_size * steps[name] if name in steps else value
            for name, value in parameters.items()
        }

    def personalised(self, cohort: Cohort, guidance: Guidance) -> dict[str, Tensor]:
        """Return w̃ for the same batch in every round, so that rounds differ only in w."""
        generators = [torch_stream(self.training.seed, name, "adapted") for name in cohort.names]
        batch = next(self.task.batches(cohort.samples, generators))  # every client has a first one
        leaves = {
            name: value.detach().requires_grad_() for name, value in cohort.parameters.items()
        }
        adapted = self.adapted(leaves, batch, self.context(guidance, cohort))
        return {name: value.detach() for name, value in adapted.items()}


METHOD = Method(
    name="per-fedavg",
    strategy=FedAvgStrategy,
    learner=PerFedAvgLearner,
    settings=PerFedAvgSettings,
)
