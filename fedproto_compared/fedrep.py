"""FedRep (Collins et al., ICML 2021), client half: a shared representation, a personal head.

Each round the head trains with the encoder frozen, then the encoder with the head frozen. Only
the encoder is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.core.method import Method
from fedproto_app.core.section import Count, CountOrZero, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.strategies.common.learner import Phase
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner


class FedRepSettings(Section):
    """``[fedrep]``."""

    head_epochs: Count = setting(1, "epochs of the head, before the encoder's")
    encoder_epochs: CountOrZero = setting(0, "epochs of the encoder (0: `local-epochs`)")


class FedRepLearner(SoloLearner):
    """Solo's loss in two phases."""

    needs_representation = True
    section: FedRepSettings

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [model(sizes.encoder)]

    def phases(self) -> Sequence[Phase]:
        epochs = self.section.encoder_epochs or self.training.local_epochs
        return [
            Phase("head", (self.task.head,), self.section.head_epochs),
            Phase("encoder", (self.task.encoder,), epochs),
        ]


METHOD = Method(
    name="fedrep",
    title="FedRep",
    strategy=FedAvgStrategy,
    learner=FedRepLearner,
    settings=FedRepSettings,
)
