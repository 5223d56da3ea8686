"""How CNFGNN's server learns: a graph network on the clients' encodings of the same time.

Nothing here knows of messages. A step is taken in two halves, because the clients stand between
them: `proposed` is what the network makes of some time steps, `learn` takes in its gradient.
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
    """The encodings of N clients at T time steps from a position of their clock on.

    keys: the clients. first: the position. values: [T, N, d_h]. there, trained: [T, N] bool,
    whether a client has a sample at a time, and one that it trains on.
    """

    keys: list[ClientKey]
    first: int
    values: Tensor
    there: Tensor
    trained: Tensor
    graph: Graph

    @staticmethod
    def of(
        found: Mapping[ClientKey, NDArray[np.float32]],
        times: Mapping[ClientKey, SampleTimes],
        first: int,
        graph: Graph,
    ) -> Encoded:
        """found: [T, d_h] of each client, in the order of the graph's vertices."""
        keys = list(found)
        values = torch.from_numpy(np.stack([found[key] for key in keys], axis=1))
        clock = first + torch.arange(len(values)).unsqueeze(1)  # (T, 1)
        begins, trained, ends = (
            torch.tensor([[getattr(times[key], name) for key in keys]])
            for name in ("first", "trained", "end")
        )
        since = clock >= begins
        there, training = since & (clock < ends), since & (clock < trained)
        return Encoded(keys, first, values, there, training, graph)

    def of_training(self) -> Encoded:
        """The time steps up to the last at which anyone trains, of the samples trained on."""
        end = int(self.trained.any(dim=1).nonzero().max()) + 1
        trained = self.trained[:end]
        return replace(self, values=self.values[:end], there=trained, trained=trained)

    def of_evaluation(self) -> Encoded:
        """The time steps from the first at which anyone has a sample that is not trained on."""
        begin = int((self.there & ~self.trained).any(dim=1).nonzero().min())
        values, there, trained = self.values[begin:], self.there[begin:], self.trained[begin:]
        first = self.first + begin
        return replace(self, first=first, values=values, there=there, trained=trained)


@dataclass(frozen=True)
class Given:
    """g of N clients at T time steps from a position of their clock on: values [N, T, d_g]."""

    keys: list[ClientKey]
    first: int
    values: NDArray[np.float32]

    @staticmethod
    def nothing() -> Given:
        """Of nobody."""
        return Given([], 0, np.zeros((0, 0, 0), dtype=np.float32))


@dataclass(frozen=True)
class Proposal:
    """What the network makes of some time steps [T]: made [T, N, d_g], of leaves [1, …]."""

    steps: Tensor
    made: Tensor
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
    def given(self, encoded: Encoded) -> Given:
        """g of all time steps, 0 of a client that has no sample then."""
        size = self._section.server_batch
        network = {name: value[0] for name, value in self._values.items()}
        parts = [
            self._network.answers(network, *some, encoded.graph)
            for some in zip(
                torch.split(encoded.values, size), torch.split(encoded.there, size), strict=True
            )
        ]
        made = torch.cat(parts).transpose(0, 1).contiguous()
        return Given(encoded.keys, encoded.first, made.numpy())

    def batches(self, encoded: Encoded, server_round: int) -> Iterator[Tensor]:
        """The time steps at which anyone trains, every epoch in an order of its own."""
        steps = encoded.trained.any(dim=1).nonzero().flatten()
        for epoch in range(self._section.server_epochs):
            draws = torch_stream(self._seed, "graph network", server_round, epoch)
            order = torch.randperm(len(steps), generator=draws)
            yield from torch.split(steps[order], self._section.server_batch)

    def proposed(self, encoded: Encoded, steps: Tensor) -> Proposal:
        """g at these time steps, of the samples that are trained on."""
        leaves = {name: value.clone().requires_grad_() for name, value in self._values.items()}
        made = self._network.answers(
            {name: leaf[0] for name, leaf in leaves.items()},
            encoded.values[steps],
            encoded.trained[steps],
            encoded.graph,
        )
        return Proposal(steps, made, leaves)

    def learn(self, proposal: Proposal, gradient: Tensor) -> None:
        """A step of Adam. gradient: ∂L/∂g, [T, N, d_g]."""
        slopes = torch.autograd.grad(
            [proposal.made],
            list(proposal.leaves.values()),
            [gradient],
            materialize_grads=True,  # the last block's network of the whole has no part in it
        )
        self._adam.step(self._values, dict(zip(proposal.leaves, slopes, strict=True)))

    def state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint; all names begin alike."""
        kinds = {"value": self._values, **self._adam.state}
        return {
            f"{_STATE}{kind}/{name}": value.numpy()
            for kind, named in kinds.items()
            for name, value in named.items()
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """What `state` gave, among other things or alone."""
        kinds = {"value": self._values, **self._adam.state}
        for key, array in state.items():
            if key.startswith(_STATE):
                kind, name = key.removeprefix(_STATE).split("/")
                kinds[kind][name].copy_(torch.from_numpy(array))
