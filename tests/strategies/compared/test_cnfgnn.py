"""CNFGNN's forecasters against torch's GRUs, and its graph network against layers by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import Forecaster
from fedproto_app.strategies.compared.cnfgnn.models import (
    BLOCKS,
    UPDATED,
    Graph,
    GraphForecaster,
    GraphNetwork,
    GuidedForecaster,
    Seq2SeqForecaster,
)
from fedproto_app.strategies.compared.cnfgnn.strategy import clipped_to_median

PLACES = [-3, -2, -1, -72, -48, -24]  # close values, then one, two, three days ago


def layout(horizon: int = 1, times: int = 0) -> WindowLayout:
    return WindowLayout(close=3, distances=3, horizon=horizon, period=24, times=times)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rand(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def one_client(model: GraphForecaster) -> dict[str, Tensor]:
    drawn = model.initial_parameters(seeded())
    return {name: value.unsqueeze(0).double() for name, value in drawn.items()}


def guided(model: GraphForecaster, samples: Tensor, graph: Tensor) -> Tensor:
    """Samples whose first targets are at the phases 22, 23, 0, …."""
    phases = (22 + torch.arange(samples.shape[1])) % 24
    return model.guided(samples, phases.double().unsqueeze(0), graph)


def test_sizes_are_what_the_papers_count_is_made_of() -> None:
    parameters = Seq2SeqForecaster(layout(), PLACES, 64).initial_parameters(seeded())
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
    samples = rand(1, rows, len(places))
    graph = rand(1, rows, hidden, seed=2)
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
        samples = rand(1, 3, 6)
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
    samples = rand(1, 3, 3 + 6)
    numbers = torch.tensor([[5.0, 1.0], [6.0, 1.0], [7.0, 6.0]], dtype=torch.float64)
    samples = torch.cat([samples, numbers[None, :, :times]], dim=2)
    without = {**parameters, "decoder.weight": parameters["decoder.weight"].clone()}
    without["decoder.weight"] = torch.cat(
        [parameters["decoder.weight"][:, :8], parameters["decoder.weight"][:, 12:]], dim=1
    )
    r = torch.cat([fuels.encode(without, samples), window_layout.blocks(samples).beside()], dim=2)
    inputs = guided(model, samples, torch.zeros(1, 3, 4, dtype=torch.float64))
    actual = model.predict(parameters, model.encode(parameters, inputs))
    torch.testing.assert_close(actual, fuels.predict(without, r))


WIDTH, ANSWERS = 5, 3


def drawn(network: GraphNetwork) -> dict[str, Tensor]:
    """In float64, so that other orders of sums tell nothing."""
    initial = network.initial_parameters(seeded())
    return {name: value.double() for name, value in initial.items()}


ADJACENCY = torch.tensor([[9.0, 0.5, 0.0], [0.5, 0.0, 0.2], [0.7, 0.2, 0.0]])  # 0.7: one way


def test_its_size_is_the_published_one() -> None:
    parameters = GraphNetwork(64, 64).initial_parameters(seeded())
    sizes: dict[str, int] = {}
    for name, value in parameters.items():
        part = ".".join(name.split(".")[: 1 if name.startswith("answer") else 2])
        sizes[part] = sizes.get(part, 0) + value.numel()
    assert sizes == {
        "0.edges": 148_352,  # 2·64 + 1 + 64 inputs
        "0.vertices": 164_480,  # 64 + 128 + 64
        "0.whole": 180_864,  # 128 + 128 + 64
        "1.edges": 279_424,  # 2·192 + 129 + 192
        "1.vertices": 230_016,  # 192 + 128 + 192
        "1.whole": 213_632,  # 128 + 128 + 192
        "answer": 20_544,  # 320 → 64
    }
    assert sum(sizes.values()) == 1_237_312


def network_of(parameters: dict[str, Tensor], prefix: str, *parts: Tensor) -> Tensor:
    hidden = torch.cat(parts)
    for layer in range(3):
        hidden = torch.relu(hidden) if layer else hidden
        weight, bias = (parameters[f"{prefix}.{layer}.{name}"] for name in ("weight", "bias"))
        hidden = weight.T @ hidden + bias
    return hidden


def by_hand(
    parameters: dict[str, Tensor], vertices: Tensor, edges: list[tuple[int, int]]
) -> Tensor:
    """One time: edge by edge, vertex by vertex, [N, F] → [N, answers]."""
    states, graph_values = list(vertices), vertices.new_zeros(WIDTH)
    on = {edge: ADJACENCY[edge].double().reshape(1) for edge in edges}
    for block in range(BLOCKS):
        messages = {
            (a, b): network_of(
                parameters, f"{block}.edges", states[a], states[b], value, graph_values
            )
            for (a, b), value in on.items()
        }
        got = [vertices.new_zeros(UPDATED) for _ in states]
        for (_, b), message in messages.items():
            got[b] = got[b] + message
        updated = [
            network_of(parameters, f"{block}.vertices", state, message, graph_values)
            for state, message in zip(states, got, strict=True)
        ]
        total = sum(messages.values(), start=vertices.new_zeros(UPDATED))
        sums = torch.stack(updated).sum(dim=0), total, graph_values
        graph_values = torch.cat([network_of(parameters, f"{block}.whole", *sums), graph_values])
        states = [torch.cat([new, state]) for new, state in zip(updated, states, strict=True)]
        on = {edge: torch.cat([messages[edge], on[edge]]) for edge in on}
    return torch.stack(states) @ parameters["answer.weight"] + parameters["answer.bias"]


def test_it_equals_layers_on_inputs_side_by_side() -> None:
    network = GraphNetwork(WIDTH, ANSWERS)
    parameters, vertices = drawn(network), rand(2, 3, WIDTH)
    present = torch.ones(2, 3, dtype=torch.bool)
    actual = network.answers(parameters, vertices, present, Graph.of(ADJACENCY))
    edges = [(0, 1), (1, 0), (1, 2), (2, 0), (2, 1)]
    expected = torch.stack([by_hand(parameters, features, edges) for features in vertices])
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


def test_who_is_absent_changes_nothing_for_the_others() -> None:
    network = GraphNetwork(WIDTH, ANSWERS)
    parameters, vertices = drawn(network), rand(2, 3, WIDTH)
    present = torch.tensor([[True, False, True], [True, True, True]])
    vertices[0, 1] = 1e6
    actual = network.answers(parameters, vertices, present, Graph.of(ADJACENCY))
    without_absent = network.answers(
        parameters,
        vertices[:1, [0, 2]],
        torch.ones(1, 2, dtype=torch.bool),
        Graph.of(ADJACENCY[[0, 2]][:, [0, 2]]),
    )
    torch.testing.assert_close(actual[0, [0, 2]], without_absent[0], rtol=1e-6, atol=1e-9)
    assert not actual[0, 1].any()
    assert actual[1, 1].any()


@pytest.mark.parametrize("weight", [0.0, 1.0, 100.0])
def test_of_one_vertex_the_adjacency_does_not_matter(weight: float) -> None:
    network = GraphNetwork(WIDTH, ANSWERS)
    parameters, vertices = drawn(network), rand(4, 1, WIDTH)
    graph = Graph.of(torch.full((1, 1), weight))
    assert graph.source.numel() == 0
    actual = network.answers(parameters, vertices, torch.ones(4, 1, dtype=torch.bool), graph)
    expected = torch.stack([by_hand(parameters, features, []) for features in vertices])
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


def test_none_is_much_longer_than_the_others() -> None:
    gradients = torch.zeros(5, 2, 2)
    for row, length in enumerate((1.0, 2.0, 3.0, 0.0, 1e30)):
        gradients[row, 0, 0] = length
    clipped, shortened = clipped_to_median(gradients, 10.0)
    # The median of the lengths above 0 is 2.5.
    assert clipped[:, 0, 0].tolist() == [1.0, 2.0, 3.0, 0.0, 25.0]
    assert shortened == 1
    assert torch.equal(clipped_to_median(gradients[:3], 10.0)[0], gradients[:3])
    zeros = torch.zeros(2, 3)
    assert clipped_to_median(zeros, 10.0)[0] is zeros
