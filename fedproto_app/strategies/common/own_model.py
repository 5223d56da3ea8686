"""FedAvg's training for servers that work with each client's own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.strategies.solo import SoloLearner


class OwnModelLearner(SoloLearner):
    """Everything comes from the server; nodes do not average, and each client's model goes up."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [model(combine="groups", clip="")]
