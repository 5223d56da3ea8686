"""Solo: every client trains alone; nothing crosses the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedproto_app.learners.learner import Context, Learner
from fedproto_app.tasks.forecasting import Batch
from fedproto_app.wire import Order


class SoloLearner(Learner[Context]):
    """The supervised loss alone, on the client's own model."""

    def context(self, order: Order, names: Sequence[str], device: torch.device) -> Context:
        return Context()

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: Context
    ) -> dict[str, Tensor]:
        prediction = self.task.predict(parameters, self.task.represent(parameters, batch.inputs))
        return {"prediction": self.task.loss(prediction, batch)}
