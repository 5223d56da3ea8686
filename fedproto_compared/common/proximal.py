"""FedProx's pull towards the global model, which Ditto and pFedMe use too."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.common.learner import Context


class ProximalContext(Context):
    """The global model of the round, without the client axis, and µ."""

    def __init__(self, guidance: Guidance, device: torch.device, proximal_mu: float) -> None:
        self.anchor = {
            n: torch.from_numpy(value).to(device) for n, value in guidance.arrays.items()
        }
        self.proximal_mu = proximal_mu


def proximal_term(
    parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], proximal_mu: float
) -> Tensor:
    """Return FedProx's term µ/2 · ‖w − w_global‖² per client (Li et al. 2020, eq. 2).

    parameters: [K, …] each. anchor: the global model, without the client axis. Returns [K].
    """
    squares = [
        (parameters[name] - value).square().flatten(start_dim=1).sum(dim=1)
        for name, value in anchor.items()
    ]
    return proximal_mu / 2 * torch.stack(squares).sum(dim=0)
