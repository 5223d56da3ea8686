"""CNFGNN (Meng, Rambhatla, Liu, KDD 2021), server half: FedAvg, and a graph network over clients.

A round has four parts. The clients train with g fixed. The server takes the plain mean of their
models. Then, with the models fixed, the server asks all clients for the encodings h of all samples,
and its graph network computes g from them. For each batch of time steps it sends g, receives ∂L/∂g
and takes a step of Adam. Finally the network computes the g for evaluation and for the next round's
training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Guidance, Refusal, SampleTimes
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.round import Round, of_group, under
from fedproto_app.core.sends import Expected
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.optim import CohortAdam
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Ask, Federation
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.trust.outliers import usual
from fedproto_compared.cnfgnn import CnfgnnSettings
from fedproto_compared.cnfgnn.learner import (
    COUNT,
    ENCODINGS,
    FIRST,
    GRADIENT,
    GRAPH,
    STEPS,
)
from fedproto_compared.cnfgnn.models import Graph, GraphForecaster, GraphNetwork
from fedproto_compared.common.client_graph import ClientGraph
from fedproto_compared.common.server_training import arrays_of, restore_arrays

# How the server learns: it trains a graph network on the clients' encodings of the same time. The
# clients compute the loss, so a step has two halves: `proposed` returns the network's output at
# some time steps, and `learn` applies the gradient of this output.

_NETWORK, _OUTPUTS = "network", "outputs"  # groups of the state's arrays


@dataclass(frozen=True)
class Encoded:
    """The encodings of N clients at T consecutive time steps of their clock.

    keys: the clients. first: the position of the first step. values: [T, N, d_h]. present, trained:
    [T, N] bool, whether a client has a sample at a time step, and whether it trains on that sample.
    """

    keys: list[ClientKey]
    first: int
    values: Tensor
    present: Tensor
    trained: Tensor
    graph: Graph

    @staticmethod
    def stacked(
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
        """Return the samples that are trained on, up to the last step at which a client trains."""
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
        """Return g at all time steps, or 0 where a client has no sample."""
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

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays for a checkpoint, in a group of their own."""
        return under(_NETWORK, arrays_of(self._values, self._adam))

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore what `state` returned. Other arrays are ignored."""
        restore_arrays(of_group(state, _NETWORK), self._values, self._adam)


LARGEST_ENCODING = 1 + 1e-6  # a GRU's state lies between -1 and 1, save for rounding
# A client's gradient may be this many times as long as the median. A longer one is shortened. All
# losses are computed on standardised series.
LONGEST = 10.0
MOST_LENGTHS = 10  # a client's times may differ from the others' by this many usual lengths
MOST_VALUES = 2**29  # of all clients' encodings: 2 GiB

Times = dict[ClientKey, SampleTimes]


class CnfgnnStrategy(FedAvgStrategy):
    """State: the graph network, its Adam, the graph, and g of the samples trained on."""

    section: CnfgnnSettings
    judges_trained = False

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        model = self.learner.task.model
        assert isinstance(model, GraphForecaster)
        self._width = model.encoding_width
        self._graph = ClientGraph(settings, federation)
        self._learning = GraphLearning(self._width, model.graph_width, self.section, settings.seed)
        self.saved = [self._learning, self._graph]
        self._trained = self._evaluated = GraphOutputs.empty()
        self._strangers: set[ClientKey] = set()  # clients refused for their times

    def begin(self, round_: Round) -> None:
        if self.section.server_epochs:
            self._graph.complete(round_)

    def conclude(self, round_: Round) -> None:
        if self.section.server_epochs:
            self._server_round(round_, self.federation.asking(round_.number))

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Return the clients on the most common clock whose samples are of about the same time.

        g combines samples of the same time, so other clients cannot take part.
        """
        times = self._times(clients)
        counts = Counter(sample_times.clock for sample_times in times.values())
        common = min(counts, key=lambda clock: (-counts[clock], clock), default="")
        of_it = {
            key: sample_times for key, sample_times in times.items() if sample_times.clock == common
        }
        usual_clock = common or "none"
        faults = {
            key: f"its clock is {sample_times.clock or 'none'!r}, most clients have {usual_clock!r}"
            for key, sample_times in times.items()
            if key not in of_it
        }
        faults |= dict.fromkeys(
            _far_off(of_it), "its samples begin or end far from those of most clients"
        )
        for key in faults.keys() - self._strangers:
            self._strangers.add(key)
            self.federation.history.refuse(Refusal(key.node, key.client, faults[key]))
        return [key for key in clients if key in of_it.keys() - faults.keys()]

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients that sent their encodings this round. The others have no g."""
        able = self.eligible(clients)
        if not self.section.server_epochs:
            return able
        encoded = set(self._evaluated.keys)
        return [key for key in able if key in encoded]

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send g of the samples that are trained on, with the model."""
        return _graph_of(clients, self._trained)

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send g of the evaluated samples, with the model."""
        return _graph_of(clients, self._evaluated)

    def _server_round(self, round_: Round, ask: Ask) -> None:
        """Train the graph network with the model fixed, and compute g again."""
        self._trained = self._evaluated = GraphOutputs.empty()  # g belongs to the previous model
        encoded = self._encoded(round_, ask)
        if encoded is None:
            return
        shortened = steps = 0
        for chosen in self._learning.batches(encoded, round_.number):
            proposal = self._learning.proposed(encoded, chosen)
            gradient, count = self._gradient(encoded, proposal, ask)
            self._learning.learn(proposal, gradient)
            shortened, steps = shortened + count, steps + 1
        self._trained = self._learning.outputs(encoded.of_training())
        if round_.evaluated:
            self._evaluated = self._learning.outputs(encoded.of_evaluation())
        round_.figures |= {"graph_steps": steps, "shortened_gradients": shortened}

    def _encoded(self, round_: Round, ask: Ask) -> Encoded | None:
        """Return the clients' encodings, or None if no client sent any."""
        times = self._times(self.eligible(self.federation.members.clients()))
        if not times:
            return None
        first = min(sample_times.first for sample_times in times.values())
        evaluates = round_.evaluated
        count = (
            max(
                sample_times.end if evaluates else sample_times.trained
                for sample_times in times.values()
            )
            - first
        )
        if len(times) * count * self._width > MOST_VALUES:
            raise FederationError(
                f"method = {self.settings.method!r}: encodings of {len(times)} clients at {count} "
                f"time steps, {self._width} values each, are more than {MOST_VALUES} values; set "
                "data.max-steps or data.max-clients"
            )
        question = Guidance(self.model, options={FIRST: first, COUNT: count})
        expected = Expected(per_client={ENCODINGS: (count, self._width)})
        encodings: dict[ClientKey, NDArray[np.float32]] = {}
        for reply in ask(times, lambda keys: question, expected):
            values = reply.arrays[ENCODINGS]
            if (largest := float(np.abs(values).max())) <= LARGEST_ENCODING:
                encodings[reply.key] = values
            else:
                reason = f"its encodings hold ±{largest:g}; a GRU's state lies between -1 and 1"
                round_.refused[reply.key] = reason
        if not encodings:
            return None
        encodings = {key: encodings[key] for key in sorted(encodings)}
        adjacency = torch.from_numpy(self._graph.adjacency(list(encodings)))
        return Encoded.stacked(encodings, times, first, Graph.from_adjacency(adjacency))

    def _gradient(self, encoded: Encoded, proposal: Proposal, ask: Ask) -> tuple[Tensor, int]:
        """Return ∂L/∂g [T, N, d_g] of the mean loss, and how many gradients were shortened.

        A client that has no sample to train on at these time steps is not asked.
        """
        outputs = proposal.outputs.detach().transpose(0, 1).contiguous().numpy()  # (N, T, d_g)
        has_samples = encoded.trained[proposal.steps].any(dim=0).tolist()
        rows = {key: row for row, key in enumerate(encoded.keys) if has_samples[row]}
        steps = proposal.steps.numpy().astype(np.float32)  # exact below 2^24

        def question(keys: list[ClientKey]) -> Guidance:
            arrays = {GRAPH: outputs[[rows[key] for key in keys]], STEPS: steps}
            return Guidance(arrays, [key.client for key in keys], options={FIRST: encoded.first})

        expected = Expected(per_client={GRADIENT: outputs.shape[1:]})
        gradients = np.zeros_like(outputs)
        for reply in ask(rows, question, expected, shared=[STEPS]):
            gradients[rows[reply.key]] = reply.arrays[GRADIENT]
        bounded, shortened = clipped_to_median(torch.from_numpy(gradients), LONGEST)
        return bounded.transpose(0, 1) / len(rows), shortened

    def _times(self, clients: Iterable[ClientKey]) -> Times:
        """Return the times of the clients' samples, for the clients that reported them."""
        facts = self.federation.members.facts
        return {key: times for key in clients if (times := facts[key].times) is not None}

    def state(self) -> dict[str, AnyArray]:
        outputs = {
            **key_arrays(self._trained.keys),
            "first": np.array(self._trained.first),
            "values": self._trained.values,
        }
        return super().state() | under(_OUTPUTS, outputs)

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        if not state:
            return
        super().restore(state)
        outputs = of_group(state, _OUTPUTS)
        self._trained = GraphOutputs(keys_of(outputs), int(outputs["first"]), outputs["values"])


