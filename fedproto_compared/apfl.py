"""APFL (Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020).

A client trains its copy w of the global model and a personal model v, and predicts with their
mixture v̄ = α·v + (1 − α)·w. v is trained on the loss at v̄ with w held fixed, and so is α, whose
gradient is ⟨v − w, ∇f(v̄)⟩. Only w is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.core.method import Method
from fedproto_app.core.section import Section, ShareOrEither, setting
from fedproto_app.strategies.common.learner import Cohort, Context, Phase
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.task import Batch
from fedproto_compared.common.personal_model import PERSONAL, PersonalModelLearner


class ApflSettings(Section):
    """``[apfl]``."""

    alpha: ShareOrEither = setting(0.5, "initial weight of the personal model (α)")
    adaptive: bool = setting(True, "learn α")


MIX = "mix"


class ApflLearner(PersonalModelLearner[Context]):
    """The global and a personal model, mixed in a proportion that the client learns."""

    section: ApflSettings

    def initial_parameters(self) -> dict[str, Tensor]:
        return {**super().initial_parameters(), MIX: torch.tensor(self.section.alpha)}

    def phases(self) -> list[Phase]:
        trained = (*self.shared, PERSONAL)
        if self.section.adaptive:
            trained = (*trained, MIX)
        return [Phase("local", trained, self.training.local_epochs)]

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: Context
    ) -> dict[str, Tensor]:
        return {
            "prediction": self.loss_of(parameters, batch),
            "personal": self.loss_of(self.predictor(parameters), batch),
        }

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        cohort.parameters[MIX].clamp_(0, 1)
        return {}

    def predictor(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return v̄, whose gradient reaches v and α but not w."""
        alpha = parameters[MIX]
        share = alpha + (alpha.clamp(0, 1) - alpha).detach()  # cut to 0 … 1, gradient unchanged
        mixed = {}
        for name, personal in self.personal_model(parameters).items():
            part = share.view(-1, *[1] * (personal.dim() - 1))
            mixed[name] = part * personal + (1 - part) * parameters[name].detach()
        return mixed


METHOD = Method(
    name="apfl",
    title="APFL",
    strategy=FedAvgStrategy,
    learner=ApflLearner,
    settings=ApflSettings,
)
