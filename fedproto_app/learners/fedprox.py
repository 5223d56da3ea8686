"""FedProx (Li et al., MLSys 2020), client half: FedAvg with a proximal term.

    h(w; w_global) = F(w) + µ/2 · ‖w − w_global‖²          (Li et al. 2020, eq. 2)

µ arrives with the order, as Flower's FedProx strategy sends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Learner
from fedproto_app.maths.losses import proximal_term
from fedproto_app.messages import Order
from fedproto_app.tasks.task import AnyTask


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
