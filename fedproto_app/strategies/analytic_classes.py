"""Classes in closed form, server half: what the clients' sums look like."""

from __future__ import annotations

import torch

from fedproto_app.learners.analytic_classes import COUNTS, GRAM, MOMENT
from fedproto_app.maths.class_gaussian import ClassSums, sums_fault
from fedproto_app.maths.ridge import symmetric, triangle_size
from fedproto_app.messages import Arrays
from fedproto_app.server.roster import ClientKey
from fedproto_app.strategies.summed import SumsStrategy
from fedproto_app.tasks.table import make_task

# Of a feature: responses of filters to pixels in −2 … 2, or of kernels to scaled sequences.
LARGEST_MEAN_SQUARE = 1e4


class AnalyticClassesStrategy(SumsStrategy):
    """Σ x xᵀ, each class's Σ x and number of samples, of all stages so far."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        width = make_task(self.settings, self.federation.shape).representation_dim
        classes = len(self.federation.shape.classes)
        return {GRAM: (triangle_size(width),), MOMENT: (classes, width), COUNTS: (classes,)}

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """By the samples that the client declared for all its stages."""
        declared = self.federation.roster.facts[key].samples
        gram, moment, counts = (
            torch.from_numpy(sums[name]).double() for name in (GRAM, MOMENT, COUNTS)
        )
        unpacked = ClassSums(symmetric(gram, moment.shape[1]), moment, counts)
        fault = sums_fault(unpacked, declared, LARGEST_MEAN_SQUARE)
        return fault and f"its sums cannot be true: {fault}"
