"""IFCA (Ghosh et al., NeurIPS 2020) and FLSC (Li, Li and Varshney, IEEE Internet of Things Journal
2021), on heads.

The server sends the heads of all clusters. A client chooses the head with the lowest loss on its
samples of the round. In FLSC it chooses the ``fed-react.overlap`` heads with the lowest losses. It
sends its choice, and the head that it fits to the samples.

A cluster's head is the mean of the heads of the clients that chose it, averaged over the rounds
(approach A1, as in Fed-REACT, section 4.1.2). A client predicts with the mean of its clusters'
heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import SEQUENCE_TASKS, Method, RunSettings
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.round import Round, of_group, under
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.linear_heads import Head
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.findings import ClusterHistory
from fedproto_app.strategies.common.learner import Cohort, Contribution
from fedproto_app.strategies.fed_react import (
    ENCODER,
    FedReactSettings,
    check_number_of_clients,
    encoder_is_learned,
)
from fedproto_app.strategies.fed_react.clustered_heads import ClusteredHeadStrategy, Fitted
from fedproto_app.strategies.fed_react.learner import EvolutionaryClusterLearner, HeadContext
from fedproto_app.strategies.fed_react.smoothing import RunningMean

CLUSTERS, CHOSEN = "clusters", "chosen"  # clients get all clusters' heads and send their choices


class ChoiceContext(HeadContext):
    """A round's samples and each client's choice of clusters, [K, C] float, 1 if chosen."""

    def __init__(self, drawn: HeadContext, chosen: Tensor) -> None:
        super().__init__(drawn.vectors, drawn.targets)
        self.chosen = chosen


class IfcaLearner(EvolutionaryClusterLearner):
    """Fed-REACT's heads in clusters that the clients choose themselves."""

    section: FedReactSettings

    @classmethod
    def sends(cls, section: FedReactSettings, sizes: Sizes) -> Sequence[Sends]:
        (head,) = super().sends(section, sizes)
        chosen = Sends(
            "cluster", {CHOSEN: (section.clusters,)}, any_size=True, reveals="its cluster"
        )
        return [replace(head, remember="round"), chosen]

    def context(self, guidance: Guidance, cohort: Cohort) -> ChoiceContext:
        drawn = super().context(guidance, cohort)
        heads, choices = guidance.arrays[CLUSTERS], self.section.choices
        chosen = torch.zeros(len(cohort.names), len(heads))
        for row, (vectors, targets) in enumerate(zip(drawn.vectors, drawn.targets, strict=True)):
            losses = [self.task.head_loss(head, vectors, targets) for head in heads]
            chosen[row, np.argsort(losses, kind="stable")[:choices].tolist()] = 1
        return ChoiceContext(drawn, chosen)

    def contribution(self, cohort: Cohort, context: HeadContext) -> Contribution:
        assert isinstance(context, ChoiceContext)
        head_contribution = super().contribution(cohort, context)
        return Contribution({**head_contribution.arrays, CHOSEN: context.chosen.numpy()})


class IfcaStrategy(ClusteredHeadStrategy):
    """The heads of all clusters, [C, outputs, D + 1], from a random start."""

    section: FedReactSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        shape = (self.section.clusters, *self.head_shape)
        start = numpy_stream(settings.seed, "clusters' heads").standard_normal(shape)
        self._heads: NDArray[np.float32] = (start / np.sqrt(shape[-1])).astype(np.float32)
        self._means = [RunningMean() for _ in range(len(self._heads))]
        self._chosen: dict[ClientKey, NDArray[np.bool_]] = {}
        self._history = ClusterHistory()

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send all clusters' heads."""
        return Guidance({CLUSTERS: self._heads})

    def cluster(self, fitted: Fitted, round_: Round) -> dict[ClientKey, Head]:
        chosen = self._choices(fitted, round_)
        self._chosen |= chosen
        for cluster, mean in enumerate(self._means):
            members = [fitted[key] for key, choice in chosen.items() if choice[cluster]]
            if members:
                self._heads[cluster] = mean.update(self.head_of(members), 0.0)
        self._note(round_)
        return {
            key: self._heads[choice].mean(axis=0, dtype=np.float64).astype(np.float32)
            for key, choice in chosen.items()
        }

    def _choices(self, fitted: Fitted, round_: Round) -> dict[ClientKey, NDArray[np.bool_]]:
        """Return each client's clusters, [C] bool. Clients that send other values are refused."""
        number = self.section.choices
        choices = {}
        for key, reply in fitted.items():
            choice = reply.arrays[CHOSEN]
            if np.isin(choice, (0, 1)).all() and choice.sum() == number:
                choices[key] = choice > 0
            else:
                reason = (
                    f"chose clusters {choice.tolist()[:10]}, expected {number} of {len(choice)}"
                )
                round_.refused[key] = reason
        return choices

    def _note(self, round_: Round) -> None:
        """Record the round for the connected clients. There is no Rand index if a client has
        several clusters."""
        connected = set(self.federation.members.clients())
        keys = [key for key in self._chosen if key in connected]
        round_.figures["clusters"] = float(len(self._heads))
        if keys and self.section.choices == 1:
            self._history.add(round_, {key: int(self._chosen[key].argmax()) for key in keys})

    def state(self) -> dict[str, AnyArray]:
        state = super().state() | {"heads": self._heads}
        if not self._chosen:
            return state
        state |= under("history", self._history.state(list(self._chosen)))
        for cluster, mean in enumerate(self._means):
            state |= under(_mean(cluster), mean.state())
        return {
            **state,
            **key_arrays(self._chosen),
            "chosen": np.stack(list(self._chosen.values())),
        }

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        super().restore(state)
        if "chosen" not in state:
            return
        keys = keys_of(state)
        self._chosen = dict(zip(keys, state["chosen"], strict=True))
        self._heads = state["heads"]
        self._history.restore(of_group(state, "history"), keys)
        for cluster, mean in enumerate(self._means):
            mean.restore(of_group(state, _mean(cluster)))

    def findings(self) -> dict[str, dict[str, AnyArray]]:
        """Return ``clusters``, if each client belongs to a single cluster."""
        return self._history.findings(list(self._chosen), self.federation.members.facts)


def _mean(cluster: int) -> str:
    return f"mean-{cluster}"


def check_clusters(settings: RunSettings) -> None:
    """Raise `SettingsError` if the number of clusters is not set."""
    if settings.method_table(FedReactSettings).clusters == 0:
        raise SettingsError(
            f"fed-react.clusters = 0: method = {settings.method!r} needs the number of clusters"
        )


METHOD = Method(
    name="ifca",
    strategy=IfcaStrategy,
    learner=IfcaLearner,
    settings=FedReactSettings,
    tasks=SEQUENCE_TASKS,
    table="fed-react",
    pretraining=ENCODER,
    learns_without_labels=encoder_is_learned,
    check=check_clusters,
    check_clients=check_number_of_clients,
)
