"""FEDIC (Shang, Lu, Cheung, Wang, ICME 2022), server half.

The server averages its clients' models as FedAvg does. Then it learns on its own labelled images
how far to trust each model (calibration), and trains a student on all models together, which is the
next global model (distillation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import Round, SentModel
from fedproto_app.maths.sizes import root_mean_square
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.compared.fedic import FedicSettings
from fedproto_app.strategies.compared.fedic.auxiliary import server_images
from fedproto_app.strategies.compared.fedic.ensemble_distillation import (
    LARGEST_LOGIT,
    EnsembleDistillation,
    Judgement,
    Parameters,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.trust.outliers import largest


class FedicStrategy(FedAvgStrategy):
    """FEDIC's server. State: the state of `EnsembleDistillation`."""

    section: FedicSettings

    def __init__(self, settings: Settings, section: FedicSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        torch.set_num_threads(settings.threads)
        images = server_images(settings, federation)
        self._learning = EnsembleDistillation(self.learner.task, section, images)
        self._models: Parameters = {}  # of the round's accepted clients
        self._judgement: Judgement | None = None

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays | None:
        """Average the models, without those whose outputs are too large to use."""
        self._judgement = None
        if not models:
            return None
        in_order = sorted(models, key=lambda sent_model: sent_model.key)
        stacked = _stacked([sent_model.arrays for sent_model in in_order])
        judgement = self._learning.judged(stacked)
        logits = judgement.logits.abs().amax(dim=(1, 2)).tolist()
        round_.refused |= {
            sent_model.key: f"its model is not used: the server's images get logits of {value:g}"
            for sent_model, value in zip(in_order, logits, strict=True)
            if not value <= LARGEST_LOGIT
        }
        good = [row for row, value in enumerate(logits) if value <= LARGEST_LOGIT]
        # Adam scales the gate's steps by past gradients, so one outlier would stall it.
        keys = [sent_model.key for sent_model in in_order]
        sizes = {keys[row]: root_mean_square([judgement.features[row].numpy()]) for row in good}
        reason = "its model is not used: the server's images get features of size"
        beyond = largest(sizes, reason)
        round_.refused |= beyond
        good = [row for row in good if keys[row] not in beyond]
        self._models = {name: value[good] for name, value in stacked.items()}
        self._judgement = Judgement(judgement.logits[good], judgement.features[good])
        return super().average([in_order[row] for row in good], round_)

    def renewed(self, mean: Arrays, round_: Round) -> Arrays:
        """Return the student of all models."""
        assert self._judgement is not None
        start = _stacked([mean])
        student, figures = self._learning.student(
            self._models, self._judgement, start, round_.number
        )
        self._models, self._judgement = {}, None
        round_.figures |= figures
        return {name: value[0].numpy() for name, value in student.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        return self._learning.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._learning.restore(state)


def _stacked(models: list[Arrays]) -> Parameters:
    return {
        name: torch.from_numpy(np.stack([model[name] for model in models])) for name in models[0]
    }
