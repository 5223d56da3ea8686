"""Validate and add up the clients' class sums (`maths/class_gaussian.py`)."""

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
from fedproto_app.trust.averaging import Averaging, robust_class_sums
from fedproto_app.trust.outliers import LARGEST_FACTOR, largest_believed

LARGEST_MEAN_SQUARE = 1e8  # of a feature, so that totals stay finite


class SumsOfClasses(ClientSums):
    """Σ x xᵀ, and Σ x and the number of samples of each class, over the stages a client reports.

    grow: whether the sums cover all stages so far, so that counts never decrease. reclassed:
    whether a sample may move to another class.
    """

    grow = True
    reclassed = False

    def __init__(self, settings: Settings, federation: Federation, received: Received) -> None:
        width = make_task(settings, federation.shape).representation_dim
        super().__init__(federation, sums_shapes(len(federation.shape.classes), width), received)
        self._sizes: dict[ClientKey, float] = {}

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """Return why these sums cannot be true, given the samples that the client declared."""
        declared = self.federation.members.facts[key].samples
        before = self.latest.latest(key)
        if self.grow and before is not None and self._fewer(sums[COUNTS], before[COUNTS]):
            return "its sums have fewer samples than its earlier sums"
        fault = self.impossible(sums, declared)
        return fault and f"its sums cannot be true: {fault}"

    def _fewer(self, counts: NDArray[Any], before: NDArray[Any]) -> bool:
        return bool(counts.sum() < before.sum() if self.reclassed else (counts < before).any())

    def impossible(self, sums: Arrays, samples: int) -> str | None:
        return sums_fault(_unpacked(sums), samples, LARGEST_MEAN_SQUARE)

    def sample_bound(self, clip: float) -> float:
        return sample_bound(clip)

    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        cleaned = packed(without_noise(_unpacked(totals), deviation))
        return {name: value.float().numpy() for name, value in cleaned.items()}

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Return the clients whose features, overall or in a class, are far larger than usual."""
        reported_sizes = {key: sizes(_unpacked(sums)) for key, sums in reported.items()}
        limit = largest_believed(self.comparable(reported_sizes))
        self._sizes |= {key: size for key, size in reported_sizes.items() if size <= limit}
        return {
            key: f"the mean square of its features, or of a class's, is {size:g}, more than "
            f"{LARGEST_FACTOR:g} times what is usual"
            for key, size in reported_sizes.items()
            if size > limit
        }

    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Return totals by `robust_class_sums`: the rule gives the mean of each class."""

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

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        latest = {key: self.latest.latest(key) for key in self.latest.clients}
        self._sizes = {key: sizes(_unpacked(sums)) for key, sums in latest.items() if sums}


def _unpacked(sums: Arrays) -> ClassSums:
    return arrived(sums, torch.device("cpu"))
