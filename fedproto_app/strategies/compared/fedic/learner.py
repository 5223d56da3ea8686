"""FEDIC (Shang, Lu, Cheung, Wang, ICME 2022), client half: FedAvg's, but each client sends its own
model, because the server asks all of them one by one."""

from __future__ import annotations

from fedproto_app.strategies.common.own_model import OwnModelLearner


class FedicLearner(OwnModelLearner):
    """FedAvg's local training; nodes do not average."""

    needs_representation = True
