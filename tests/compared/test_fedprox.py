"""FedProx's client: the pull towards the model that the server sent, by hand."""

from __future__ import annotations

import numpy as np
import torch

from fedproto_app.core.messages import Guidance
from tests.helpers.tiny_cohort import global_model, tiny_batches, tiny_cohort, tiny_learner


def test_the_term_and_its_gradient_by_hand() -> None:
    """The sent model is 1 below client a's n values and 3 below b's: µ/2 · n and µ/2 · 9n, and a
    pull of µ and of 3µ back on every value."""
    fedprox = tiny_learner("fedprox", **{"fedprox.proximal-mu": 0.5})
    cohort = tiny_cohort(fedprox)
    moved = torch.tensor([0.0, 2.0])
    parameters = {
        name: (value + moved.view(-1, *[1] * (value.dim() - 1))).requires_grad_()
        for name, value in cohort.parameters.items()
    }
    received = {name: value - np.float32(1) for name, value in global_model(fedprox).items()}
    context = fedprox.context(Guidance(received), cohort)
    terms = fedprox.loss(parameters, tiny_batches(fedprox, cohort)[0], context)
    assert set(terms) == {"prediction", "proximal"}
    size = sum(value[0].numel() for value in parameters.values())
    expected = 0.25 * size * torch.tensor([1.0, 9.0])
    torch.testing.assert_close(terms["proximal"], expected)
    for gradient in torch.autograd.grad(terms["proximal"].sum(), list(parameters.values())):
        torch.testing.assert_close(gradient[0], torch.full_like(gradient[0], 0.5))
        torch.testing.assert_close(gradient[1], torch.full_like(gradient[1], 1.5))
