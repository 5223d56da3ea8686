"""What learners have in common that fit in closed form: they take no steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedproto_app.learners.learner import ContextT, Learner, Phase, TaskT


class ClosedFormLearner(Learner[ContextT, TaskT]):
    """A learner without phases: all that it does is in `conclude` and `receive`."""

    def phases(self) -> Sequence[Phase]:
        return []

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ContextT
    ) -> dict[str, Tensor]:
        raise AssertionError("there is no phase that asks for it")
