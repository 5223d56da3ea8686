"""Base of the learners that fit their models in closed form, without gradient steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.strategies.common.learner import Cohort, ContextT, Learner, Phase, TaskT


def new_stage(cohort: Cohort) -> Tensor:
    """Return which clients have a new stage, [K] bool, and mark the stage as taken in.

    `stages` of the cohort's memory, [K] int64, counts the stages that each client has taken in.
    """
    taken_in: Tensor = cohort.memory.stages
    stages = torch.tensor(cohort.samples.trained_stages, device=taken_in.device)
    new = stages >= taken_in
    taken_in.copy_(torch.where(new, stages + 1, taken_in))
    return new


class ClosedFormLearner(Learner[ContextT, TaskT]):
    """A learner without training phases, which fits its model in `conclude` and `receive`. By
    default it sends nothing."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return ()

    def phases(self) -> Sequence[Phase]:
        return []

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ContextT
    ) -> dict[str, Tensor]:
        raise AssertionError("a closed form has no training phase")
