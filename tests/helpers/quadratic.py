"""A task that can be followed by hand: the loss of a single number w on a batch a is ½·(w − a)²."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.settings import OptimizerSettings, Training
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, new_cohort, train_cohort

NAME = "head.w"


@dataclass(frozen=True)
class Number:
    """A batch: inputs [1] is the number a."""

    inputs: Tensor


@dataclass
class Numbers:
    """The samples of one client: its batches in their order."""

    values: Sequence[float]
    names: list[str] = field(default_factory=lambda: ["a"])


class Quadratic:
    """What learners ask of a task."""

    encoder, head = "encoder.", "head."
    device = torch.device("cpu")

    def initial_parameters(self) -> dict[str, Tensor]:
        return {NAME: torch.zeros(1)}

    def batches(self, samples: Numbers, generators: Sequence[torch.Generator]) -> Iterator[Number]:
        return (Number(torch.tensor([value])) for value in samples.values)

    def fix_encoder(self, parameters: Mapping[str, Tensor], samples: Numbers) -> Numbers:
        return samples

    def represent(self, parameters: Mapping[str, Tensor], batch: Number) -> Tensor:
        return batch.inputs

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor, _: Any) -> Tensor:
        return parameters[NAME][:, 0]

    def loss(self, prediction: Tensor, batch: Number) -> Tensor:
        return (prediction - batch.inputs).square() / 2


def learner_of(kind: Any, section: Any, learning_rate: float) -> AnyLearner:
    """The client half of a method, which steps by plain SGD."""
    optimizer = OptimizerSettings(name="sgd", learning_rate=learning_rate, momentum=0)
    learner: AnyLearner = kind(Training(0, 1, 0, optimizer), section, Quadratic())
    return learner


def after_a_round(learner: AnyLearner, batches: Sequence[float], w: float = 0.0) -> Cohort:
    """One client that has trained on these batches, from w."""
    initial = learner.initial_parameters()
    parameters = {name: value.unsqueeze(0).clone() for name, value in initial.items()}
    parameters[NAME].fill_(w)
    cohort = new_cohort(learner, parameters, Numbers(batches), server_round=1)
    learner.begin(cohort)
    train_cohort(learner, cohort, learner.context(Guidance(), cohort))
    return cohort
