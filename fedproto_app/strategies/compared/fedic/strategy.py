"""FEDIC (Shang, Lu, Cheung, Wang, ICME 2022), server half.

The server averages its clients' models as FedAvg does. Then it learns: from labelled images of its
own how far to trust each of the models (calibration), and from all of them together a student, the
next global model (distillation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedproto_app.maths.sizes import root_mean_square
from fedproto_app.messages import Arrays, Refusal
from fedproto_app.server.auxiliary import server_images
from fedproto_app.server.averaging import each_client
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.beyond_median import refuse_largest
from fedproto_app.strategies.compared.fedic import FedicSettings
from fedproto_app.strategies.compared.fedic.ensemble_distillation import (
    LARGEST_LOGIT,
    EnsembleDistillation,
    Judgement,
    Parameters,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.wire import array_record, flower_average_input, numpy_arrays


class FedicStrategy(FedAvgStrategy):
    """State: that of `EnsembleDistillation`."""

    section: FedicSettings

    def __init__(self, settings: Settings, section: FedicSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        torch.set_num_threads(settings.threads)
        images = server_images(settings, federation)
        self._learning = EnsembleDistillation(self.learner.task, section, images)
        self._models: Parameters = {}  # of the round's clients that are believed
        self._judgement: Judgement | None = None

    def to_average(self, answers: list[NodeReply]) -> list[Message]:
        """Each client's own model; none of those that no image can be judged by."""
        replies = each_client(answers, self._initial)
        if not replies:
            return []
        models = _stacked([reply.arrays for _, reply, _ in replies])
        judgement = self._learning.judged(models)
        largest = judgement.logits.abs().amax(dim=(1, 2))
        good = [row for row, value in enumerate(largest.tolist()) if value <= LARGEST_LOGIT]
        for row, (key, _, _) in enumerate(replies):
            if row not in good:
                told = f"its model is not used: the server's images get logits of {largest[row]:g}"
                self.federation.history.refuse(Refusal(key.node, key.client, told))
        # The gate's steps are scaled by the largest gradient that it ever saw.
        keys = [key for key, _, _ in replies]
        sizes = {keys[row]: root_mean_square([judgement.features[row].numpy()]) for row in good}
        beyond = refuse_largest(
            self.federation,
            sizes,
            "its model is not used: the server's images get features of size",
        )
        good = [row for row in good if keys[row] not in beyond]
        self._models = {name: value[good] for name, value in models.items()}
        self._judgement = Judgement(judgement.logits[good], judgement.features[good])
        return [
            flower_average_input(reply, message, self._initial, self.weight(reply))
            for row, (_, reply, message) in enumerate(replies)
            if row in good
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None or self._judgement is None:
            return arrays, metrics
        mean = _stacked([numpy_arrays(arrays)])
        student, figures = self._learning.student(self._models, self._judgement, mean, server_round)
        self._models, self._judgement = {}, None
        self.federation.history.note(figures)
        return array_record({name: value[0].numpy() for name, value in student.items()}), metrics

    def state(self) -> dict[str, NDArray[Any]]:
        return self._learning.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._learning.restore(state)


def _stacked(models: list[Arrays]) -> Parameters:
    return {name: torch.from_numpy(np.stack([one[name] for one in models])) for name in models[0]}
