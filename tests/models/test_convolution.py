"""The operations of the image encoders against torch's, one client at a time."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.models.convolution import (
    conv2d,
    conv_parameters,
    each_client,
    group_norm,
    norm_parameters,
)
from tests.models.torch_oracle import normal, require_torchs, seeded


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 2, 0)])
def test_conv2d_is_each_clients_own(clients: int, kernel: int, stride: int, padding: int) -> None:
    weight = normal(clients, 4, 2, kernel, kernel).requires_grad_()
    inputs = normal(clients, 5, 2, 7, 6, seed=1).requires_grad_()
    ours = conv2d(weight, inputs, stride=stride, padding=padding)
    layer = partial(nn.Conv2d, 2, 4, kernel, stride, padding, bias=False)
    require_torchs(ours, inputs, [weight], layer)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_is_each_clients_own(clients: int, groups: int) -> None:
    weight, bias = (normal(clients, 6, seed=seed).requires_grad_() for seed in (1, 2))
    inputs = normal(clients, 5, 6, 3, 2).requires_grad_()
    ours = group_norm(inputs, weight, bias, groups)
    require_torchs(ours, inputs, [weight, bias], partial(nn.GroupNorm, groups, 6))


def test_each_client_is_the_module_itself() -> None:
    def module(parameters: dict[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
        sizes.append(inputs.shape[0])
        assert list(parameters) == ["a.weight"]
        return conv2d(parameters[prefix + "weight"], inputs)

    sizes: list[int] = []
    weight = normal(3, 4, 2, 1, 1).requires_grad_()
    inputs = normal(3, 5, 2, 4, 4, seed=1)
    looped = each_client(module, {"a.weight": weight, "b.weight": weight}, "a.", inputs)
    together = module({"a.weight": weight}, "a.", inputs)
    assert sizes == [1, 1, 1, 3]
    torch.testing.assert_close(looped, together)
    torch.testing.assert_close(
        torch.autograd.grad(looped.square().sum(), weight),
        torch.autograd.grad(together.square().sum(), weight),
    )


def test_initial_values() -> None:
    weight = conv_parameters(64, 32, 3, seeded())["weight"]
    assert weight.shape == (32, 64, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=2e-3)
    norm = norm_parameters(3)
    assert (norm["weight"].tolist(), norm["bias"].tolist()) == ([1.0] * 3, [0.0] * 3)
