"""Model sizes of the paper, and the batched GRU against torch's."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import Forecaster, project, projector_parameters
from fedproto_app.models.gru import gru_last_hidden, gru_parameters
from tests.models.torch_oracle import normal, require_torchs, seeded, stacked

LAYOUT = WindowLayout(close=3, distances=3, horizon=1, period=24, times=0)


def parameters_of(representation_dim: int, prototype_dim: int = 0) -> dict[str, torch.Tensor]:
    """One client's model, and a projector where prototype_dim > 0."""
    draws = seeded()
    return {
        **Forecaster(representation_dim, LAYOUT).initial_parameters(draws),
        **projector_parameters(representation_dim, prototype_dim, draws),
    }


def test_sizes_are_the_papers() -> None:
    parameters = parameters_of(256, 32)
    size = {
        part: sum(v.numel() for n, v in parameters.items() if n.startswith(part))
        for part in ("encoder.", "decoder.", "projector.")
    }
    assert size == {"encoder.": 100_608, "decoder.": 257, "projector.": 256 * 32 + 32}


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (2, 1), (3, 1), (5, 1), (3, 4)])
def test_gru_equals_torch_for_every_client(steps: int, width: int) -> None:
    hidden, clients, rows = 5, 3, 4
    drawn = [gru_parameters(hidden, seeded(k), width) for k in range(clients)]
    parameters = stacked(drawn, dtype=torch.float64)
    window = normal(clients, rows, steps * width).requires_grad_()
    require_torchs(
        gru_last_hidden(parameters, "", window),
        window,
        [parameters[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")],
        lambda: nn.GRU(width, hidden, batch_first=True),
        call=lambda gru, values, _: gru(values.view(rows, steps, width))[1][0],
        close=partial(torch.testing.assert_close, rtol=0, atol=1e-12),
    )


def test_encoder_reads_close_and_periodic_values_apart() -> None:
    forecaster, parameters = Forecaster(8, LAYOUT), stacked([parameters_of(8)])
    inputs = torch.randn(1, 5, 6, generator=seeded(1))
    base = forecaster.encode(parameters, inputs)
    assert base.shape == (1, 5, 8)
    moved = inputs.clone()
    moved[..., :3] += 1
    changed = (forecaster.encode(parameters, moved) != base).any(dim=(0, 1))
    assert changed.tolist() == [True] * 4 + [False] * 4


def test_decoder_and_projector_are_linear_layers() -> None:
    parameters = stacked([parameters_of(4, 2)])
    r = torch.randn(1, 3, 4, generator=seeded(2))
    expected = r[0] @ parameters["decoder.weight"][0] + parameters["decoder.bias"][0]
    torch.testing.assert_close(Forecaster(4, LAYOUT).predict(parameters, r)[0], expected)
    expected = r[0] @ parameters["projector.weight"][0] + parameters["projector.bias"][0]
    torch.testing.assert_close(project(parameters, r)[0], expected)


def test_without_a_projector_the_prototype_is_the_representation() -> None:
    r = torch.randn(1, 3, 4)
    assert project(stacked([parameters_of(4)]), r) is r
