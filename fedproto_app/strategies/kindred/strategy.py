"""Kindred, server half: the clients' similarity and their priors.

The similarity of two clients is the Jensen-Shannon divergence of their prototypes. A client's
prior, for every temperature, is the mean of the other clients' A and B, weighted by similarity.

With ``sharing = "common"`` or ``"groups"`` the server needs no prototype and no client's A and B,
only their means over all clients and over groups that sites name. Clients subtract their own part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientFacts, ClientKey, groups_of_nodes, of_enough
from fedproto_app.core.messages import Arrays, Guidance, Refusal
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.round import ClientReply, Round, Total
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.maths.ridge import sums_fault, symmetric, triangle_size
from fedproto_app.maths.threads import in_threads
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.findings import divergence_findings
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.strategies.kindred.clusters import Clusters
from fedproto_app.strategies.kindred.learner import GRAM, MOMENT, OTHERS, PROTOTYPE, UNIT

ROWS_AT_ONCE = 256  # clients; with thousands, every further matrix of all pairs is gigabytes


def kinship(divergence: Tensor, temperature: float) -> Tensor:
    """Return in row n the weights of the other clients in client n's prior, [N, N] float64.

    They are the softmax over m ≠ n of −D[n, m] / (temperature · median of all D > 0), with 0 on the
    diagonal. With an infinite temperature, or if clients do not differ, all others have the same
    weight. divergence: [N, N], N ≥ 2, symmetric.
    """
    scale = temperature * median_of_unlike(divergence)
    weights = divergence.to(torch.float64, copy=True)
    if 0 < scale < math.inf:
        weights.neg_().div_(scale)
    else:
        weights.zero_()
    weights.fill_diagonal_(-torch.inf)
    for rows in torch.split(weights, ROWS_AT_ONCE):
        rows.copy_(rows.softmax(dim=1))
    return weights


def median_of_unlike(divergence: Tensor) -> float:
    """Return the median of the divergences above 0 in the upper triangle, 0 if there are none."""
    rows = (row[n + 1 :] for n, row in enumerate(divergence.numpy()))
    unlike = np.concatenate([row[row > 0] for row in rows])
    return float(np.median(unlike.astype(np.float64), overwrite_input=True)) if unlike.size else 0.0


# On a client's scale, its values have mean square 1, and differences of two values at most 4. A
# spike that is carried over a gap can add to that.
LARGEST_MEAN_SQUARE = 400.0
LARGEST_PROTOTYPE = 100.0
COLUMNS_AT_ONCE = 4096

MOST_IN_PAIRS = 4000  # more clients than this are put into clusters, not compared in pairs
SAMPLED = 2000  # clients from which the median divergence is then computed
Priors = Callable[[Sequence[ClientKey]], Arrays]  # of K clients for every temperature, [K, T, …]

ALL_CLIENTS = ""  # the name of the group of all clients


class KindredStrategy(PersonalStrategy):
    """State: the latest prototype and means of every client that ever reported.

    With ``sharing = "none"`` nothing is exchanged.
    """

    section: KindredSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self.final_after_training = self.section.sharing == "none"
        self.shared_names = (GRAM, MOMENT) if self.section.needs_totals else ()
        self._priors_of: Priors | None = None  # of the present evaluation
        self._totals: dict[str, Total] = {}  # of the present evaluation, by group
        self._group_of: dict[ClientKey, str] = {}
        self._answered: set[ClientKey] = set()  # the clients in the newest masked sums

    def conclude(self, round_: Round) -> None:
        """Compute all clients' priors, or the totals, once for all nodes."""
        due = round_.evaluated and not self.final_after_training
        if self.section.needs_totals:
            self._totals = self._sums(round_.facts) if due else {}
            return
        self._priors_of = self._priors() if due and len(self.received.clients) > 1 else None

    def _sums(self, facts: Mapping[ClientKey, ClientFacts]) -> dict[str, Total]:
        """Return the sums over all clients and over each group, or {} if no clients can have them.

        Without masks, a group needs as many clients as, with masks, it would need nodes.
        """
        if (total := self.received.total) is not None:
            of_node = groups_of_nodes(facts)
            self._group_of = {key: of_node[key.node] for key in facts}
            sums = {ALL_CLIENTS: total, **total.groups}
            faults = [self._impossible(part.values, part.clients) for part in sums.values()]
            for fault in filter(None, faults):
                self.federation.history.refuse(Refusal("", "", f"masked sum of all nodes: {fault}"))
            return {} if any(faults) else sums
        self._group_of = {key: of_client.group for key, of_client in facts.items()}
        clients, by_group = self.received.clients, self.section.sharing == "groups"
        group_of = {key: self._group_of[key] for key in clients if by_group}
        groups = of_enough(group_of, self.settings.aggregation.secure_minimum)
        return {
            name: Total({n: self._sum(n, keys) for n in (GRAM, MOMENT)}, len(keys))
            for name, keys in {**groups, ALL_CLIENTS: clients}.items()
            if keys
        }

    def _sum(self, name: str, clients: Sequence[ClientKey]) -> NDArray[np.float64]:
        return np.asarray(self.received.stacked(name, clients).sum(axis=0, dtype=np.float64))

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients that have sent means. Those that only receive are added later."""
        if self.final_after_training:
            return super().to_evaluate(clients, round_)
        return [key for key in clients if key in self.federation.history.trained]

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send priors to the clients that sent means, and the means over all clients to those that
        only receive."""
        if self._totals:
            return self._totals_for(clients, round_.facts)
        parts: list[Arrays] = []
        receiving: list[ClientKey] = []
        if self.received.clients and not self.final_after_training:
            receiving = [key for key in clients if not round_.facts[key].samples]
        senders = set(self.received.clients) - set(receiving)
        sending = [key for key in clients if key in senders and self._priors_of is not None]
        if sending and self._priors_of is not None:
            parts.append(self._priors_of(sending))
        if receiving:
            prior = self._mean_prior()
            parts.append({n: np.repeat(a[None], len(receiving), axis=0) for n, a in prior.items()})
        names = (GRAM, MOMENT) if parts else ()
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in names}
        return Guidance(arrays, [key.client for key in (*sending, *receiving)])

    def _totals_for(
        self, clients: Sequence[ClientKey], facts: Mapping[ClientKey, ClientFacts]
    ) -> Guidance:
        """Return the totals over all clients and over the groups of these clients."""
        senders = set(self.received.clients) if self.received.total is None else self._answered
        keys = [key for key in clients if key in senders or not facts[key].samples]
        groups = {self._group_of[key] for key in keys} | {ALL_CLIENTS}
        sums = {name: self._totals[name] for name in sorted(groups & self._totals.keys())}
        counts = [
            (part.clients - (facts[key].samples > 0)) * (name in (ALL_CLIENTS, self._group_of[key]))
            for key in keys
            for name, part in sums.items()
        ]
        arrays = {n: np.stack([part.values[n] for part in sums.values()]) for n in (GRAM, MOMENT)}
        arrays[OTHERS] = np.array(counts).reshape(len(keys), len(sums))
        in_float32 = {name: array.astype(np.float32) for name, array in arrays.items()}
        return Guidance(in_float32, [key.client for key in keys])

    def _mean_prior(self) -> Arrays:
        """Return the prior of a client without a prototype, equal for all temperatures, [T, …]."""
        means = {name: self.received.mean(name) for name in (GRAM, MOMENT)}
        return {
            name: np.repeat(mean[None], len(self.section.temperatures), axis=0)
            for name, mean in means.items()
            if mean is not None
        }

    def answered(
        self, asked_nodes: Collection[str], clients: Sequence[ClientKey], *, evaluation: bool
    ) -> None:
        """Drop the priors after an evaluation: for thousands of clients they are gigabytes."""
        if evaluation:
            self._priors_of, self._totals = None, {}
        else:
            self._answered = set(clients)

    def _priors(self) -> Priors:
        """Return the function that gives clients' priors."""
        clients = self.received.clients
        row_of = {key: row for row, key in enumerate(clients)}
        prototypes = torch.from_numpy(self.received.stacked(PROTOTYPE)[:, None])
        if self.section.sharing == "random":  # a control: each client has another's prototype
            draws = numpy_stream(self.settings.seed, "random relatives")
            prototypes = prototypes[torch.from_numpy(draws.permutation(len(clients)))]
        if len(clients) > MOST_IN_PAIRS:
            return self._priors_by_clusters(prototypes, row_of)
        priors = self._priors_by_pairs(pairwise_divergence(prototypes))
        return lambda keys: {n: prior[[row_of[k] for k in keys]] for n, prior in priors.items()}

    def _priors_by_pairs(self, divergence: Tensor) -> Arrays:
        """Return all clients' priors for every temperature, [N, T, …].

        They are computed for all clients at once, because a product for each node would read all
        means again. They are computed by blocks of columns, because in float64 the means of
        thousands of clients are gigabytes.
        """
        temperatures = self.section.temperatures
        weights = [kinship(divergence, t) if t < math.inf else None for t in temperatures]
        priors = {}
        for name in (GRAM, MOMENT):
            means = torch.from_numpy(self.received.stacked(name))
            prior = means.new_empty(len(means), len(temperatures), *means.shape[1:])
            flat, mixed = means.flatten(start_dim=1), prior.flatten(start_dim=2)

            def mix(start: int, flat: Tensor = flat, mixed: Tensor = mixed) -> None:
                columns = slice(start, start + COLUMNS_AT_ONCE)
                block = flat[:, columns].double()
                for number, similarity in enumerate(weights):
                    common = (block.sum(dim=0) - block) / (len(divergence) - 1)
                    mixed[:, number, columns] = common if similarity is None else similarity @ block

            for _ in in_threads(mix, range(0, flat.shape[1], COLUMNS_AT_ONCE)):
                pass
            priors[name] = prior.numpy()
        return priors

    def _priors_by_clusters(self, prototypes: Tensor, row_of: Mapping[ClientKey, int]) -> Priors:
        """Return a function that computes the priors of a node's clients when the node is asked.

        The priors of all clients at once would be several times as large as their means.
        """
        draws = numpy_stream(self.settings.seed, "clusters of clients")
        sample = torch.from_numpy(draws.permutation(len(prototypes))[:SAMPLED])
        median = median_of_unlike(pairwise_divergence(prototypes[sample]))
        scales = [temperature * median for temperature in self.section.temperatures]
        clusterings = [Clusters(prototypes, s, draws) if 0 < s < math.inf else None for s in scales]
        keys = list(row_of)
        total = torch.zeros_like(self._joined(keys[:1])[0])
        means = [total.new_zeros(c.count if c else 0, len(total)) for c in clusterings]
        for start in range(0, len(keys), ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            values = self._joined(keys[block])
            total += values.sum(dim=0)
            for clusters, mean in zip(clusterings, means, strict=True):
                if clusters is not None:
                    mean += clusters.sums(values, block)

        def priors(keys: Sequence[ClientKey]) -> Arrays:
            mixed = total.new_empty(len(keys), len(means), len(total), dtype=torch.float32)
            for start in range(0, len(keys), ROWS_AT_ONCE):
                block = slice(start, start + ROWS_AT_ONCE)
                values = self._joined(keys[block])
                rows = torch.tensor([row_of[key] for key in keys[block]])
                for number, (clusters, mean) in enumerate(zip(clusterings, means, strict=True)):
                    common = (total - values) / (len(row_of) - 1)
                    similar = clusters.priors(mean, values, rows) if clusters else common
                    mixed[block, number] = similar
            packed = triangle_size(self.sizes.width)
            shape = len(keys), len(means), self.sizes.horizon, self.sizes.width
            return {
                GRAM: mixed[..., :packed].numpy(),
                MOMENT: mixed[..., packed:].reshape(shape).numpy(),
            }

        return priors

    def _joined(self, keys: Sequence[ClientKey]) -> Tensor:
        """Return A and B of K clients side by side, [K, D] float64."""
        arrays = [torch.from_numpy(self.received.stacked(name, keys)) for name in (GRAM, MOMENT)]
        return torch.cat([array.flatten(start_dim=1) for array in arrays], dim=1).double()

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return ``divergence``: prototypes [N, 1, p], the clients' groups, divergence [N, N]."""
        keys = self.received.clients
        if len(keys) < 2 or self.section.needs_totals:
            return {}
        prototypes = self.received.stacked(PROTOTYPE)[:, None]
        return divergence_findings(
            keys,
            self.federation.members.facts,
            prototypes,
            lambda rows: pairwise_divergence(torch.from_numpy(prototypes[rows])).numpy(),
        )

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Return why these cannot be the means of a client's samples, or None."""
        arrays = reply.arrays
        if not arrays:
            return None
        if PROTOTYPE in arrays:
            largest = float(np.abs(arrays[PROTOTYPE]).max())
            if largest > LARGEST_PROTOTYPE:
                return f"its prototype holds ±{largest:g}, more than {LARGEST_PROTOTYPE:g}"
        return self._impossible(arrays)

    def _impossible(self, total: Mapping[str, AnyArray], clients: int = 1) -> str | None:
        """Return why this many clients cannot have these total means, or None."""
        scale = (UNIT if self.section.needs_totals else 1.0) / clients
        means = {name: scale * array for name, array in total.items()}
        if not means[GRAM].any():  # a sample's calendar, or its 1, has products other than 0
            return "its means are of no sample"
        gram = symmetric(torch.from_numpy(means[GRAM]).double(), self.sizes.width)
        moment = torch.from_numpy(means[MOMENT]).double().T
        # A column of B is a mean over the samples that have its target, and A is a mean over those
        # that have any target. For each step ahead, the numbers of these samples are about equal.
        squares = LARGEST_MEAN_SQUARE * moment.shape[1]
        fault = sums_fault(gram, moment, 1, LARGEST_MEAN_SQUARE, squares)
        return fault and f"its means cannot be those of its samples: {fault}"
