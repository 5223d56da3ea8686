"""FedAvg (McMahan et al., AISTATS 2017), client half: train the global model, send it back.

Adam starts afresh each round, because its moments belong to a model that averaging replaced.
Clients can be judged by the shared model, or by what some epochs on their own data make of it,
which is the plainest way to a personal model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort, fine_tuned
from fedproto_app.learners.learner import Phase
from fedproto_app.learners.solo import SoloLearner
from fedproto_app.messages import Order
from fedproto_app.settings import FedAvgSettings, Training
from fedproto_app.tasks.task import AnyTask


class FedAvgLearner(SoloLearner):
    """Solo's local training, on a model of which everything comes from the server."""

    section: FedAvgSettings

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [model()]

    def __init__(self, training: Training, section: Any, task: AnyTask) -> None:
        super().__init__(training, section, task)
        # A method from outside that builds on this one has a section of its own.
        self._fine_tuning = getattr(section, "fine_tune_epochs", 0)

    def personalises(self) -> bool:
        return self._fine_tuning > 0

    def personalised(self, cohort: Cohort, order: Order) -> dict[str, Tensor] | None:
        if not self._fine_tuning:
            return None
        phase = Phase("fine-tune", ("",), self._fine_tuning)
        return fine_tuned(self, cohort, self.context(order, cohort), phase)
