"""Server half of closed forms: check clients' sums, add them up, and send the totals to all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Guidance, Refusal, limited_samples
from fedproto_app.core.round import ClientReply, Received, Round
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    own_scatter,
    sizes,
    sums_fault,
    without_noise,
)
from fedproto_app.settings import Settings
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.common.class_fit import (
    COUNTS,
    HOLDERS,
    SCATTER,
    arrived,
    packed,
    packed_scatter,
    sample_bound,
    scatter_in,
    sums_shapes,
)
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.tasks.table import make_task
from fedproto_app.trust.averaging import Averaging, robust_class_sums
from fedproto_app.trust.outliers import LARGEST_FACTOR, largest_accepted


class ClientSums(ABC):
    """The latest sums of every client that ever reported.

    shapes: the shapes of a client's sums, by name. latest: the sums. masked_names: the names of the
    arrays in a total of masked sums. Subclasses define when sums cannot be true.
    """

    def __init__(
        self, federation: Federation, shapes: Mapping[str, tuple[int, ...]], received: Received
    ) -> None:
        self.federation, self.shapes, self.latest = federation, shapes, received
        self.masked_names: Collection[str] = shapes.keys()
        self._total: Arrays = {}  # the newest round's total, where sums are masked

    @abstractmethod
    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """Return why a client with this many train samples cannot have these sums, or None."""

    def take_in(self, round_: Round) -> None:
        """If masks hide each client's sums, take in the round's total unless it cannot be true."""
        values = self.latest.total.values if self.latest.total else {}
        if not (values and self.shapes.keys() <= values.keys()):
            return
        averaging, members = self.federation.averaging, self.federation.members
        if not averaging.checks_sums:
            noised = {name: values[name].astype(np.float32) for name in self.shapes}
            self._total = averaging.masked_totals(self, noised, members.most_samples)
            return
        total = {n: values[n].astype(np.float32) for n in self.masked_names}
        clients = [key for key, facts in round_.facts.items() if facts.samples]  # at most these
        samples = sum(map(self.weighed_samples, clients))
        share = min(map(self.share, clients), default=1.0)
        if fault := self.impossible(total, samples, share, len(clients)):
            self.federation.history.refuse(Refusal("", "", f"masked sum of all nodes: {fault}"))
        else:
            self._total = total

    @abstractmethod
    def impossible(
        self, sums: Arrays, samples: int, share: float = 1.0, clients: int = 1
    ) -> str | None:
        """Return why this many samples of this many clients cannot have these sums, or None.

        share: the smallest weight that a sample has in the sums.
        """

    @abstractmethod
    def sample_bound(self, clip: float) -> float:
        """Return the largest norm that a sample, clipped to `clip`, adds to all sums together."""

    @abstractmethod
    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        """Return valid totals from totals with noise of this deviation on each entry."""

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Return the reasons for refusing sums that are possible but too unlike the others."""
        return {}

    def totals(self) -> Arrays:
        """Return the totals over all clients by the aggregation rule, or {} if none reported."""
        if self._total:
            return self._total
        if not self.latest.clients:
            return {}
        samples = [self.weighed_samples(key) for key in self.latest.clients]
        return self.federation.averaging.totals(self, samples)

    def weighed_samples(self, key: ClientKey) -> int:
        """Return the number of samples that a client is weighed with."""
        members = self.federation.members
        return limited_samples(members.facts[key].samples, members.most_samples)

    def share(self, key: ClientKey) -> float:
        """Return the fraction of a client's declared samples that it is weighed with."""
        return self.weighed_samples(key) / self.federation.members.facts[key].samples

    def plain_totals(self) -> Arrays:
        """Return the totals of the latest sums of all clients."""
        return self.latest.totals()

    @abstractmethod
    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Return robust totals. At least one client must have reported."""

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays for a checkpoint."""
        return dict(self._total) or self.latest.state()

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of `state`."""
        if state and "names" not in state:
            self._total = dict(state)
        else:
            self.latest.restore(state)


LARGEST_MEAN_SQUARE = 1e8  # the largest mean square of a feature, so that totals stay finite


class SumsOfClasses(ClientSums):
    """Σ x xᵀ, and each class's Σ x and number of samples, over the stages a client reports.

    grow: whether the sums cover all stages so far, so that counts never decrease. reclassed:
    whether a sample may move to another class.
    """

    grow = True
    reclassed = False

    def __init__(self, settings: Settings, federation: Federation, received: Received) -> None:
        model = make_task(settings, federation.shape).model
        shapes = sums_shapes(len(federation.shape.classes), model.representation_dim)
        super().__init__(federation, shapes, received)
        self._never_negative = model.never_negative
        self._sizes: dict[ClientKey, float] = {}
        self._noised = settings.privacy.is_on
        self.masked_names = (*self.shapes, SCATTER, HOLDERS)

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """Return why these sums cannot be true, given the samples that the client declared."""
        before, share = self.latest.latest(key), self.share(key)
        grows = self.grow and share == 1  # the share falls when clients with few samples join
        if grows and before is not None and self._fewer(sums[COUNTS], before[COUNTS]):
            return "its sums have fewer samples than its earlier sums"
        fault = self.impossible(sums, self.weighed_samples(key), share)
        return fault and f"its sums cannot be true: {fault}"

    def _fewer(self, counts: AnyArray, before: AnyArray) -> bool:
        return bool(counts.sum() < before.sum() if self.reclassed else (counts < before).any())

    def impossible(
        self, sums: Arrays, samples: int, share: float = 1.0, clients: int = 1
    ) -> str | None:
        of_all = _unpacked(sums)
        fault = sums_fault(of_all, samples, LARGEST_MEAN_SQUARE, share, self._never_negative)
        scatter = scatter_in(Guidance(sums), of_all)
        if fault or scatter is None:
            return fault
        between = of_all.gram - own_scatter(of_all).scatter
        around_client_means = of_all._replace(gram=scatter.scatter + between)
        return sums_fault(around_client_means, samples, LARGEST_MEAN_SQUARE, share)

    def plain_totals(self) -> Arrays:
        """Return the totals. They include `OwnScatter` unless noise hides the clients' sums."""
        totals = super().plain_totals()
        if self._noised:
            return totals
        scatter: dict[str, Tensor] = {}
        for key in self.latest.clients:
            sums = self.latest.latest(key)
            assert sums is not None
            for name, part in packed_scatter(own_scatter(_unpacked(sums), self.share(key))).items():
                scatter[name] = scatter[name] + part if name in scatter else part
        return totals | {name: value.float().numpy() for name, value in scatter.items()}

    def sample_bound(self, clip: float) -> float:
        return sample_bound(clip)

    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        cleaned = packed(without_noise(_unpacked(totals), deviation))
        return {name: value.float().numpy() for name, value in cleaned.items()}

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Return the clients whose features, overall or in a class, are far larger than usual."""
        reported_sizes = {key: sizes(_unpacked(sums)) for key, sums in reported.items()}
        limit = largest_accepted(self.comparable(reported_sizes))
        self._sizes |= {key: size for key, size in reported_sizes.items() if size <= limit}
        return {
            key: f"the mean square of its features, in all or in one class, is {size:g}, more than "
            f"{LARGEST_FACTOR:g} times what is usual"
            for key, size in reported_sizes.items()
            if size > limit
        }

    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Return the totals of `robust_class_sums`, where the rule gives the mean of each class."""

        def clients_sums() -> Iterator[ClassSums]:
            for key in self.latest.clients:
                sums = self.latest.latest(key)
                assert sums is not None
                yield _unpacked(sums)

        total = robust_class_sums(clients_sums, averaging.rows)
        return {name: value.float().numpy() for name, value in packed(total).items()}

    def comparable(self, reported: Mapping[ClientKey, float]) -> Mapping[ClientKey, float]:
        """Return the sizes to compare a round's sizes with.

        These are all sizes that were ever accepted, because the features never change.
        """
        return {**self._sizes, **reported}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        super().restore(state)
        latest = {key: self.latest.latest(key) for key in self.latest.clients}
        self._sizes = {key: sizes(_unpacked(sums)) for key, sums in latest.items() if sums}


