"""FedProx's client: the pull towards the global model, by hand and over a whole round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.strategies.common.learner import AnyLearner
from tests.helpers.tiny_cohort import (
    global_model,
    tiny_batches,
    tiny_cohort,
    tiny_learner,
    train,
)


def fedprox_with(proximal_mu: float, **changes: Any) -> AnyLearner:
    return tiny_learner("fedprox", **{"fedprox.proximal-mu": proximal_mu, **changes})


def terms_at(fedprox: AnyLearner, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """The loss of one batch with these parameters, [K] each."""
    guidance = Guidance(global_model(fedprox))
    context = fedprox.context(guidance, tiny_cohort(fedprox))
    return fedprox.loss(parameters, tiny_batches(fedprox, tiny_cohort(fedprox))[0], context)


def test_the_term_and_its_gradient_by_hand() -> None:
    """All n values of client b moved by 2: µ/2 · 4n, and a pull of 2µ back on every value."""
    fedprox = fedprox_with(0.5)
    moved = torch.tensor([0.0, 2.0])
    parameters = {
        name: (value + moved.view(-1, *[1] * (value.dim() - 1))).requires_grad_()
        for name, value in tiny_cohort(fedprox).parameters.items()
    }
    proximal = terms_at(fedprox, parameters)["proximal"]
    size = sum(value[0].numel() for value in parameters.values())
    torch.testing.assert_close(proximal, torch.tensor([0.0, 0.5 / 2 * 4 * size]))
    for gradient in torch.autograd.grad(proximal.sum(), list(parameters.values())):
        assert (gradient[0] == 0).all()
        torch.testing.assert_close(gradient[1], torch.ones_like(gradient[1]))


@pytest.mark.parametrize("shift", [0.0, 1.0], ids=["from the start", "from another model"])
def test_the_larger_mu_the_nearer_the_clients_stay(shift: float) -> None:
    slow = {"local-epochs": 20, "optimizer.learning-rate": 0.01}
    fedprox = tiny_learner("fedprox")
    model = {name: value + np.float32(shift) for name, value in global_model(fedprox).items()}
    anchor = {name: torch.from_numpy(value) for name, value in model.items()}

    def distance(proximal_mu: float) -> Tensor:
        """‖w − w_global‖ of each client after a round, [K]."""
        fedprox = fedprox_with(proximal_mu, **slow)
        clients = tiny_cohort(fedprox)
        for name, value in clients.parameters.items():
            value.copy_(anchor[name])
        train(fedprox, Guidance(model), clients)
        squares = [
            (value - anchor[name]).square().flatten(start_dim=1).sum(dim=1)
            for name, value in clients.parameters.items()
        ]
        return torch.stack(squares).sum(dim=0).sqrt()

    free, near, nearest = (distance(mu) for mu in (0.0, 0.1, 1000.0))
    assert (near < free).all()
    assert (nearest < near).all()
    assert (nearest < free / 5).all()
