"""Ditto (Li, Hu, Beirami, Smith, "Fair and robust federated learning through personalization",
ICML 2021).

A client trains its copy w of the global model as FedAvg does. It also trains a personal model v:

    h(v; w_global) = F(v) + λ/2 · ‖v − w_global‖²

w_global is the model as received this round. Only w is sent, and v predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.section import CountOrZero, NonNegative, Section, setting
from fedproto_app.strategies.common.learner import Cohort, KernelLoss, KernelTrained, Phase
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.task import Batch
from fedproto_compared.common.personal_model import PERSONAL, PersonalModelLearner
from fedproto_compared.common.proximal import ProximalContext, proximal_term


class DittoSettings(Section):
    """``[ditto]``."""

    proximal_lambda: NonNegative = setting(
        1e-4, "pull of the personal model towards the global one (λ)"
    )
    personal_epochs: CountOrZero = setting(0, "epochs of the personal model (0: `local-epochs`)")


class DittoLearner(KernelTrained, PersonalModelLearner[ProximalContext]):
    """FedAvg's model, and a personal one that is held near it."""

    section: DittoSettings

    def phases(self) -> Sequence[Phase]:
        epochs = self.training.local_epochs
        return [
            Phase("local", self.shared, epochs),
            Phase("personal", (PERSONAL,), self.section.personal_epochs or epochs),
        ]

    def context(self, guidance: Guidance, cohort: Cohort) -> ProximalContext:
        return ProximalContext(guidance, self.task.device, self.section.proximal_lambda)

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: ProximalContext
    ) -> dict[str, Tensor]:
        """Return the loss of the model that trains in this phase. The other loss is not needed."""
        personal = self.personal_model(parameters)
        if not any(value.requires_grad for value in personal.values()):
            return {"prediction": self.loss_of(parameters, batch)}
        return {
            "personal": self.loss_of(personal, batch),
            "proximal": proximal_term(personal, context.anchor, context.proximal_mu),
        }

    def kernel_loss(self, phase: Phase, context: ProximalContext) -> KernelLoss:
        if phase.name == "local":
            return KernelLoss()
        return KernelLoss("personal", PERSONAL, context.anchor, context.proximal_mu)


METHOD = Method(
    name="ditto",
    title="Ditto",
    strategy=FedAvgStrategy,
    learner=DittoLearner,
    settings=DittoSettings,
)
