"""FEDIC (Shang, Lu, Cheung, Wang, ICME 2022), client half: FedAvg's, but each client sends its own
model, because the server's ensemble uses each of them."""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.strategies.solo import SoloLearner


class FedicLearner(SoloLearner):
    """FedAvg's local training. Nodes do not average."""

    needs_representation = True

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [model(combine="groups", clip="")]
