"""FedPCL (Deng and Yang, "Prototype contrastive learning for personalized federated learning",
ICANN 2023, LNCS 14256), client half, with the phases of the period as classes.

A client trains the model that came. Beside the prediction it minimises ProtoNCE: its representation
of a phase is to be like that phase's row of the prototypes that came, and unlike their other rows.
It sends the model, and the mean representation over the batches of an epoch, B × d_r values. To be
judged, it fits the head to its own data with the encoder as averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort, fine_tuned
from fedproto_app.learners.learner import Context, Contribution, Learner, Phase
from fedproto_app.learners.prototype import PeriodPrototype
from fedproto_app.maths.losses import prototype_contrast
from fedproto_app.messages import Order
from fedproto_app.settings import FedPclSettings
from fedproto_app.tasks.forecasting.samples import Batch
from fedproto_app.tasks.forecasting.task import ForecastingTask

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
