"""The GCN of a community: its size, and each member's row of the whole network's output."""

from __future__ import annotations

import pytest
import torch

from fedproto_app.maths.graph import normalised
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.strategies.compared.fcgcn import CommunityGcn

WINDOWS = WindowLayout(close=3, distances=3, horizon=1, period=24, times=0)
PATH = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def test_it_has_the_paper_settings_513_values() -> None:
    model = CommunityGcn(64, WINDOWS)
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert sum(value.numel() for value in parameters.values()) == 6 * 64 + 64 + 64 + 1 == 513


@pytest.mark.parametrize("times", [0, 1])
def test_a_members_sample_gives_its_row_of_the_output(times: int) -> None:
    """Three clients, each with a model of its own here, against products of whole matrices."""
    layout = WindowLayout(close=2, distances=1, horizon=2, period=3, times=times)
    model = CommunityGcn(5, layout)
    draw = torch.Generator().manual_seed(0)
    initial = model.initial_parameters(draw)
    parameters = {n: torch.randn(3, *v.shape, generator=draw) for n, v in initial.items()}
    near = torch.from_numpy(normalised(PATH.numpy()))
    windows = torch.randn(7, 3, 4, generator=draw)  # of 7 times, 3 members, v = 2 + 1·2
    phases = torch.arange(7) % 3
    calendar = torch.eye(3)[phases][:, None].expand(-1, 3, -1)[..., : 3 * times]

    mixed = near @ windows
    samples = torch.cat(
        [
            torch.cat([mixed, torch.zeros(7, 1, 4)], dim=1).flatten(1).expand(3, -1, -1),
            torch.cat([near, torch.zeros(3, 1)], dim=1)[:, None].expand(-1, 7, -1),
            phases[:, None].float().expand(3, -1, -1)[..., :times],
        ],
        dim=2,
    )
    prediction = model.predict(parameters, model.encode(parameters, samples))
    for client in range(3):
        client_parameters = {name: value[client] for name, value in parameters.items()}
        first = (
            torch.cat([mixed, calendar], dim=2) @ client_parameters["encoder.weight"]
            + client_parameters["encoder.bias"]
        )
        outputs = (
            near @ first.relu() @ client_parameters["decoder.weight"]
            + client_parameters["decoder.bias"]
        )
        torch.testing.assert_close(prediction[client], outputs[:, client])
