"""The causal CNN against torch's modules, one client and one series at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedproto_app.models.causal_cnn import (
    BLOCK,
    CausalCnnSize,
    _features,
    causal_cnn,
    causal_cnn_parameters,
)

PAPER = CausalCnnSize(blocks=10, channels=40, reduced_dim=160, output_dim=320)
SMALL = CausalCnnSize(blocks=4, channels=5, reduced_dim=7, output_dim=6)


class Block(nn.Module):
    """As Franceschi et al. build it: pad both sides, cut off the right one."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        pad = 2 * dilation
        self.first, self.second = (
            weight_norm(nn.Conv1d(width, outputs, 3, padding=pad, dilation=dilation))
            for width in (inputs, outputs)
        )
        self.residual = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, series: Tensor) -> Tensor:
        hidden = series
        for convolution in (self.first, self.second):
            hidden = nn.functional.leaky_relu(convolution(hidden)[..., : series.shape[2]], 0.01)
        return hidden + self.residual(series)


def reference(parameters: dict[str, Tensor], dimensions: int) -> tuple[nn.Sequential, nn.Linear]:
    """Return torch's model with one client's parameters, in the order of storage."""
    widths = [dimensions, *[SMALL.channels] * (SMALL.blocks - 1), SMALL.reduced_dim]
    blocks = nn.Sequential(
        *(Block(widths[n], widths[n + 1], 2**n) for n in range(SMALL.blocks))
    ).double()
    final = nn.Linear(SMALL.reduced_dim, SMALL.output_dim).double()
    with torch.no_grad():
        for n, block in enumerate(blocks):
            for name in ("first", "second"):
                convolution, stored = getattr(block, name), f"blocks.{n}.{name}."
                kernel = convolution.parametrizations.weight
                kernel.original0.copy_(parameters[stored + "scale"].view(-1, 1, 1))
                kernel.original1.copy_(parameters[stored + "direction"].permute(2, 1, 0))
                convolution.bias.copy_(parameters[stored + "bias"])
            if not isinstance(block.residual, nn.Identity):
                block.residual.weight.copy_(
                    parameters[f"blocks.{n}.residual.weight"].T.unsqueeze(2)
                )
                block.residual.bias.copy_(parameters[f"blocks.{n}.residual.bias"])
        final.weight.copy_(parameters["linear.weight"].T)
        final.bias.copy_(parameters["linear.bias"])
    return blocks, final


