"""FedProx (Li et al., MLSys 2020), client half: FedAvg with a proximal term.

    h(w; w_global) = F(w) + µ/2 · ‖w − w_global‖²          (eq. 2)

µ arrives with the order, as Flower's FedProx strategy sends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedproto_app.learners.learner import Context, Learner
from fedproto_app.losses import proximal_term
from fedproto_app.tasks.forecasting import Batch
from fedproto_app.wire import Order


class ProximalContext(Context):
    """The global model of the round, without the client axis, and µ."""

    def __init__(self, anchor: dict[str, Tensor], proximal_mu: float) -> None:
        self.anchor, self.proximal_mu = anchor, proximal_mu


class FedProxLearner(Learner[ProximalContext]):
    """The supervised loss and the distance from the global model."""

    shared = ("",)

    def context(self, order: Order, names: Sequence[str], device: torch.device) -> ProximalContext:
        anchor = {n: torch.from_numpy(value).to(device) for n, value in order.arrays.items()}
        return ProximalContext(anchor, order.options["proximal-mu"])

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: ProximalContext
    ) -> dict[str, Tensor]:
        prediction = self.task.predict(parameters, self.task.represent(parameters, batch.inputs))
        return {
            "prediction": self.task.loss(prediction, batch),
            "proximal": proximal_term(parameters, context.anchor, context.proximal_mu),
        }
