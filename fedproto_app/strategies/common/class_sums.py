"""What clients' sums of classes look like (`maths/class_gaussian.py`), and which are believed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import Received
from fedproto_app.maths.class_gaussian import ClassSums, sizes, sums_fault, without_noise
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.class_fit import (
    COUNTS,
    arrived,
    packed,
    sample_bound,
    sums_shapes,
)
from fedproto_app.strategies.common.client_sums import ClientSums
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.tasks.table import make_task
from fedproto_app.trust.averaging import Averaging
from fedproto_app.trust.outliers import LARGEST_FACTOR, largest_believed
from fedproto_app.trust.robust_means import robust_class_sums

LARGEST_MEAN_SQUARE = 1e8  # of a feature, so that sums of all stay finite


class SumsOfClasses(ClientSums):
    """Σ x xᵀ, each class's Σ x and number of samples, of the stages that a client tells of.

    grow: whether they are of all stages so far, so that they never become fewer. reclassed: whether
    a sample may be of another class than before.
    """

    grow = True
    reclassed = False

    def __init__(self, settings: Settings, federation: Federation, received: Received) -> None:
        width = make_task(settings, federation.shape).representation_dim
        super().__init__(federation, sums_shapes(len(federation.shape.classes), width), received)
        self._sizes: dict[ClientKey, float] = {}

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """By the samples that the client declared for all its stages."""
        declared = self.federation.members.facts[key].samples
        before = self.latest.latest(key)
        if self.grow and before is not None and self._fewer(sums[COUNTS], before[COUNTS]):
            return "its sums are of fewer samples than it sent before"
        fault = self.impossible(sums, declared)
        return fault and f"its sums cannot be true: {fault}"

    def _fewer(self, now: NDArray[Any], before: NDArray[Any]) -> bool:
        return bool(now.sum() < before.sum() if self.reclassed else (now < before).any())

    def impossible(self, sums: Arrays, samples: int) -> str | None:
        return sums_fault(_unpacked(sums), samples, LARGEST_MEAN_SQUARE)

    def sample_bound(self, clip: float) -> float:
        return sample_bound(clip)

    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        cleaned = packed(without_noise(_unpacked(totals), deviation))
        return {name: value.float().numpy() for name, value in cleaned.items()}

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Those whose features, all or those of one class, are far larger than the others'."""
        mine = {key: sizes(_unpacked(sums)) for key, sums in reported.items()}
        limit = largest_believed(self.comparable(mine))
        self._sizes |= {key: size for key, size in mine.items() if size <= limit}
        return {
            key: f"the mean square of its features, or of a class's, is {size:g}, more than "
            f"{LARGEST_FACTOR:g} times what is usual"
            for key, size in mine.items()
            if size > limit
        }

    def robust_totals(self, averaging: Averaging) -> Arrays:
        """By `robust_class_sums`: a class's mean is that of the rule."""

        def every() -> Iterator[ClassSums]:
            for key in self.latest.clients:
                sums = self.latest.latest(key)
                assert sums is not None
                yield _unpacked(sums)

        total = robust_class_sums(every, averaging.rows)
        return {name: value.float().numpy() for name, value in packed(total).items()}

    def comparable(self, mine: Mapping[ClientKey, float]) -> Mapping[ClientKey, float]:
        """The sizes that those of some clients, who sent theirs together, can stand beside: all
        that were ever believed, where features are always the same functions."""
        return {**self._sizes, **mine}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        every = {key: self.latest.latest(key) for key in self.latest.clients}
        self._sizes = {key: sizes(_unpacked(sums)) for key, sums in every.items() if sums}


def _unpacked(sums: Arrays) -> ClassSums:
    return arrived(sums, torch.device("cpu"))
