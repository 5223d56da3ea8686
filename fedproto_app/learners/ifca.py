"""IFCA (Ghosh et al., NeurIPS 2020) and FLSC (Li, Li and Varshney, IEEE Internet of Things Journal
2021), client half, on heads.

The server sends the heads of all clusters. The client chooses the one with the lowest loss on its
samples of the round, in FLSC the ``flsc.overlap`` lowest. It sends its choice with the head that it
fits to the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.evolutionary_cluster import EvolutionaryClusterLearner, HeadContext
from fedproto_app.learners.learner import Contribution
from fedproto_app.messages import Order
from fedproto_app.settings import ChoiceSettings

CLUSTERS, CHOSEN = "clusters", "chosen"  # all clusters' heads come down; the choices go up


class ChoiceContext(HeadContext):
    """Also which clusters each client chose, [K, C] float, 1 for a chosen one."""

    def __init__(self, drawn: HeadContext, chosen: Tensor) -> None:
        super().__init__(drawn.vectors, drawn.targets)
        self.chosen = chosen


class IfcaLearner(EvolutionaryClusterLearner):
    """Fed-REACT's heads in clusters that the clients choose themselves."""

    section: ChoiceSettings

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        (head,) = super().sends(section, sizes)
        chosen = Sends(
            "cluster", {CHOSEN: (section.clusters,)}, any_size=True, reveals="its cluster"
        )
        return [replace(head, remember="round"), chosen]

    def context(self, order: Order, cohort: Cohort) -> ChoiceContext:
        drawn = super().context(order, cohort)
        heads, wanted = order.arrays[CLUSTERS], self.section.overlap
        chosen = torch.zeros(len(cohort.names), len(heads))
        for row, (vectors, targets) in enumerate(zip(drawn.vectors, drawn.targets, strict=True)):
            losses = [self.task.head_loss(head, vectors, targets) for head in heads]
            chosen[row, np.argsort(losses, kind="stable")[:wanted].tolist()] = 1
        return ChoiceContext(drawn, chosen)

    def contribution(self, cohort: Cohort, context: HeadContext, server_round: int) -> Contribution:
        assert isinstance(context, ChoiceContext)
        sent = super().contribution(cohort, context, server_round)
        return Contribution({**sent.arrays, CHOSEN: context.chosen.numpy()})
