"""Sizes of CNFGNN's model, against torch's GRUs, and FUELS's forecaster with g beside r."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import Forecaster
from fedproto_app.strategies.compared.cnfgnn.models import (
    GraphForecaster,
    GuidedForecaster,
    Seq2SeqForecaster,
)

PLACES = [-3, -2, -1, -72, -48, -24]  # close values, then one, two, three days ago


def layout(horizon: int = 1, times: int = 0) -> WindowLayout:
    return WindowLayout(close=3, distances=3, horizon=horizon, period=24, times=times)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_client(model: GraphForecaster) -> dict[str, Tensor]:
    drawn = model.initial_parameters(generator())
    return {name: value.unsqueeze(0).double() for name, value in drawn.items()}


def guided(model: GraphForecaster, samples: Tensor, graph: Tensor) -> Tensor:
    """Samples whose first targets are at the phases 22, 23, 0, …."""
    phases = (22 + torch.arange(samples.shape[1])) % 24
    return model.guided(samples, phases.double().unsqueeze(0), graph)


def test_sizes_are_what_the_papers_count_is_made_of() -> None:
    parameters = Seq2SeqForecaster(layout(), PLACES, 64).initial_parameters(generator())
    sizes = {
        part: sum(v.numel() for n, v in parameters.items() if n.startswith(part))
        for part in ("encoder.", "decoder.gru.", "decoder.")
    }
    assert sizes == {"encoder.": 13_056, "decoder.gru.": 50_688, "decoder.": 50_688 + 129}
    model = sum(value.numel() for value in parameters.values())
    assert model == 63_873
    assert model + 128 * 64 == 72_065  # with one batch of 128 encodings


def torchs(parameters: dict[str, Tensor], prefix: str, hidden: int) -> torch.nn.GRU:
    gru = torch.nn.GRU(len(parameters[prefix + "weight_ih"][0]), hidden, batch_first=True).double()
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(gru, name + "_l0").copy_(parameters[prefix + name][0].transpose(0, -1))
    return gru


@pytest.mark.parametrize(("horizon", "times"), [(1, 0), (3, 1), (3, 2)])
def test_it_equals_torchs_grus_over_the_values_in_the_order_of_time(
    horizon: int, times: int
) -> None:
    """Samples of Saturday evening and Sunday; with 2 calendar columns they hold the day, too."""
    hidden, rows = 4, 5
    distant = [day + ahead for day in (-72, -48, -24) for ahead in range(horizon)]
    places = [-3, -2, -1, *distant]
    model = Seq2SeqForecaster(layout(horizon, times), places, hidden)
    parameters = one_client(model)
    samples = torch.randn(1, rows, len(places), dtype=torch.float64, generator=generator(1))
    graph = torch.randn(1, rows, hidden, dtype=torch.float64, generator=generator(2))
    calendar = torch.tensor([[(22 + row) % 24, (5 + (22 + row) // 24) % 7] for row in range(rows)])
    samples = torch.cat([samples, calendar[None, :, :times].double()], dim=2)
    inputs = guided(model, samples, graph)
    encoder = torchs(parameters, "encoder.", hidden)
    decoder = torchs(parameters, "decoder.gru.", 2 * hidden)

    def time_of(row: int, place: int) -> list[float]:
        hour = 5 * 24 + 22 + row + place  # of the week
        return [hour % 24 / 24, *([hour // 24 % 7 / 7] if times > 1 else [])]

    for row in range(rows):
        in_time = sorted(range(len(places)), key=lambda column: places[column])
        read = [[float(samples[0, row, c]), *time_of(row, places[c])] for c in in_time]
        _, h = encoder(torch.tensor([read], dtype=torch.float64))
        torch.testing.assert_close(model.encoding(parameters, inputs)[0, row], h[0, 0])
        state = torch.cat([h[0, 0], graph[0, row]]).reshape(1, 1, -1)
        value, expected = samples[0, row, 2], []
        for step in range(horizon):
            step_input = [[[float(value.detach()), *time_of(row, step - 1)]]]
            _, state = decoder(torch.tensor(step_input, dtype=torch.float64), state)
            value = state[0, 0] @ parameters["decoder.weight"][0, :, 0]
            value = value + parameters["decoder.bias"][0, 0]
            expected.append(value)
        actual = model.predict(parameters, model.encode(parameters, inputs))
        torch.testing.assert_close(actual[0, row], torch.stack(expected))


def test_what_the_server_gets_does_not_depend_on_what_it_gives() -> None:
    for model in (Seq2SeqForecaster(layout(), PLACES, 4), GuidedForecaster(8, layout(), 4)):
        parameters = one_client(model)
        samples = torch.randn(1, 3, 6, dtype=torch.float64, generator=generator(1))
        none = guided(model, samples, torch.zeros(1, 3, 4, dtype=torch.float64))
        with_g = guided(model, samples, torch.ones(1, 3, 4, dtype=torch.float64))
        encodings = [
            model.encoding(parameters, guided_samples) for guided_samples in (none, with_g)
        ]
        assert torch.equal(*encodings)
        assert encodings[0].shape == (1, 3, model.encoding_width)
        assert encodings[0].abs().max() < 1
        forecasts = [model.predict(parameters, model.encode(parameters, o)) for o in (none, with_g)]
        assert not torch.isclose(*forecasts).any()


@pytest.mark.parametrize("times", [0, 2])
def test_without_g_the_guided_forecaster_is_fuelss(times: int) -> None:
    window_layout = layout(2, times)
    model, fuels = GuidedForecaster(8, window_layout, 4), Forecaster(8, window_layout)
    parameters = one_client(model)
    samples = torch.randn(1, 3, 3 + 6, dtype=torch.float64, generator=generator(1))
    numbers = torch.tensor([[5.0, 1.0], [6.0, 1.0], [7.0, 6.0]], dtype=torch.float64)
    samples = torch.cat([samples, numbers[None, :, :times]], dim=2)
    without = {**parameters, "decoder.weight": parameters["decoder.weight"].clone()}
    without["decoder.weight"] = torch.cat(
        [parameters["decoder.weight"][:, :8], parameters["decoder.weight"][:, 12:]], dim=1
    )
    r = torch.cat([fuels.encode(without, samples), window_layout.calendar(samples)], dim=2)
    inputs = guided(model, samples, torch.zeros(1, 3, 4, dtype=torch.float64))
    actual = model.predict(parameters, model.encode(parameters, inputs))
    torch.testing.assert_close(actual, fuels.predict(without, r))
