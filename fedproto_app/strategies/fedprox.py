"""FedProx (Li et al., MLSys 2020): FedAvg with a proximal term.

    h(w; w_global) = F(w) + µ/2 · ‖w − w_global‖²          (Li et al. 2020, eq. 2)

µ arrives with the order, as Flower's FedProx strategy sends it.

The server half is Flower's own, over our checked FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.serverapp.strategy import FedProx
from torch import Tensor

from fedproto_app.core.method import Method
from fedproto_app.core.section import NonNegative, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Learner
from fedproto_app.maths.losses import proximal_term
from fedproto_app.messages import Order
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.task import AnyTask


class FedProxSettings(Section):
    """``[fedprox]``."""

    proximal_mu: NonNegative = setting(0.01, "µ; Li et al. 2020 try 0.001 … 1")


class ProximalContext(Context):
    """The global model of the round, without the client axis, and µ."""

    def __init__(self, anchor: dict[str, Tensor], proximal_mu: float) -> None:
        self.anchor, self.proximal_mu = anchor, proximal_mu


class FedProxLearner(Learner[ProximalContext, AnyTask]):
    """The supervised loss and the distance from the global model."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [model()]

    def context(self, order: Order, cohort: Cohort) -> ProximalContext:
        to = self.task.device
        anchor = {name: torch.from_numpy(value).to(to) for name, value in order.arrays.items()}
        return ProximalContext(anchor, order.options["proximal-mu"])

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ProximalContext
    ) -> dict[str, Tensor]:
        prediction = self.task.predict(parameters, self.task.represent(parameters, batch), batch)
        return {
            "prediction": self.task.loss(prediction, batch),
            "proximal": proximal_term(parameters, context.anchor, context.proximal_mu),
        }


class FedProxStrategy(FedProx, FedAvgStrategy):
    """Flower's FedProx puts µ into the round's config; the class after it sends it."""

    def __init__(
        self, settings: Settings, section: FedProxSettings, federation: Federation
    ) -> None:
        FedAvgStrategy.__init__(self, settings, section, federation)
        self.proximal_mu = section.proximal_mu


METHOD = Method(
    name="fedprox",
    strategy=FedProxStrategy,
    learner=FedProxLearner,
    settings=FedProxSettings,
)
