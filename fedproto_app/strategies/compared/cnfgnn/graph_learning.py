"""How CNFGNN's server learns: a graph network on the clients' encodings of the same time.

This module handles no messages. A step has two halves, because the clients compute the loss between
them: `proposed` returns the network's output at some time steps, `learn` applies its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import SampleTimes
from fedproto_app.core.randomness import torch_stream
from fedproto_app.maths.optim import CohortAdam
from fedproto_app.models.graph_network import Graph, GraphNetwork
from fedproto_app.strategies.compared.cnfgnn import CnfgnnSettings

_STATE = "network-"


@dataclass(frozen=True)
class Encoded:
    """The encodings of N clients at T consecutive time steps of their clock.

    keys: the clients. first: the position of the first step. values: [T, N, d_h]. present, trained:
    [T, N] bool, whether a client has a sample at a time step, and whether it trains on it.
    """

    keys: list[ClientKey]
    first: int
    values: Tensor
    present: Tensor
    trained: Tensor
    graph: Graph

    @staticmethod
    def of(
        encodings: Mapping[ClientKey, NDArray[np.float32]],
        times: Mapping[ClientKey, SampleTimes],
        first: int,
        graph: Graph,
    ) -> Encoded:
        """Stack the encodings, [T, d_h] of each client, in the order of the graph's vertices."""
        keys = list(encodings)
        values = torch.from_numpy(np.stack([encodings[key] for key in keys], axis=1))
        clock = first + torch.arange(len(values)).unsqueeze(1)  # (T, 1)
        begins, trained, ends = (
            torch.tensor([[getattr(times[key], name) for key in keys]])
            for name in ("first", "trained", "end")
        )
        since = clock >= begins
        present, training = since & (clock < ends), since & (clock < trained)
        return Encoded(keys, first, values, present, training, graph)

    def of_training(self) -> Encoded:
        """Return the samples trained on, up to the last time step at which a client trains."""
        end = int(self.trained.any(dim=1).nonzero().max()) + 1
        trained = self.trained[:end]
        return replace(self, values=self.values[:end], present=trained, trained=trained)

    def of_evaluation(self) -> Encoded:
        """Return the time steps from the first sample that no client trains on."""
        begin = int((self.present & ~self.trained).any(dim=1).nonzero().min())
        values, present, trained = self.values[begin:], self.present[begin:], self.trained[begin:]
        first = self.first + begin
        return replace(self, first=first, values=values, present=present, trained=trained)


@dataclass(frozen=True)
class GraphOutputs:
    """g of N clients at T consecutive time steps of their clock: values [N, T, d_g]."""

    keys: list[ClientKey]
    first: int
    values: NDArray[np.float32]

    @staticmethod
    def empty() -> GraphOutputs:
        """Return the outputs for no client."""
        return GraphOutputs([], 0, np.zeros((0, 0, 0), dtype=np.float32))


@dataclass(frozen=True)
class Proposal:
    """The network's outputs [T, N, d_g] at some time steps [T], and its parameters [1, …]."""

    steps: Tensor
    outputs: Tensor
    leaves: dict[str, Tensor]


class GraphLearning:
    """State: the network, and its Adam's moments."""

    def __init__(
        self, encoding_width: int, graph_width: int, section: CnfgnnSettings, seed: int
    ) -> None:
        self._section, self._seed = section, seed
        self._network = GraphNetwork(encoding_width, graph_width)
        drawn = self._network.initial_parameters(torch_stream(seed, "graph network"))
        self._values = {name: value.unsqueeze(0) for name, value in drawn.items()}
        self._adam = CohortAdam(self._values, section.server_rate)

    @torch.no_grad()
    def outputs(self, encoded: Encoded) -> GraphOutputs:
        """Return g at all time steps; 0 where a client has no sample."""
        size = self._section.server_batch
        network = {name: value[0] for name, value in self._values.items()}
        parts = [
            self._network.answers(network, *part, encoded.graph)
            for part in zip(
                torch.split(encoded.values, size), torch.split(encoded.present, size), strict=True
            )
        ]
        values = torch.cat(parts).transpose(0, 1).contiguous()
        return GraphOutputs(encoded.keys, encoded.first, values.numpy())

    def batches(self, encoded: Encoded, server_round: int) -> Iterator[Tensor]:
        """Yield the time steps at which a client trains, in a new order every epoch."""
        steps = encoded.trained.any(dim=1).nonzero().flatten()
        for epoch in range(self._section.server_epochs):
            draws = torch_stream(self._seed, "graph network", server_round, epoch)
            order = torch.randperm(len(steps), generator=draws)
            yield from torch.split(steps[order], self._section.server_batch)

    def proposed(self, encoded: Encoded, steps: Tensor) -> Proposal:
        """Return g at these time steps for the samples that are trained on."""
        leaves = {name: value.clone().requires_grad_() for name, value in self._values.items()}
        outputs = self._network.answers(
            {name: leaf[0] for name, leaf in leaves.items()},
            encoded.values[steps],
            encoded.trained[steps],
            encoded.graph,
        )
        return Proposal(steps, outputs, leaves)

    def learn(self, proposal: Proposal, gradient: Tensor) -> None:
        """Take a step of Adam. gradient: ∂L/∂g, [T, N, d_g]."""
        slopes = torch.autograd.grad(
            [proposal.outputs],
            list(proposal.leaves.values()),
            [gradient],
            materialize_grads=True,  # the last block's graph-level network is unused
        )
        self._adam.step(self._values, dict(zip(proposal.leaves, slopes, strict=True)))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a checkpoint; all names share a prefix."""
        kinds = {"value": self._values, **self._adam.state}
        return {
            f"{_STATE}{kind}/{name}": value.numpy()
            for kind, tensors in kinds.items()
            for name, value in tensors.items()
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state` returned; other arrays are ignored."""
        kinds = {"value": self._values, **self._adam.state}
        for key, array in state.items():
            if key.startswith(_STATE):
                kind, name = key.removeprefix(_STATE).split("/")
                kinds[kind][name].copy_(torch.from_numpy(array))
