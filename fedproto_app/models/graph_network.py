"""A graph network over the clients (Battaglia et al. 2018), of the size that CNFGNN's server has.

Each block has three networks with two hidden layers: for the edges, for the vertices and for the
graph. A block's outputs are concatenated with its inputs. A linear layer maps the last block's
vertices to the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.models.linear import linear_parameters

BLOCKS = 2
HIDDEN = 256  # of every hidden layer
UPDATED = 128  # outputs of a network for each edge, each vertex, the graph
_LAYERS = 3
_EDGES, _VERTICES, _GRAPH, _ANSWER = "edges.", "vertices.", "whole.", "answer."


class Graph(NamedTuple):
    """E edges: source and target vertices [E] int64, and weights [E]."""

    source: Tensor
    target: Tensor
    weight: Tensor

    @staticmethod
    def of(adjacency: Tensor) -> Graph:
        """Return the graph of weights [N, N], row to column, without zeros and the diagonal."""
        weights = adjacency.float().clone().fill_diagonal_(0)
        source, target = weights.nonzero(as_tuple=True)
        return Graph(source, target, weights[source, target])


class GraphNetwork:
    """Maps F values of each vertex to as many outputs. At F = 64 it has 1,237,312 parameters."""

    def __init__(self, width: int, answers: int) -> None:
        """width: F. answers: values for each vertex."""
        self._width, self._answers = width, answers

    def initial_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """``<block>.<network>.<layer>.weight`` [inputs, outputs] and bias, ``answer.`` last."""
        vertices, edges, graph_width = self._width, 1, self._width
        drawn: dict[str, Tensor] = {}
        for block in range(BLOCKS):
            inputs = {
                _EDGES: 2 * vertices + edges + graph_width,
                _VERTICES: vertices + UPDATED + graph_width,
                _GRAPH: 2 * UPDATED + graph_width,
            }
            for network, width in inputs.items():
                sizes = (width, *[HIDDEN] * (_LAYERS - 1), UPDATED)
                for layer, (layer_inputs, layer_outputs) in enumerate(pairwise(sizes)):
                    prefix = f"{block}.{network}{layer}."
                    drawn |= _with_prefix(
                        prefix, linear_parameters(layer_inputs, layer_outputs, generator)
                    )
            vertices, edges, graph_width = (
                vertices + UPDATED,
                edges + UPDATED,
                graph_width + UPDATED,
            )
        return drawn | _with_prefix(_ANSWER, linear_parameters(vertices, self._answers, generator))

    def answers(
        self, parameters: Mapping[str, Tensor], vertices: Tensor, present: Tensor, graph: Graph
    ) -> Tensor:
        """Return the outputs, computed for each time separately: [T, N, F] → [T, N, answers].

        present: [T, N] bool. A vertex that is absent at a time has no edges then, does not count in
        the graph's values, and has the output 0. The graph's values begin at 0.
        """
        is_present = present.unsqueeze(2).to(vertices.dtype)  # (T, N, 1)
        joined = is_present[:, graph.source] * is_present[:, graph.target]  # (T, E, 1)
        vertices = vertices * is_present
        edges = graph.weight.to(vertices.dtype)[:, None].expand(*joined.shape)
        graph_values = vertices.new_zeros(len(vertices), 1, self._width)
        for block in range(BLOCKS):
            name = f"{block}."
            from_edges = _network(
                parameters,
                name + _EDGES,
                [vertices, vertices, edges, graph_values],
                [graph.source, graph.target, None, None],
            )
            made_edges = from_edges * joined
            received = vertices.new_zeros(*present.shape, UPDATED)
            received = received.index_add(1, graph.target, made_edges)
            parts = [vertices, received, graph_values]
            made_vertices = _network(parameters, name + _VERTICES, parts) * is_present
            if block < BLOCKS - 1:  # the last block's would not be used
                sums = [updated.sum(dim=1, keepdim=True) for updated in (made_vertices, made_edges)]
                made_whole = _network(parameters, name + _GRAPH, [*sums, graph_values])
                graph_values = torch.cat([made_whole, graph_values], dim=2)
            vertices = torch.cat([made_vertices, vertices], dim=2)
            edges = torch.cat([made_edges, edges], dim=2)
        return _linear(parameters, _ANSWER, vertices) * is_present


def _network(
    parameters: Mapping[str, Tensor],
    prefix: str,
    parts: Sequence[Tensor],
    picked: Sequence[Tensor | None] = (),
) -> Tensor:
    """Apply a network with ReLU to the concatenated parts, [T, M, …] each, or M = 1 for all.

    picked: rows to take from each part, None for all. The first layer multiplies before rows are
    picked, because a vertex has many edges.
    """
    widths = [part.shape[2] for part in parts]
    weights = torch.split(parameters[f"{prefix}0.weight"], widths)
    hidden = parameters[f"{prefix}0.bias"]
    for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        product, rows = part @ weight, picked[number] if picked else None
        hidden = hidden + (product if rows is None else product[:, rows])
    for layer in range(1, _LAYERS):
        hidden = _linear(parameters, f"{prefix}{layer}.", torch.relu(hidden))
    return hidden


def _linear(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    return inputs @ parameters[prefix + "weight"] + parameters[prefix + "bias"]


def _with_prefix(prefix: str, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in drawn.items()}
