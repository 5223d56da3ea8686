"""The models of CNFGNN (Meng, Rambhatla, Liu, KDD 2021): a forecaster at each client, which reads a
vector g with each sample, and the server's graph network, which computes g from all encodings.

CNFGNN's own forecaster encodes with one GRU and decodes with another. The second forecaster here is
FUELS's, with g beside its representation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WEEK, WindowLayout
from fedproto_app.models.forecaster import DECODER, Forecaster
from fedproto_app.models.gru import gru_last_hidden, gru_parameters
from fedproto_app.models.linear import linear, linear_parameters, with_prefixes
from fedproto_app.models.model import ENCODER, Model

_DECODING = DECODER + "gru."


class GraphForecaster(Model):
    """A model of guided samples, see `guided`.

    encoding_width: d_h, the length of h, which the server receives. graph_width: d_g, the length
    of g, which it returns.
    """

    encoding_width: int
    graph_width: int

    def __init__(self, layout: WindowLayout, graph_width: int) -> None:
        self.layout, self.graph_width = layout, graph_width

    @abstractmethod
    def encoding(self, parameters: Mapping[str, Tensor], samples: Tensor) -> Tensor:
        """Return h without g: [K, B, …] → [K, B, d_h], a GRU's state, so between -1 and 1."""

    def guided(self, samples: Tensor, phases: Tensor, graph: Tensor) -> Tensor:
        """Return samples [K, n, …] with phase and g inserted between their values and times.

        phases: the phases of the first targets, [K, n]. graph: g, [K, n, d_g].
        """
        values, times = self.layout.split(samples)
        return torch.cat([values, phases.unsqueeze(2), graph, times], dim=2)

    def guidance(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the phase [K, B, 1] and g [K, B, d_g] of guided samples."""
        front, _ = self.layout.split(samples)
        _, phase, graph = torch.split(front, [self.layout.values, 1, self.graph_width], dim=-1)
        return phase, graph


class Seq2SeqForecaster(GraphForecaster):
    """CNFGNN's encoder and decoder GRUs.

    The encoder reads the values in the order of their times, each with its phase as a share of the
    period. The decoder starts at [h; g], reads the newest value and forecasts the next, and so on
    for several steps ahead. If models see the day of the week, it follows the phase. Without it, at
    d_h = d_g = 64, there are 63,873 parameters: 13,056 in the encoder, and 50,688 and 129 in the
    decoder.
    """

    def __init__(self, layout: WindowLayout, places: Sequence[int], hidden: int) -> None:
        """places: the times of a sample's past values, in steps from the first target on. hidden:
        d_h and d_g."""
        super().__init__(layout, hidden)
        self.encoding_width = hidden
        self._sees_days = layout.times > 1
        self._inputs = 2 + self._sees_days
        self.representation_dim = 2 * hidden + self._inputs
        self._order = sorted(range(len(places)), key=places.__getitem__)
        self._places = torch.tensor([places[column] for column in self._order])

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = gru_parameters(self.encoding_width, generator, self._inputs)
        return with_prefixes({ENCODER: drawn})

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        width = self.encoding_width + self.graph_width
        decoding = gru_parameters(width, generator, self._inputs)
        return with_prefixes({_DECODING: decoding, DECODER: linear_parameters(width, 1, generator)})

    def encoding(self, parameters: Mapping[str, Tensor], samples: Tensor) -> Tensor:
        times = self._times(samples).unsqueeze(2)  # (K, B, 1, 1 or 2)
        read = self._read(samples[..., self._order], times, self._places.to(samples.device))
        return gru_last_hidden(parameters, ENCODER, read.flatten(2))

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Return the decoder's start, [h; g], the newest value and the first target's time."""
        (samples,) = inputs
        newest = self.layout.blocks(samples).close[..., -1:]
        encoding = self.encoding(parameters, samples)
        _, graph = self.guidance(samples)
        return torch.cat([encoding, graph, newest, self._times(samples)], dim=2)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        state, inputs = torch.split(
            representation, [self.encoding_width + self.graph_width, self._inputs], dim=2
        )
        newest, times, forecasts = inputs[..., 0], inputs[..., 1:], []
        for step in range(self.layout.horizon):
            read = self._read(newest, times, step - 1)
            state = gru_last_hidden(parameters, _DECODING, read, state)
            newest = linear(parameters, DECODER, state).squeeze(2)
            forecasts.append(newest)
        return torch.stack(forecasts, dim=2)

    def _times(self, samples: Tensor) -> Tensor:
        """Return the first target's phase, and its day where models see it, [K, B, 1 or 2]."""
        phase, _ = self.guidance(samples)
        days = self.layout.blocks(samples).times[..., 1:]
        return torch.cat([phase, days], dim=2)

    def _read(self, values: Tensor, times: Tensor, ahead: Tensor | int) -> Tensor:
        """Return each value with its time as shares of period and week, [..., 2 or 3].

        times: the times of a reference step. ahead: the number of steps from it to the values.
        """
        period = self.layout.period
        steps = times[..., 0] + ahead
        columns = [values, steps.remainder(period) / period]
        if self._sees_days:
            columns.append((times[..., 1] + steps.div(period, rounding_mode="floor")) % WEEK / WEEK)
        return torch.stack(columns, dim=-1)


class GuidedForecaster(GraphForecaster):
    """FUELS's forecaster, whose decoder gets g after r. Here h is r."""

    def __init__(self, representation_dim: int, layout: WindowLayout, graph_width: int) -> None:
        super().__init__(layout, graph_width)
        self.encoding_width = representation_dim
        self.representation_dim = representation_dim + graph_width + layout.beside_width
        self._forecaster = Forecaster(representation_dim, layout)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._forecaster.encoder_parameters(generator)

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = linear_parameters(self.representation_dim, self.layout.horizon, generator)
        return with_prefixes({DECODER: drawn})

    def encoding(self, parameters: Mapping[str, Tensor], samples: Tensor) -> Tensor:
        return self._forecaster.encode(parameters, samples)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        encoding = self.encoding(parameters, samples)
        beside = self.layout.blocks(samples).beside()
        _, graph = self.guidance(samples)
        return torch.cat([encoding, graph, beside], dim=2)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        return linear(parameters, DECODER, representation)


# A graph network over the clients (Battaglia et al. 2018), as large as the network at
# CNFGNN's server.
#
# Each block has three networks with two hidden layers: for the edges, for the vertices and for the
# graph. A block's outputs are concatenated with its inputs. A linear layer maps the last block's
# vertices to the outputs.

BLOCKS = 2
HIDDEN = 256  # outputs of every hidden layer
UPDATED = 128  # outputs of a network for each edge, each vertex or the graph
_LAYERS = 3
_EDGES, _VERTICES, _GRAPH, _ANSWER = "edges.", "vertices.", "whole.", "answer."


class Graph(NamedTuple):
    """E edges: source and target vertices [E] int64, and weights [E]."""

    source: Tensor
    target: Tensor
    weight: Tensor

    @staticmethod
    def from_adjacency(adjacency: Tensor) -> Graph:
        """Return the graph of weights [N, N], from row to column, without zeros and diagonal."""
        weights = adjacency.float().clone().fill_diagonal_(0)
        source, target = weights.nonzero(as_tuple=True)
        return Graph(source, target, weights[source, target])


class GraphNetwork:
    """Maps F values of each vertex to outputs. With 64 of each it has 1,237,312 parameters."""

    def __init__(self, width: int, answers: int) -> None:
        """width: F. answers: the number of outputs of each vertex."""
        self._width, self._answers = width, answers

    def initial_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """``<block>.<network>.<layer>.weight`` [inputs, outputs] and bias, ``answer.`` last."""
        vertices, edges, graph_width = self._width, 1, self._width
        parts: dict[str, dict[str, Tensor]] = {}
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
                    parts[prefix] = linear_parameters(layer_inputs, layer_outputs, generator)
            vertices, edges, graph_width = (
                vertices + UPDATED,
                edges + UPDATED,
                graph_width + UPDATED,
            )
        parts[_ANSWER] = linear_parameters(vertices, self._answers, generator)
        return with_prefixes(parts)

    def answers(
        self, parameters: Mapping[str, Tensor], vertices: Tensor, present: Tensor, graph: Graph
    ) -> Tensor:
        """Return the outputs, computed for each time separately: [T, N, F] → [T, N, answers].

        present: [T, N] bool. A vertex that is absent at a time has no edges then, is left out of
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

    picked: the rows to take from each part, or None for all. The first layer multiplies before rows
    are picked, because a vertex has many edges.
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