def _unpacked(sums: Arrays) -> ClassSums:
    return arrived(sums, torch.device("cpu"))


class SumsStrategy(PersonalStrategy):
    """State: the latest sums of every client that ever reported.

    With ``sharing = "none"`` clients send nothing.
    """

    section: AnalyticSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self.final_after_training = self.section.sharing == "none"
        self._sums = self.client_sums()
        self.saved, self.shared_names = [self._sums], self._sums.shapes
        self._totals: Arrays = {}

    @abstractmethod
    def client_sums(self) -> ClientSums:
        """Return an empty store of the clients' sums."""

    def chosen(self, eligible: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return all clients. One that misses a round can never add its data of that round."""
        return eligible

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        if not (self.averaging.checks_sums and reply.arrays):
            return None
        return self._sums.fault(reply.arrays, reply.key, reply.samples)

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        if not (self.averaging.checks_sums and self.releases):
            return {}
        return self._sums.outliers({reply.key: reply.arrays for reply in replies})

    def update(self, round_: Round) -> None:
        self._sums.take_in(round_)

    def conclude(self, round_: Round) -> None:
        """Compute the totals for an evaluation, once for all nodes."""
        due = round_.evaluated and not self.final_after_training
        self._totals = self._sums.totals() if due else {}

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return all clients, because those that did not train get the totals too."""
        if self.final_after_training:
            return super().to_evaluate(clients, round_)
        return clients if self._totals else []

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return Guidance(self._totals)
