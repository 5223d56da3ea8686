"""CNFGNN (Meng, Rambhatla, Liu, KDD 2021), server half: FedAvg, and a graph network over clients.

A round has four parts. The clients train with g fixed, and the server averages their models (the
plain mean). Then, with the models fixed, the server asks all clients for the encodings h of all
samples, and its graph network computes g from them. For each batch of time steps it sends g,
receives ∂L/∂g and takes a step of Adam. Finally the network computes the g for evaluation and for
the next round's training.
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
from fedproto_app.core.messages import Guidance, Refusal, SampleTimes
from fedproto_app.core.round import Received, Round
from fedproto_app.core.sends import Expected
from fedproto_app.maths.gradients import clipped_to_median
from fedproto_app.models.graph_forecaster import GraphForecaster
from fedproto_app.models.graph_network import Graph
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.client_graph import ClientGraph
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.strategies.compared.cnfgnn import CnfgnnSettings
from fedproto_app.strategies.compared.cnfgnn.graph_learning import (
    Encoded,
    GraphLearning,
    GraphOutputs,
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
# A client's gradient may be this many times as long as the median; longer ones are shortened. All
# losses are of standardised series.
LONGEST = 10.0
MOST_LENGTHS = 10  # a client may begin or end this many usual lengths before or after the others
MOST_VALUES = 2**29  # of all clients' encodings: 2 GiB
_OUTPUTS = "given-"

Times = dict[ClientKey, SampleTimes]


class CnfgnnStrategy(FedAvgStrategy):
    """State: the graph network, its Adam, the graph, and g of the samples trained on."""

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
        self._trained = self._evaluated = GraphOutputs.empty()
        self._strangers: set[ClientKey] = set()  # clients refused for their times

    def begin(self, round_: Round, ask: Ask) -> None:
        if self.section.server_epochs:
            self._graph.complete(round_, ask)

    def conclude(self, round_: Round, ask: Ask) -> None:
        if self.section.server_epochs:
            self._server_round(round_, ask)

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Return the clients on the most common clock and of about the same time.

        g combines samples of one time, so other clients cannot take part.
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
        """Return the clients that sent their encodings this round; the others have no g."""
        able = self.eligible(clients)
        if not self.section.server_epochs:
            return able
        encoded = set(self._evaluated.keys)
        return [key for key in able if key in encoded]

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send g of the samples that are trained on, with the model."""
        return _graph_of(clients, self._trained)

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
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
        """Return the clients' encodings; None if no client sent any."""
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
        return Encoded.of(encodings, times, first, Graph.of(adjacency))

    def _gradient(self, encoded: Encoded, proposal: Proposal, ask: Ask) -> tuple[Tensor, int]:
        """Return ∂L/∂g [T, N, d_g] of the clients' mean loss, and how many were shortened.

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

    def state(self) -> dict[str, NDArray[Any]]:
        outputs = {
            **key_arrays(self._trained.keys),
            "first": np.array(self._trained.first),
            "values": self._trained.values,
        }
        return {
            **self._learning.state(),
            **self._graph.state(),
            **{_OUTPUTS + name: array for name, array in outputs.items()},
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if not state:
            return
        self._learning.restore(state)
        self._graph.restore(state)
        outputs = {n.removeprefix(_OUTPUTS): a for n, a in state.items() if n.startswith(_OUTPUTS)}
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
