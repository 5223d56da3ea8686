"""FedAvg's training for servers that work with each client's own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.strategies.solo import SoloLearner


class OwnModelLearner(SoloLearner):
    """Clients get their whole model from the server and send it back; nodes do not average."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [model(combine="groups", clip="")]
