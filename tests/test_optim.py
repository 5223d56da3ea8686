"""CohortAdam against torch.optim.Adam, client by client."""

from __future__ import annotations

import torch

from fedproto_app.optim import CohortAdam


def test_each_client_gets_torchs_adam_even_when_it_sits_steps_out() -> None:
    generator = torch.Generator().manual_seed(0)
    start = {
        "w": torch.randn(3, 4, 2, generator=generator),
        "b": torch.randn(3, 2, generator=generator),
    }
    cohort = {name: value.clone() for name, value in start.items()}
    adam = CohortAdam.fresh(cohort)
    singles = [
        {name: value[k].clone().requires_grad_() for name, value in start.items()} for k in range(3)
    ]
    optimizers = [torch.optim.Adam(single.values(), lr=0.01) for single in singles]
    for active in (3, 2, 2, 1, 3, 3):  # the first so many clients take part
        gradients = {
            n: torch.randn(v[:active].shape, generator=generator) for n, v in start.items()
        }
        adam.step(cohort, gradients, 0.01)
        for k in range(active):
            for name, value in singles[k].items():
                value.grad = gradients[name][k]
            optimizers[k].step()
    for k, single in enumerate(singles):
        for name, value in single.items():
            torch.testing.assert_close(cohort[name][k], value.detach(), rtol=1e-6, atol=1e-7)
    assert adam.steps["w"].tolist() == [6, 5, 3]
