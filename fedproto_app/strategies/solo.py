"""Solo: every client trains alone, and nothing crosses the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedproto_app.core.method import Method
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.strategies.common.learner import (
    Context,
    KernelLoss,
    KernelTrained,
    Learner,
    Phase,
)
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.tasks.task import AnyTask


class SoloLearner(KernelTrained, Learner[Context, AnyTask]):
    """The supervised loss alone, for the client's own model."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return ()

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: Context
    ) -> dict[str, Tensor]:
        prediction = self.task.predict(parameters, self.task.represent(parameters, batch), batch)
        return {"prediction": self.task.loss(prediction, batch)}

    def kernel_loss(self, phase: Phase, context: Context) -> KernelLoss:
        return KernelLoss()


class SoloStrategy(PersonalStrategy):
    """The base strategy, with nothing to exchange."""


METHOD = Method(
    name="solo",
    title="local training",
    strategy=SoloStrategy,
    learner=SoloLearner,
)
