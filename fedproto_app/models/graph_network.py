"""A graph network over the clients (Battaglia et al. 2018), of the size that CNFGNN's server has.

Each block has three networks with two hidden layers: of the edges, of the vertices and of the graph
as a whole. What a block makes is put beside what it was given. A linear layer makes the vertices'
answers of the last block's.
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
UPDATED = 128  # that a network makes for each edge, each vertex, the graph
_LAYERS = 3
_EDGES, _VERTICES, _WHOLE, _ANSWER = "edges.", "vertices.", "whole.", "answer."


class Graph(NamedTuple):
    """Edges: from which vertex [E], to which [E], int64, and the weight of each [E]."""

    source: Tensor
    target: Tensor
    weight: Tensor

    @staticmethod
    def of(adjacency: Tensor) -> Graph:
        """Of weights [N, N], from the row to the column; 0 is no edge, nor is the diagonal."""
        weights = adjacency.float().clone().fill_diagonal_(0)
        source, target = weights.nonzero(as_tuple=True)
        return Graph(source, target, weights[source, target])


class GraphNetwork:
    """Vertices with F values each → as many answers. At F = 64 it has 1,237,312 parameters."""

    def __init__(self, width: int, answers: int) -> None:
        """width: F. answers: values for each vertex."""
        self._width, self._answers = width, answers

    def initial_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """``<block>.<network>.<layer>.weight`` [inputs, outputs] and bias, ``answer.`` last."""
        vertices, edges, whole = self._width, 1, self._width
        drawn: dict[str, Tensor] = {}
        for block in range(BLOCKS):
            inputs = {
                _EDGES: 2 * vertices + edges + whole,
                _VERTICES: vertices + UPDATED + whole,
                _WHOLE: 2 * UPDATED + whole,
            }
            for network, width in inputs.items():
                sizes = (width, *[HIDDEN] * (_LAYERS - 1), UPDATED)
                for layer, (given, made) in enumerate(pairwise(sizes)):
                    prefix = f"{block}.{network}{layer}."
                    drawn |= _named(prefix, linear_parameters(given, made, generator))
            vertices, edges, whole = vertices + UPDATED, edges + UPDATED, whole + UPDATED
        return drawn | _named(_ANSWER, linear_parameters(vertices, self._answers, generator))

    def answers(
        self, parameters: Mapping[str, Tensor], vertices: Tensor, present: Tensor, graph: Graph
    ) -> Tensor:
        """[T, N, F] → [T, N, answers], the T times apart from each other.

        present: [T, N] bool. A vertex that is absent at a time has no edges then, no part in the
        whole, and the answer 0. The whole begins as 0, and so does nothing else.
        """
        there = present.unsqueeze(2).to(vertices.dtype)  # (T, N, 1)
        joined = there[:, graph.source] * there[:, graph.target]  # (T, E, 1)
        vertices = vertices * there
        edges = graph.weight.to(vertices.dtype)[:, None].expand(*joined.shape)
        whole = vertices.new_zeros(len(vertices), 1, self._width)
        for block in range(BLOCKS):
            name = f"{block}."
            from_edges = _network(
                parameters,
                name + _EDGES,
                [vertices, vertices, edges, whole],
                [graph.source, graph.target, None, None],
            )
            made_edges = from_edges * joined
            received = vertices.new_zeros(*present.shape, UPDATED)
            received = received.index_add(1, graph.target, made_edges)
            parts = [vertices, received, whole]
            made_vertices = _network(parameters, name + _VERTICES, parts) * there
            if block < BLOCKS - 1:  # nobody would ask for the last one's
                sums = [one.sum(dim=1, keepdim=True) for one in (made_vertices, made_edges)]
                made_whole = _network(parameters, name + _WHOLE, [*sums, whole])
                whole = torch.cat([made_whole, whole], dim=2)
            vertices = torch.cat([made_vertices, vertices], dim=2)
            edges = torch.cat([made_edges, edges], dim=2)
        return _linear(parameters, _ANSWER, vertices) * there


def _network(
    parameters: Mapping[str, Tensor],
    prefix: str,
    parts: Sequence[Tensor],
    picked: Sequence[Tensor | None] = (),
) -> Tensor:
    """A network with ReLU on these inputs side by side, [T, M, …] each, or M = 1 for all.

    picked: of each part the rows that are meant, None for all. The first layer multiplies before
    rows are picked: a vertex has many edges.
    """
    widths = [part.shape[2] for part in parts]
    weights = torch.split(parameters[f"{prefix}0.weight"], widths)
    hidden = parameters[f"{prefix}0.bias"]
    for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        made, rows = part @ weight, picked[number] if picked else None
        hidden = hidden + (made if rows is None else made[:, rows])
    for layer in range(1, _LAYERS):
        hidden = _linear(parameters, f"{prefix}{layer}.", torch.relu(hidden))
    return hidden


def _linear(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    return inputs @ parameters[prefix + "weight"] + parameters[prefix + "bias"]


def _named(prefix: str, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in drawn.items()}
