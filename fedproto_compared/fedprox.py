"""FedProx (Li et al., MLSys 2020): FedAvg with a proximal term.

    h(w; w_global) = F(w) + µ/2 · ‖w − w_global‖²          (Li et al. 2020, eq. 2)

The server half is FedAvg's, and both sides read µ from the settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.section import NonNegative, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.strategies.common.learner import (
    Cohort,
    KernelLoss,
    KernelTrained,
    Learner,
    Phase,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.task import AnyTask, Batch
from fedproto_compared.common.proximal import ProximalContext, proximal_term


class FedProxSettings(Section):
    """``[fedprox]``."""

    proximal_mu: NonNegative = setting(0.01, "weight of the proximal term (µ)")


class FedProxLearner(KernelTrained, Learner[ProximalContext, AnyTask]):
    """The supervised loss and the distance from the global model."""

    section: FedProxSettings

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [model()]

    def context(self, guidance: Guidance, cohort: Cohort) -> ProximalContext:
        return ProximalContext(guidance, self.task.device, self.section.proximal_mu)

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: ProximalContext
    ) -> dict[str, Tensor]:
        prediction = self.task.predict(parameters, self.task.represent(parameters, batch), batch)
        return {
            "prediction": self.task.loss(prediction, batch),
            "proximal": proximal_term(parameters, context.anchor, context.proximal_mu),
        }

    def kernel_loss(self, phase: Phase, context: ProximalContext) -> KernelLoss:
        return KernelLoss(anchor=context.anchor, proximal_mu=context.proximal_mu)


METHOD = Method(
    name="fedprox",
    title="FedProx",
    strategy=FedAvgStrategy,
    learner=FedProxLearner,
    settings=FedProxSettings,
)