def _far_off(times: Times) -> set[ClientKey]:
    """Return the clients whose samples lie far from the others' times.

    Including them would make every client encode long spans without samples.
    """

    def usual_of(value: Callable[[SampleTimes], int]) -> float:
        of_node: dict[str, list[float]] = {}
        for key, sample_times in times.items():
            of_node.setdefault(key.node, []).append(value(sample_times))
        return usual(list(of_node.values()))

    reach = MOST_LENGTHS * usual_of(lambda sample_times: sample_times.end - sample_times.first)
    first, end = (
        usual_of(lambda sample_times: sample_times.first) - reach,
        usual_of(lambda sample_times: sample_times.end) + reach,
    )
    return {
        key
        for key, sample_times in times.items()
        if sample_times.first < first or sample_times.end > end
    }


def _graph_of(clients: Sequence[ClientKey], outputs: GraphOutputs) -> Guidance:
    """Return each client's g, for the clients that have one."""
    row_of = {key: row for row, key in enumerate(outputs.keys)}
    guided = [key for key in clients if key in row_of]
    if not guided:
        return Guidance()
    return Guidance(
        {GRAPH: outputs.values[[row_of[key] for key in guided]]},
        [key.client for key in guided],
        options={FIRST: outputs.first, COUNT: outputs.values.shape[1]},
    )


def clipped_to_median(gradients: Tensor, longest: float) -> tuple[Tensor, int]:
    """Clip gradients [N, …] to `longest` × the median norm, and also return how many were clipped.

    The median is over norms above 0. So no gradient can dominate the mean.
    """
    norms = gradients.flatten(start_dim=1).double().norm(dim=1)
    lengths = norms[norms > 0]
    if not len(lengths):
        return gradients, 0
    limit = longest * float(lengths.quantile(0.5))
    factors = torch.where(norms > limit, limit / norms, 1.0)
    shape = (-1, *[1] * (gradients.dim() - 1))
    shortened = (gradients.double() * factors.reshape(shape)).to(gradients.dtype)
    return shortened, int((norms > limit).sum())
