"""Artefacts that several methods write: ``clusters.npz`` and ``divergence.npz``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import rand_score

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays
from fedproto_app.core.round import Round
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.clustering import ABSENT
from fedproto_app.maths.even_choice import evenly

MOST_SIMILAR = 200  # with more clients than this, no similarity matrix is stored
MOST_MATRICES = 12  # stored over the run: the first, the newest, and some evenly between them
# The matrix of this many clients takes 16 MB, and with 10,000 it would take 400 MB. It can be
# recomputed from the prototypes.
MOST_COMPARED = 2000


class ClusterHistory:
    """Each round's clusters, and similarity matrices of some rounds."""

    def __init__(self) -> None:
        self._rounds: list[int] = []
        self._labels: list[dict[ClientKey, int]] = []
        self._forgetting: list[float] = []
        self._rand: list[float] = []
        self._matrices: dict[int, NDArray[np.float32]] = {}
        self._every = 1  # rounds between stored matrices

    def add(
        self,
        round_: Round,
        labels: Mapping[ClientKey, int],
        matrix: NDArray[np.float32] | None = None,
        forgetting: float | None = None,
    ) -> None:
        """Record a round, and its Rand index if all these clients have known true groups.

        labels: the clusters of the connected clients. matrix: the ψ̂ of these clients in the same
        order, [n, n]. forgetting: α_t.
        """
        groups = [round_.facts[key].group for key in labels]
        rand = float(rand_score(groups, list(labels.values()))) if all(groups) else None
        round_.figures["rand_index"] = rand
        self._rounds.append(round_.number)
        self._labels.append(dict(labels))
        self._forgetting.append(np.nan if forgetting is None else forgetting)
        self._rand.append(np.nan if rand is None else rand)
        if matrix is not None and len(matrix) <= MOST_SIMILAR:
            self._keep(len(self._rounds) - 1, matrix)

    def _keep(self, place: int, matrix: NDArray[np.float32]) -> None:
        """Store the newest matrix beside evenly spaced ones. Drop half if there are too many."""
        newest = max(self._matrices, default=0)
        if newest % self._every:
            del self._matrices[newest]
        self._matrices[place] = matrix.copy()
        if len(self._matrices) > MOST_MATRICES:
            self._every *= 2
            self._matrices = {
                index: stored
                for index, stored in self._matrices.items()
                if index % self._every == 0 or index == place
            }

    def findings(
        self, keys: Sequence[ClientKey], facts: Mapping[ClientKey, ClientFacts]
    ) -> dict[str, dict[str, AnyArray]]:
        """Return ``clusters`` (docs/artefacts.md), or nothing before the first round.

        Absent clients have the label ABSENT and NaN in the round's matrix.
        """
        if not self._rounds:
            return {}
        arrays = self.state(keys)
        del arrays["every"]
        groups = np.array([facts[key].group for key in keys])
        return {"clusters": {**key_arrays(keys), "groups": groups, **arrays}}

    def state(self, keys: Sequence[ClientKey]) -> dict[str, AnyArray]:
        """Return the history as arrays, with the clients in the order of ``keys``. Without rounds
        there are no arrays."""
        if not self._rounds:
            return {}
        arrays: dict[str, AnyArray] = {
            "every": np.array(self._every),
            "rounds": np.array(self._rounds),
            "labels": np.array(
                [[labels.get(key, ABSENT) for key in keys] for labels in self._labels]
            ),
            "forgetting_factor": np.array(self._forgetting),
            "rand_index": np.array(self._rand),
        }
        if self._matrices:
            stacked = np.full((len(self._matrices), len(keys), len(keys)), np.nan, np.float32)
            place_of = {key: place for place, key in enumerate(keys)}
            for row, (index, matrix) in enumerate(self._matrices.items()):
                places = [place_of[key] for key in self._labels[index]]
                stacked[row][np.ix_(places, places)] = matrix
            arrays["similarity"] = stacked
            arrays["similarity_rounds"] = np.array([self._rounds[i] for i in self._matrices])
        return arrays

    def restore(self, state: Mapping[str, AnyArray], keys: Sequence[ClientKey]) -> None:
        """Restore the arrays that `state` returned for these clients."""
        if not state:
            return
        self._every = int(state["every"])
        self._rounds = state["rounds"].tolist()
        self._forgetting = state["forgetting_factor"].tolist()
        self._rand = state["rand_index"].tolist()
        self._labels = [
            {key: label for key, label in zip(keys, row, strict=True) if label != ABSENT}
            for row in state["labels"].tolist()
        ]
        place_of = {key: place for place, key in enumerate(keys)}
        self._matrices = {}
        of_matrices = state.get("similarity_rounds", np.array([], np.int64)).tolist()
        for row, server_round in enumerate(of_matrices):
            index = self._rounds.index(server_round)
            places = [place_of[key] for key in self._labels[index]]
            self._matrices[index] = state["similarity"][row][np.ix_(places, places)]


def divergence_findings(
    keys: Sequence[ClientKey],
    facts: Mapping[ClientKey, ClientFacts],
    prototypes: NDArray[np.float32],
    divergence_of: Callable[[NDArray[np.intp]], NDArray[np.float32]],
) -> dict[str, dict[str, AnyArray]]:
    """Return the artefact of N clients and their prototypes [N, …], in the same order.

    divergence_of: returns the matrix [n, n] of the clients at n places. If there are more than
    MOST_COMPARED clients, the matrix covers only that many of them, and each true group keeps its
    share. Then the artefact also holds the places of these clients, ``divergence_of`` [n].
    """
    groups = np.array([facts[key].group for key in keys])
    places = evenly(groups, MOST_COMPARED)
    chosen = {"divergence_of": places} if len(places) < len(keys) else {}
    return {
        "divergence": {
            **key_arrays(keys),
            "prototypes": prototypes,
            "groups": groups,
            "divergence": divergence_of(places),
            **chosen,
        }
    }
