"""FedAvg's training for servers that work with each client's own model."""

from __future__ import annotations

from fedproto_app.learners.solo import SoloLearner


class OwnModelLearner(SoloLearner):
    """Everything comes from the server; nodes do not average, and each client's model goes up."""

    shared = ("",)
    sends_mean = False