def causal_features(parameters: dict[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    """What comes out of the blocks: [K, B, T, d] → [K, B, T, reduced_dim]."""
    return _features(parameters, prefix + BLOCK, inputs).transpose(1, 2)


def clients_parameters(clients: int, dimensions: int) -> dict[str, Tensor]:
    """Stacked, in double precision; scales moved off the norms, so that they have a part."""
    all_parameters = []
    for k in range(clients):
        generator = torch.Generator().manual_seed(k)
        values = causal_cnn_parameters(dimensions, SMALL, generator)
        for name, value in values.items():
            if name.endswith("scale"):
                value += 0.3 * torch.rand(value.shape, generator=generator)
        all_parameters.append(values)
    return {
        "encoder." + name: torch.stack(
            [client_parameters[name] for client_parameters in all_parameters]
        )
        .double()
        .requires_grad_()
        for name in all_parameters[0]
    }


def one_client(parameters: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    return {name.removeprefix("encoder."): value[k] for name, value in parameters.items()}


def series(clients: int, batch: int, steps: int, dimensions: int) -> Tensor:
    generator = torch.Generator().manual_seed(99)
    return torch.randn(clients, batch, steps, dimensions, generator=generator).double()


# The dilations are 1, 2, 4, 8; with 5 dimensions the first block needs no residual convolution.
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(
    ("steps", "dimensions"), [(1, 3), (2, 1), (3, 5), (9, 2), (17, 3), (40, 8)]
)
def test_equals_torch_for_every_client(clients: int, steps: int, dimensions: int) -> None:
    parameters = clients_parameters(clients, dimensions)
    inputs = series(clients, 4, steps, dimensions).requires_grad_()
    lengths = torch.full((clients, 4), steps)
    ours = causal_cnn(parameters, "encoder.", inputs, lengths)
    assert ours.shape == (clients, 4, SMALL.output_dim)
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7)).double()
    *gradients, of_inputs = torch.autograd.grad(ours, [*parameters.values(), inputs], upstream)
    features = causal_features(parameters, "encoder.", inputs)
    for k in range(clients):
        blocks, final = reference(one_client(parameters, k), dimensions)
        client_inputs = inputs[k].detach().requires_grad_()
        reference_features = blocks(client_inputs.transpose(1, 2))
        torch.testing.assert_close(features[k], reference_features.transpose(1, 2))
        expected = final(reference_features.amax(dim=2))
        torch.testing.assert_close(ours[k], expected)
        expected.backward(upstream[k])
        torch.testing.assert_close(of_inputs[k], client_inputs.grad)
        gradient_of = dict(zip(parameters, gradients, strict=True))
        mine = one_client(gradient_of, k)
        torch.testing.assert_close(mine["linear.weight"], final.weight.grad.T)
        for n, block in enumerate(blocks):
            for name in ("first", "second"):
                convolution, stored = getattr(block, name), f"blocks.{n}.{name}."
                kernel = convolution.parametrizations.weight
                direction = kernel.original1.grad.permute(2, 1, 0)
                torch.testing.assert_close(mine[stored + "direction"], direction)
                torch.testing.assert_close(mine[stored + "scale"], kernel.original0.grad.flatten())
                torch.testing.assert_close(mine[stored + "bias"], convolution.bias.grad)


def test_all_clients_at_once_as_on_a_gpu_equal_the_loop() -> None:
    parameters, inputs = clients_parameters(3, 2), series(3, 4, 12, 2)
    together = causal_features(parameters, "encoder.", inputs)
    for k in range(3):
        client_parameters = {name: value[k : k + 1] for name, value in parameters.items()}
        alone = causal_features(client_parameters, "encoder.", inputs[k : k + 1])
        torch.testing.assert_close(together[k : k + 1], alone)


def test_torch_draws_the_same_distribution() -> None:
    """Bounds of `nn.Conv1d` and `nn.Linear`, scales equal to norms; and the paper's sizes."""
    parameters = causal_cnn_parameters(3, PAPER, torch.Generator().manual_seed(0))
    bounds = {
        "blocks.0.first.": 9,
        "blocks.0.residual.": 3,
        "blocks.9.second.": 480,
        "linear.": 160,
    }
    for name, fan_in in bounds.items():
        weight = parameters.get(name + "direction", parameters.get(name + "weight"))
        for drawn in (weight, parameters[name + "bias"]):
            assert 0.9 * fan_in**-0.5 < drawn.abs().max() <= fan_in**-0.5
    for name in parameters:
        if name.endswith("direction"):
            norms = parameters[name].square().sum(dim=(0, 1)).sqrt()
            torch.testing.assert_close(parameters[name.replace("direction", "scale")], norms)
    assert parameters["blocks.9.first.direction"].shape == (3, 40, 160)
    assert parameters["linear.weight"].shape == (160, 320)
    residuals = [name for name in parameters if name.endswith("residual.weight")]
    assert residuals == ["blocks.0.residual.weight", "blocks.9.residual.weight"]


def test_bfloat16_is_close() -> None:
    parameters = {name: value.detach().float() for name, value in clients_parameters(2, 3).items()}
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    inputs, lengths = series(2, 4, 12, 3).float(), torch.full((2, 4), 12)
    exact = causal_cnn(leaves, "encoder.", inputs, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        rough = causal_cnn(leaves, "encoder.", inputs, lengths)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() < 0.02 * exact.norm()
    gradients = torch.autograd.grad(rough.float().sum(), list(leaves.values()))
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)
