"""Say which errors clients report with noise, how they are clipped, and how large the noise is.

With `privacy.metrics = "noised"`, an evaluated client reports the validation error and the test
figure, both of its model in use and of its kept model. These are M ≤ 4 numbers, each clipped to
0 … B. Their offsets from B/2 form a vector no longer than √M·B/2, which is protected like any other
vector.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.settings import PrivacyPlan
from fedproto_app.settings.aggregation import FACTOR
from fedproto_app.tasks.metrics import TaskMetrics

_MOST_DEVIATIONS = 10.0  # noise beyond them has probability 10⁻²³


@dataclass(frozen=True)
class NoisedErrors:
    """The errors that a client reports. largest: the clip B. deviation: the noise's σ."""

    metrics: tuple[Metric, ...]
    largest: float
    deviation: float

    @staticmethod
    def planned(plan: PrivacyPlan, task: TaskMetrics, required: Collection[Metric]) -> NoisedErrors:
        """Return the errors for a task with this plan. required: the metrics that every client
        evaluates."""
        privacy = plan.settings
        names = dict.fromkeys((task.validation.metric.name, task.kept.metric.name))
        used = [Metric(name) for name in names if Metric(name) in required]
        metrics = (*used, *(replace(metric, model=Model.KEPT) for metric in used))
        largest = 1.0 if task.is_accuracy else privacy.error_clip
        length = math.sqrt(len(metrics)) * largest / 2
        noise = plan.noise_multiplier * FACTOR[privacy.neighbours]
        return NoisedErrors(metrics, largest, noise * length)

    def offsets(self, errors: Mapping[Metric, float]) -> NDArray[np.float64]:
        """Return a client's clipped errors as offsets from the middle, [M]. NaN is taken as B."""
        values = np.array([errors[metric] for metric in self.metrics], dtype=np.float64)
        return np.clip(np.nan_to_num(values, nan=np.inf), 0, self.largest) - self.largest / 2

    def reported(self, offsets: NDArray[np.float64]) -> dict[Metric, float]:
        """Return the errors at these offsets. Rounding to float32 hides the grid of the noise."""
        values = (self.largest / 2 + offsets).astype(np.float32)
        return dict(zip(self.metrics, values.tolist(), strict=True))

    def fault(self, reported: Mapping[Metric, float]) -> str | None:
        """Return why a client's reported errors are impossible, or None."""
        limit = self.largest / 2 + _MOST_DEVIATIONS * self.deviation
        for metric, value in reported.items():
            if metric not in self.metrics:
                return f"{str(metric)[:80]!r} is not reported with noise"
            if not abs(value - self.largest / 2) <= limit:
                return f"{metric} = {value:g} is beyond what clip and noise allow"
        return None
