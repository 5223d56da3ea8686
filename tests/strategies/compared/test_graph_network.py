"""The graph network's size, and its answers against layers on inputs side by side."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedproto_app.strategies.compared.cnfgnn.models import BLOCKS, UPDATED, Graph, GraphNetwork

WIDTH, ANSWERS = 5, 3


def drawn(network: GraphNetwork) -> dict[str, Tensor]:
    """In float64, so that other orders of sums tell nothing."""
    initial = network.initial_parameters(torch.Generator().manual_seed(0))
    return {name: value.double() for name, value in initial.items()}


def rand(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


ADJACENCY = torch.tensor([[9.0, 0.5, 0.0], [0.5, 0.0, 0.2], [0.7, 0.2, 0.0]])  # 0.7: one way


def test_its_size_is_the_published_one() -> None:
    parameters = GraphNetwork(64, 64).initial_parameters(torch.Generator().manual_seed(0))
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
