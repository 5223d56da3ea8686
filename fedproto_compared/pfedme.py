"""pFedMe (T. Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes",
NeurIPS 2020).

A client's objective is the Moreau envelope of its loss, and its personal model θ is the minimiser:

    F(w) = min_θ f(θ) + λ/2·‖θ − w‖²

On each batch, θ takes K steps of the optimiser towards this minimiser, then w ← w − η·λ·(w − θ).
Only w is sent. As in the authors' program, a round begins with θ = w, and θ continues from batch to
batch.

The server takes w ← (1 − β)·w + β·mean of the w_n.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.messages import Arrays
from fedproto_app.core.method import Method
from fedproto_app.core.round import Round
from fedproto_app.core.section import Count, Positive, Section, ShareOrOne, setting
from fedproto_app.maths.optim import CohortOptimizer
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort, Context, Phase
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.task import Batch
from fedproto_compared.common.personal_model import PERSONAL, PersonalModelLearner
from fedproto_compared.common.proximal import proximal_term

_STRONG = 15.0  # the paper's λ
_log = logging.getLogger(__name__)


class PFedMeSettings(Section):
    """``[pfedme]``."""

    proximal_lambda: Positive = setting(
        _STRONG, "pull of the personal model towards the global one (λ)"
    )
    inner_steps: Count = setting(5, "optimiser steps of the personal model on each batch (K)")
    outer_step: ShareOrOne = setting(
        0.1, "step of w towards the personal model after each batch (η·λ)"
    )
    server_step: Positive = setting(1.0, "weight of the clients' mean in the new shared model (β)")


class InnerAndOuterSteps(CohortOptimizer):
    """Step θ with another optimiser. After every K steps, w moves by the share η·λ towards θ.

    state: the state of the other optimiser.
    """

    def __init__(
        self, theta_optimizer: CohortOptimizer, inner_steps: int, outer_step: float
    ) -> None:
        self._theta_optimizer, self.state = theta_optimizer, theta_optimizer.state
        self._inner_steps, self._outer_step = inner_steps, outer_step
        self._inner_count = 0

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        self._theta_optimizer.step(parameters, gradients)
        self._inner_count += 1
        if self._inner_count % self._inner_steps:
            return
        for name, gradient in gradients.items():
            active = len(gradient)
            w, theta = parameters[name.removeprefix(PERSONAL)], parameters[name]
            w[:active].lerp_(theta[:active], self._outer_step)


class PFedMeLearner(PersonalModelLearner[Context]):
    """A personal model θ near w, and w drawn towards θ."""

    section: PFedMeSettings

    def phases(self) -> Sequence[Phase]:
        """Return one phase, where the optimiser moves θ alone."""
        return [Phase("local", (PERSONAL,), self.training.local_epochs)]

    def make_optimizer(self, parameters: Mapping[str, Tensor]) -> InnerAndOuterSteps:
        theta_optimizer = super().make_optimizer(parameters)
        return InnerAndOuterSteps(
            theta_optimizer, self.section.inner_steps, self.section.outer_step
        )

    def batches(self, samples: Any, generators: Sequence[torch.Generator]) -> Iterator[Any]:
        """Yield every batch K times in a row."""
        for batch in super().batches(samples, generators):
            yield from repeat(batch, self.section.inner_steps)

    def begin(self, cohort: Cohort) -> None:
        for name, value in self.personal_model(cohort.parameters).items():
            value.copy_(cohort.parameters[name])
        cohort.optimizer.renew(torch.ones(len(cohort.names), dtype=torch.bool))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: Context
    ) -> dict[str, Tensor]:
        theta = self.personal_model(parameters)
        near = {name: parameters[name] for name in theta}
        return {
            "prediction": self.loss_of(theta, batch),
            "proximal": proximal_term(theta, near, self.section.proximal_lambda),
        }


class PFedMeStrategy(FedAvgStrategy):
    """The shared model takes the share β of FedAvg's mean.

    The other 1 − β comes from the model at the beginning of the round. With β > 1 the model moves
    beyond the mean.
    """

    section: PFedMeSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        if self.section.proximal_lambda >= _STRONG:
            _log.warning(
                "pfedme.proximal-lambda = %g holds personal models close to the shared one, and 1 "
                "was better on series and on digits",
                self.section.proximal_lambda,
            )

    def renewed(self, mean: Arrays, round_: Round) -> Arrays:
        beta = np.float32(self.section.server_step)
        return {n: (1 - beta) * self.model[n] + beta * value for n, value in mean.items()}


METHOD = Method(
    name="pfedme",
    strategy=PFedMeStrategy,
    learner=PFedMeLearner,
    settings=PFedMeSettings,
)
