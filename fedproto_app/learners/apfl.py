"""APFL (Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020), client half.

A client trains its copy w of the global model and a personal model v, and predicts with their
mixture v̄ = α·v + (1 − α)·w. Its v learns from the loss at v̄ with w held fixed, and so does α,
whose gradient is ⟨v − w, ∇f(v̄)⟩; only w is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Learner, Phase
from fedproto_app.settings import Settings
from fedproto_app.tasks.task import AnyTask
from fedproto_app.wire import Order

PERSONAL, MIX = "personal.", "mix"


class ApflLearner(Learner[Context, AnyTask]):
    """The global model and a personal one, mixed in a proportion that the client finds."""

    def __init__(self, settings: Settings, task: AnyTask) -> None:
        super().__init__(settings, task)
        self.shared = (task.encoder, task.head)

    def initial_parameters(self) -> dict[str, Tensor]:
        model = self.task.initial_parameters()
        personal = {PERSONAL + name: value.clone() for name, value in model.items()}
        return {**model, **personal, MIX: torch.tensor(self.settings.apfl.alpha)}

    def phases(self) -> list[Phase]:
        trained = (*self.shared, PERSONAL)
        if self.settings.apfl.adaptive:
            trained = (*trained, MIX)
        return [Phase("local", trained, self.settings.local_epochs)]

    def context(self, order: Order, cohort: Cohort) -> Context:
        return Context()

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: Context
    ) -> dict[str, Tensor]:
        return {
            "prediction": self._loss_of(parameters, batch),
            "personal": self._loss_of(self._mixed(parameters), batch),
        }

    def conclude(self, cohort: Cohort, context: Context) -> None:
        cohort.parameters[MIX].clamp_(0, 1)

    def evaluate(self, cohort: Cohort, order: Order) -> dict[str, list[float]]:
        """The mixture's metrics, and with the prefix ``global-`` the global model's."""
        mixed = self.task.evaluate(self._mixed(cohort.parameters), cohort.samples)
        shared = self.task.evaluate(cohort.parameters, cohort.samples)
        return {**mixed, **{f"global-{name}": values for name, values in shared.items()}}

    def _loss_of(self, model: Mapping[str, Tensor], batch: Any) -> Tensor:
        return self.task.loss(self.task.predict(model, self.task.represent(model, batch)), batch)

    def _mixed(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """v̄, whose gradient reaches v and α but not w."""
        alpha = parameters[MIX]
        share = alpha + (alpha.clamp(0, 1) - alpha).detach()  # within 0 … 1, gradient as it is
        mixed = {}
        for name, value in parameters.items():
            if self.is_shared(name):
                personal = parameters[PERSONAL + name]
                part = share.view(-1, *[1] * (personal.dim() - 1))
                mixed[name] = part * personal + (1 - part) * value.detach()
        return mixed
