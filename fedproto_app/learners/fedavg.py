"""FedAvg (McMahan et al., AISTATS 2017), client half: train the global model, send it back.

Adam starts afresh each round, because its moments belong to a model that averaging replaced.
"""

from __future__ import annotations

from fedproto_app.learners.solo import SoloLearner


class FedAvgLearner(SoloLearner):
    """Solo's local training, on a model of which everything comes from the server."""

    shared = ("",)
