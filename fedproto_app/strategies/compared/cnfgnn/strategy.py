"""CNFGNN (Meng, Rambhatla, Liu, KDD 2021), server half: FedAvg, and a graph network over clients.

A round has four parts. The clients train with g fixed, and the server averages their models (the
plain mean). Then, with the models fixed, it asks everyone for the encodings h of all samples; its
graph network makes g of them; for each batch of time steps it sends g, gets ∂L/∂g, and takes a step
of Adam. In the end the network makes the g that clients are evaluated and next trained with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Refusal, SampleTimes
from fedproto_app.core.round import Guidance, Received, Round
from fedproto_app.core.sends import Expected
from fedproto_app.maths.gradients import held_to_the_others
from fedproto_app.models.graph_forecaster import GraphForecaster
from fedproto_app.models.graph_network import Graph
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.client_graph import ClientGraph
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.strategies.compared.cnfgnn import CnfgnnSettings
from fedproto_app.strategies.compared.cnfgnn.graph_learning import (
    Encoded,
    Given,
    GraphLearning,
    Proposal,
)
from fedproto_app.strategies.compared.cnfgnn.learner import (
    COUNT,
    ENCODINGS,
    FIRST,
    GRADIENT,
    GRAPH,
    STEPS,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.trust.outliers import usual

LARGEST_ENCODING = 1 + 1e-6  # a GRU's state lies between -1 and 1, save for rounding
# A client's gradient may be so many times as long as those of the clients in the middle; what is
# longer is shortened. All losses are of standardised series.
LONGEST = 10.0
MOST_LENGTHS = 10  # usual lengths that a client's samples may begin before, or end after, others
MOST_VALUES = 2**29  # of all clients' encodings: 2 GiB
_GIVEN = "given-"

Times = dict[ClientKey, SampleTimes]


class CnfgnnStrategy(FedAvgStrategy):
    """State: the graph network with its Adam, the graph, and g of the samples trained on."""

    section: CnfgnnSettings
    judges_trained = False

    def __init__(self, settings: Settings, section: CnfgnnSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        torch.set_num_threads(settings.threads)
        model = self.learner.task.model
        assert isinstance(model, GraphForecaster)
        self._width = model.encoding_width
        self._graph = ClientGraph(settings, federation)
        self._learning = GraphLearning(self._width, model.graph_width, section, settings.seed)
        self._trained = self._evaluated = Given.nothing()
        self._strangers: set[ClientKey] = set()  # who was refused for its times

    def begin(self, round_: Round, ask: Ask) -> None:
        if self.section.server_epochs:
            self._graph.complete(round_, ask)

    def conclude(self, round_: Round, ask: Ask) -> None:
        if self.section.server_epochs:
            self._server_round(round_, ask)

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Those of the clock that most have, and of about their time: g is of one time at all."""
        times = self._times(clients)
        counts = Counter(its.clock for its in times.values())
        common = min(counts, key=lambda clock: (-counts[clock], clock), default="")
        of_it = {key: its for key, its in times.items() if its.clock == common}
        faults = {
            key: f"its clock is {its.clock or 'none'!r}, that of most clients {common or 'none'!r}"
            for key, its in times.items()
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
        """Who has sent its encodings this round; the others' models have no g."""
        able = self.eligible(clients)
        if not self.section.server_epochs:
            return able
        encoded = set(self._evaluated.keys)
        return [key for key in able if key in encoded]

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """g of the samples that are trained on, beside the model."""
        return _graph_of(clients, self._trained)

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        """The model, and g of all samples."""
        return _graph_of(clients, self._evaluated)

    def _server_round(self, round_: Round, ask: Ask) -> None:
        """Train the graph network with the model fixed, and make g anew."""
        self._trained = self._evaluated = Given.nothing()  # of another model than this
        encoded = self._encoded(round_, ask)
        if encoded is None:
            return
        shortened = steps = 0
        for chosen in self._learning.batches(encoded, round_.number):
            proposal = self._learning.proposed(encoded, chosen)
            gradient, count = self._gradient(encoded, proposal, ask)
            self._learning.learn(proposal, gradient)
            shortened, steps = shortened + count, steps + 1
        self._trained = self._learning.given(encoded.of_training())
        if round_.evaluated:
            self._evaluated = self._learning.given(encoded.of_evaluation())
        round_.figures |= {"graph_steps": steps, "shortened_gradients": shortened}

    def _encoded(self, round_: Round, ask: Ask) -> Encoded | None:
        """Everyone's encodings; None if nobody sent any."""
        times = self._times(self.eligible(self.federation.members.clients()))
        if not times:
            return None
        first = min(one.first for one in times.values())
        evaluates = round_.evaluated
        count = max(one.end if evaluates else one.trained for one in times.values()) - first
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
            sent = reply.arrays[ENCODINGS]
            if (largest := float(np.abs(sent).max())) <= LARGEST_ENCODING:
                encodings[reply.key] = sent
            else:
                reason = f"its encodings hold ±{largest:g}; a GRU's state lies between -1 and 1"
                round_.refused[reply.key] = reason
        if not encodings:
            return None
        encodings = {key: encodings[key] for key in sorted(encodings)}
        adjacency = torch.from_numpy(self._graph.adjacency(list(encodings)))
        return Encoded.of(encodings, times, first, Graph.of(adjacency))

    def _gradient(self, encoded: Encoded, proposal: Proposal, ask: Ask) -> tuple[Tensor, int]:
        """∂L/∂g [T, N, d_g] of the clients' mean loss, and how many were shortened.

        A client that has no sample to train on at these time steps is not asked.
        """
        made = proposal.made.detach().transpose(0, 1).contiguous().numpy()  # (N, T, d_g)
        asked = encoded.trained[proposal.steps].any(dim=0).tolist()
        rows = {key: row for row, key in enumerate(encoded.keys) if asked[row]}
        steps = proposal.steps.numpy().astype(np.float32)  # exact below 2^24

        def question(keys: list[ClientKey]) -> Guidance:
            arrays = {GRAPH: made[[rows[key] for key in keys]], STEPS: steps}
            return Guidance(arrays, keys, options={FIRST: encoded.first})

        expected = Expected(per_client={GRADIENT: made.shape[1:]})
        gradients = np.zeros_like(made)
        for reply in ask(rows, question, expected, shared=[STEPS]):
            gradients[rows[reply.key]] = reply.arrays[GRADIENT]
        held, shortened = held_to_the_others(torch.from_numpy(gradients), LONGEST)
        return held.transpose(0, 1) / len(rows), shortened

    def _times(self, clients: Iterable[ClientKey]) -> Times:
        """When the clients' samples are, of those that told."""
        facts = self.federation.members.facts
        return {key: times for key in clients if (times := facts[key].times) is not None}

    def state(self) -> dict[str, NDArray[Any]]:
        given = {
            **key_arrays(self._trained.keys),
            "first": np.array(self._trained.first),
            "values": self._trained.values,
        }
        return {
            **self._learning.state(),
            **self._graph.state(),
            **{_GIVEN + name: array for name, array in given.items()},
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if not state:
            return
        self._learning.restore(state)
        self._graph.restore(state)
        given = {n.removeprefix(_GIVEN): a for n, a in state.items() if n.startswith(_GIVEN)}
        self._trained = Given(keys_of(given), int(given["first"]), given["values"])


def _far_off(times: Times) -> set[ClientKey]:
    """Those for whose samples everybody would encode long times of which nobody else has any."""

    def usual_of(value: Callable[[SampleTimes], int]) -> float:
        of_node: dict[str, list[float]] = {}
        for key, its in times.items():
            of_node.setdefault(key.node, []).append(value(its))
        return usual(list(of_node.values()))

    reach = MOST_LENGTHS * usual_of(lambda its: its.end - its.first)
    first, end = usual_of(lambda its: its.first) - reach, usual_of(lambda its: its.end) + reach
    return {key for key, its in times.items() if its.first < first or its.end > end}


def _graph_of(clients: Sequence[ClientKey], given: Given) -> Guidance:
    """The clients' own g, of those that have one."""
    row_of = {key: row for row, key in enumerate(given.keys)}
    guided = [key for key in clients if key in row_of]
    if not guided:
        return Guidance()
    return Guidance(
        {GRAPH: given.values[[row_of[key] for key in guided]]},
        guided,
        options={FIRST: given.first, COUNT: given.values.shape[1]},
    )
