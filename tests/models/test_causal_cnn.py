"""The causal CNN against torch's modules, one client and one series at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedproto_app.models.causal_cnn import (
    BLOCK,
    CausalCnnModel,
    CausalCnnSize,
    _features,
)
from fedproto_app.models.model import ENCODER
from tests.models.torch_oracle import (
    clients_encoders,
    normal,
    require_close_in_bfloat16,
    require_torchs,
    seeded,
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


class Reference(nn.Module):
    """torch's model with one client's parameters."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        widths = [dimensions, *[SMALL.channels] * (SMALL.blocks - 1), SMALL.reduced_dim]
        self.blocks = nn.Sequential(
            *(Block(widths[n], widths[n + 1], 2**n) for n in range(SMALL.blocks))
        )
        self.linear = nn.Linear(SMALL.reduced_dim, SMALL.output_dim)

    def forward(self, series: Tensor) -> Tensor:
        return self.linear(self.blocks(series.transpose(1, 2)).amax(dim=2))

    def stored(self, name: str) -> Tensor:
        """Return the parameter that our model stores by this name."""
        weights = "parametrizations.weight.original"
        parts = {"scale": f"{weights}0", "direction": f"{weights}1"}
        start, _, part = name.rpartition(".")
        return self.get_parameter(f"{start}.{parts.get(part, part)}")


# The dilations are 1, 2, 4, 8. With 5 dimensions the first block needs no residual convolution.
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(
    ("steps", "dimensions"), [(1, 3), (2, 1), (3, 5), (9, 2), (17, 3), (40, 8)]
)
def test_equals_torch_for_every_client(clients: int, steps: int, dimensions: int) -> None:
    model = CausalCnnModel(dimensions, 2, SMALL)
    parameters = clients_encoders(clients, model, torch.float64)
    inputs = normal(clients, 4, steps, dimensions, seed=99).requires_grad_()
    ours = model.encode(parameters, inputs, torch.full((clients, 4), steps))
    names = [name.removeprefix(ENCODER) for name in parameters]
    require_torchs(
        ours,
        inputs,
        parameters.values(),
        lambda: Reference(dimensions),
        torchs=lambda module: map(module.stored, names),
    )


def test_all_clients_at_once_as_on_a_gpu_equal_the_loop() -> None:
    parameters = clients_encoders(3, CausalCnnModel(2, 2, SMALL), torch.float64)
    inputs = normal(3, 4, 12, 2, seed=99)
    together = _features(parameters, BLOCK, inputs)
    for k in range(3):
        client_parameters = {name: value[k : k + 1] for name, value in parameters.items()}
        alone = _features(client_parameters, BLOCK, inputs[k : k + 1])
        torch.testing.assert_close(together[k : k + 1], alone)


def test_torch_draws_the_same_distribution() -> None:
    """Bounds of `nn.Conv1d` and `nn.Linear`, scales equal to norms, and the paper's sizes."""
    drawn = CausalCnnModel(3, 2, PAPER).encoder_parameters(seeded())
    parameters = {name.removeprefix(ENCODER): value for name, value in drawn.items()}
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
    model = CausalCnnModel(3, 2, SMALL)
    parameters = clients_encoders(2, model)
    inputs, lengths = normal(2, 4, 12, 3, dtype=torch.float32), torch.full((2, 4), 12)
    require_close_in_bfloat16(lambda: model.encode(parameters, inputs, lengths), parameters, 0.02)
