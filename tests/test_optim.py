"""The optimisers against torch.optim, client by client."""

from __future__ import annotations

import torch

from fedproto_app.optim import CohortAdam, CohortSGD


def test_each_client_gets_torchs_adam_even_when_it_sits_steps_out() -> None:
    generator = torch.Generator().manual_seed(0)
    start = {
        "w": torch.randn(3, 4, 2, generator=generator),
        "b": torch.randn(3, 2, generator=generator),
    }
    cohort = {name: value.clone() for name, value in start.items()}
    adam = CohortAdam(cohort, learning_rate=0.01)
    singles = [
        {name: value[k].clone().requires_grad_() for name, value in start.items()} for k in range(3)
    ]
    optimizers = [torch.optim.Adam(single.values(), lr=0.01) for single in singles]
    for active in (3, 2, 2, 1, 3, 3):  # the first so many clients take part
        gradients = {
            n: torch.randn(v[:active].shape, generator=generator) for n, v in start.items()
        }
        adam.step(cohort, gradients)
        for k in range(active):
            for name, value in singles[k].items():
                value.grad = gradients[name][k]
            optimizers[k].step()
    for k, single in enumerate(singles):
        for name, value in single.items():
            torch.testing.assert_close(cohort[name][k], value.detach(), rtol=1e-6, atol=1e-7)
    assert adam.steps["w"].tolist() == [6, 5, 3]


def test_each_client_gets_torchs_sgd_even_when_it_sits_steps_out() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 4, generator=generator)
    cohort = {"w": start.clone()}
    sgd = CohortSGD(cohort, learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    singles = [start[k].clone().requires_grad_() for k in range(2)]
    optimizers = [torch.optim.SGD([s], lr=0.1, momentum=0.9, weight_decay=0.01) for s in singles]
    for active in (2, 1, 1, 2):
        gradient = torch.randn(active, 4, generator=generator)
        sgd.step(cohort, {"w": gradient})
        for k in range(active):
            singles[k].grad = gradient[k]
            optimizers[k].step()
    torch.testing.assert_close(cohort["w"], torch.stack(singles).detach())
    assert sgd.state["momentum"]["w"].abs().sum() > 0
