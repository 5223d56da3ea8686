"""FedGRU (Liu, Yu, Kang, Niyato, Zhang, IEEE IoT Journal 2020), server half.

Clients belong to organisations, and organisations to clusters, by constrained k-means over their
places or profiles. Each cluster has a model, the mean of its clients' weighted by samples: which is
the mean inside each organisation, and then that over the cluster's organisations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey, key_arrays
from fedproto_app.core.round import Guidance, Received, Round
from fedproto_app.maths.constrained_kmeans import constrained_kmeans
from fedproto_app.maths.graph import communities
from fedproto_app.messages import Arrays, Order
from fedproto_app.models.ensemble import of_member
from fedproto_app.randomness import numpy_stream
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import FedGruSettings, Settings
from fedproto_app.strategies.client_graph import ClientGraph
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.wire import array_record, flower_average_input, numpy_arrays

Labels = NDArray[np.int64]


class FedGruStrategy(FedAvgStrategy):
    """State: that of the graph. With one cluster it is FedAvg."""

    section: FedGruSettings

    def __init__(self, settings: Settings, section: FedGruSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self._uses_graph = section.clusters > 1 or section.organisations == 0
        self._graph = ClientGraph(settings, federation) if self._uses_graph else None
        self._cluster_of: dict[ClientKey, int] = {}
        self._models: Arrays = {}  # of all clusters, as the clients of this round got them

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._graph is not None:
            self._graph.complete(grid, server_round)
        everyone, organisations, clusters = self._groups()
        self._cluster_of = dict(zip(everyone, clusters.tolist(), strict=True))
        self._models = numpy_arrays(arrays)
        figures = {"organisations": organisations, "clusters": clusters}
        self.federation.note({n: float(len(set(found.tolist()))) for n, found in figures.items()})
        return super().configure_train(server_round, arrays, config, grid)

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """The number of each client's cluster, where there are several."""
        if self.section.clusters == 1:
            return Guidance()
        return Guidance(options={key.client: float(self._cluster_of[key]) for key in clients})

    def guided_evaluation(self, order: Order, keys: Sequence[ClientKey]) -> Order:
        return order

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self.section.clusters == 1:
            return super().aggregate_train(server_round, replies)
        answers = self.federation.read(replies, self.expected(server_round))
        models = dict(self._models)
        for cluster in range(self.section.clusters):
            messages = [one for answer in answers for one in self._of_cluster(answer, cluster)]
            mean, _ = FedAvg.aggregate_train(self, server_round, messages)
            if mean is not None:
                arrays = numpy_arrays(mean)
                models |= {of_member(name, cluster): array for name, array in arrays.items()}
        return array_record(models), None

    def _of_cluster(self, answer: NodeReply, cluster: int) -> Iterable[Message]:
        """The models of the node's clients in a cluster, as Flower averages them."""
        reply = answer.reply
        for row, key in enumerate(answer.keys()):
            if self._cluster_of[key] == cluster:
                own = {name: array[row] for name, array in reply.arrays.items()}
                one = replace(reply, arrays=own)
                yield flower_average_input(one, answer.message, own, reply.samples[row])

    def _groups(self) -> tuple[list[ClientKey], Labels, Labels]:
        """All clients that ever came, the organisation of each, and its cluster.

        Both depend on who has come alone, so that they are the same after a resumption. Who brings
        no place or profile does not count; an organisation of such clients is in cluster 0.
        """
        everyone = sorted(self.federation.roster.facts)
        organisations = self._organisations(everyone)
        clusters, smallest = self.section.clusters, self.section.smallest
        found = np.zeros(len(everyone), np.int64)
        if clusters == 1 or self._graph is None:
            return everyone, organisations, found
        places = self._graph.places(everyone)
        there = np.isfinite(places).all(axis=1)
        known = sorted(set(organisations[there].tolist()))
        if len(known) >= clusters * smallest:
            members = [organisations == one for one in known]
            centres = np.stack([places[there & some].mean(axis=0) for some in members])
            draws = numpy_stream(self.settings.seed, "clusters of organisations")
            labels = constrained_kmeans(centres, clusters, smallest, draws)
            for some, label in zip(members, labels.tolist(), strict=True):
                found[some] = label
        return everyone, organisations, found

    def _organisations(self, everyone: list[ClientKey]) -> Labels:
        """Of neighbouring names, as even in size as can be, or communities of the graph."""
        wanted = self.section.organisations
        if wanted == 0:
            assert self._graph is not None
            return communities(self._graph.adjacency(everyone), self.settings.seed)
        parts = np.array_split(np.arange(len(everyone)), min(wanted, max(1, len(everyone))))
        return np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def state(self) -> dict[str, NDArray[Any]]:
        return self._graph.state() if self._graph is not None else {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if self._graph is not None:
            self._graph.restore(state)

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``organisations``: of each client the numbers of its organisation and of its cluster."""
        everyone, organisations, clusters = self._groups()
        told = {"organisation": organisations, "cluster": clusters}
        return {"organisations": {**key_arrays(everyone), **told}}
