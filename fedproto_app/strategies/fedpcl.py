"""FedPCL (Deng and Yang, "Prototype contrastive learning for personalized federated learning",
ICANN 2023, LNCS 14256), with the phases of the period as classes.

A client trains the model that came. Beside the prediction it minimises ProtoNCE: its representation
of a phase is to be like that phase's row of the prototypes that came, and unlike their other rows.
It sends the model, and the mean representation over the batches of an epoch, B × d_r values. To be
judged, it fits the head to its own data with the encoder as averaged.

The server averages the model as FedAvg does, and keeps the latest prototype of every client ever
heard from. To each client goes their mean, or, with ``fedpcl.prototypes = "multiple"``, all of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.method import Method
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.core.section import CountOrZero, NonNegative, Positive, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort, fine_tuned
from fedproto_app.learners.learner import Context, Contribution, Learner, Phase
from fedproto_app.learners.prototype import PeriodPrototype
from fedproto_app.maths.losses import prototype_contrast
from fedproto_app.messages import Order
from fedproto_app.strategies.common.beyond_median import largest
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.forecasting.samples import Batch
from fedproto_app.tasks.forecasting.task import ForecastingTask


class FedPclSettings(Section):
    """``[fedpcl]``: Deng and Yang's, not Tan et al.'s of the same name (docs: fedpcl-fedda.md)."""

    prototypes: Literal["single", "multiple"] = setting(
        "single",
        "what a client contrasts with: the mean of all clients' prototypes, or each of them, which "
        "sends all to all",
    )
    temperature: Positive = setting(0.07, "τ")
    contrast_weight: NonNegative = setting(1.0, "γ, of the contrast beside the prediction")
    supervised: bool = setting(
        True, "false: rounds train by the contrast alone, and only fine-tuning by the targets"
    )
    fine_tune_epochs: CountOrZero = setting(
        1, "epochs of the head on a client's own data, the encoder frozen, before it is judged"
    )


PROTOTYPES = "client-prototypes"  # up: each client's, [B, d_r]
GLOBAL_PROTOTYPES = "global-prototypes"  # down: [M, B, d_r], M = 1 or as many as are known


class ContrastContext(Context):
    """The prototypes that came [M, B, D], if there are any yet, and the cohort's own, gathered.

    contrasts, supervised: which terms the loss has.
    """

    def __init__(
        self, clients: int, received: Tensor | None, *, contrasts: bool, supervised: bool
    ) -> None:
        self.received, self.contrasts, self.supervised = received, contrasts, supervised
        self.own = PeriodPrototype(clients)

    def start_epoch(self) -> None:
        self.own.clear()


class FedPclLearner(Learner[ContrastContext, ForecastingTask]):
    """The supervised loss and ProtoNCE, on a model of which everything comes from the server."""

    needs_representation = True
    section: FedPclSettings

    @classmethod
    def sends(cls, section: FedPclSettings, sizes: Sizes) -> Sequence[Sends]:
        prototype = Sends(
            "prototype",
            {PROTOTYPES: (sizes.period, sizes.width)},
            combine="each",
            remember="latest",
            clip="rows",
            reveals="the mean representation of each time of its period",
        )
        return [model(sizes.encoder, sizes.head), prototype]

    def context(self, order: Order, cohort: Cohort) -> ContrastContext:
        arrived = order.arrays.get(GLOBAL_PROTOTYPES)
        received = None if arrived is None else torch.from_numpy(arrived).to(self.task.device)
        return ContrastContext(
            len(cohort.names), received, contrasts=True, supervised=self.section.supervised
        )

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: ContrastContext
    ) -> dict[str, Tensor]:
        representation = self.task.represent(parameters, batch)
        context.own.add(representation.detach(), batch.age)
        terms = {}
        if context.supervised:
            prediction = self.task.predict(parameters, representation, batch)
            terms["prediction"] = self.task.loss(prediction, batch)
        if context.contrasts:
            terms["contrast"] = self.section.contrast_weight * self._contrast(
                representation, context.received
            )
        return terms

    def _contrast(self, representation: Tensor, received: Tensor | None) -> Tensor:
        """[k]; 0 before there is anything to contrast with, in which nothing learns."""
        if received is None:
            return 0 * representation.sum(dim=(1, 2))
        return prototype_contrast(representation, received, self.section.temperature)

    def contribution(
        self, cohort: Cohort, context: ContrastContext, server_round: int
    ) -> Contribution:
        return Contribution({PROTOTYPES: context.own.value().cpu().numpy()})

    def personalised(self, cohort: Cohort, order: Order) -> dict[str, Tensor] | None:
        """The head after some epochs by the targets alone, on the encoder as averaged."""
        if not self.section.fine_tune_epochs:
            return None
        by_targets = ContrastContext(len(cohort.names), None, contrasts=False, supervised=True)
        phase = Phase("fine-tune", (self.task.head,), self.section.fine_tune_epochs)
        return fine_tuned(self, cohort, by_targets, phase)


class FedPclStrategy(FedAvgStrategy):
    """Prototypes of the latest round of every client, [N, B, d_r]."""

    section: FedPclSettings

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        mean = received.mean(PROTOTYPES)
        if mean is None:
            return Guidance()
        single = self.section.prototypes == "single"
        return Guidance({GLOBAL_PROTOTYPES: mean[None] if single else received.stacked(PROTOTYPES)})

    def guided_evaluation(self, order: Order, keys: Sequence[ClientKey]) -> Order:
        """The model alone: clients fit their heads by their targets."""
        return order

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Those that are far longer than the others of the round: they would own the mean, of which
        only directions count."""
        lengths = {
            reply.key: float(np.linalg.norm(reply.arrays[PROTOTYPES].astype(np.float64)))
            for reply in replies
        }
        return largest(lengths, "its prototype is not used: its length is")


METHOD = Method(
    name="fedpcl",
    strategy=FedPclStrategy,
    learner=FedPclLearner,
    settings=FedPclSettings,
    tasks=("forecasting",),
)
