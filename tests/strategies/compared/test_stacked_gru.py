"""GRUs on top of each other, against torch's."""

from __future__ import annotations

import torch

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.strategies.compared.fedgru import StackedGru


def test_fedgrus_model_has_two_layers_of_50_and_is_torchs() -> None:
    model = StackedGru(2, 50, WindowLayout(close=3, distances=3, horizon=1, period=24, times=0))
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert sum(value.numel() for value in parameters.values()) == 7_950 + 15_300 + 51 == 23_301
    reference = torch.nn.GRU(1, 50, num_layers=2, batch_first=True)
    for layer in (0, 1):
        for name, value in reference.named_parameters():
            if name.endswith(f"_l{layer}"):
                ours = parameters[f"encoder.layer-{layer}.{name.removesuffix(f'_l{layer}')}"]
                value.data.copy_(ours.T if ours.dim() == 2 else ours)
    samples = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    representation = model.encode(
        {name: value[None] for name, value in parameters.items()}, samples
    )
    in_time = torch.cat([samples[0, :, 3:], samples[0, :, :3]], dim=1)  # days ago, then hours
    _, last = reference(in_time[..., None])
    torch.testing.assert_close(representation[0], last[1], atol=1e-6, rtol=1e-5)


def test_the_head_sees_the_calendar_beside_the_state() -> None:
    model = StackedGru(1, 4, WindowLayout(close=2, distances=1, horizon=2, period=3, times=1))
    parameters = model.initial_parameters(torch.Generator().manual_seed(0))
    assert parameters["decoder.weight"].shape == (4 + 3, 2)
    stacked = {name: value[None] for name, value in parameters.items()}
    samples = torch.tensor([[[0.1, 0.2, 0.3, 0.4, 2.0]]])
    assert model.encode(stacked, samples)[0, 0, 4:].tolist() == [0, 0, 1]
    assert model.predict(stacked, model.encode(stacked, samples)).shape == (1, 1, 2)
