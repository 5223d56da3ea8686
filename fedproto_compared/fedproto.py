"""FedProto (Tan et al., AAAI 2022), adapted to forecasting as in FUELS.

A client's prototype is its mean representation over the batches of an epoch, one row per phase of
the period: B × d_r values. The loss adds the distance to the global prototype.

The server sends the mean of the clients' prototypes to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import Round
from fedproto_app.core.section import NonNegative, Section, setting
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.class_prototypes import nearness_of_classes
from fedproto_app.strategies.common.class_prototypes import ClassPrototypes, needs_prototypes
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution, Learner
from fedproto_app.strategies.common.prototypes import (
    PeriodPrototype,
    class_prototypes,
    period_prototype,
    received_array,
    received_prototypes,
    sent_prototypes,
)
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.tasks.forecasting.task import Batch, ForecastingTask
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask


class FedProtoSettings(Section):
    """``[fedproto]``."""

    prototype_weight: NonNegative = setting(1.0, "weight of the prototypes in the loss (λ)")
    inference: Literal["prototypes", "head"] = setting(
        "prototypes",
        "what predicts classes: the nearest global prototype, or the head",
    )


PROTOTYPES, PROTOTYPE = "prototypes", "prototype"  # what a client sends, and what all receive


class PrototypeContext(Context):
    """The global prototype [B, D] if it exists yet, and the cohort's prototypes so far."""

    def __init__(self, clients: int, global_prototype: Tensor | None) -> None:
        self.global_prototype = global_prototype
        self.local_prototypes = PeriodPrototype(clients)

    def start_epoch(self) -> None:
        self.local_prototypes.clear()


class FedProtoLearner(Learner[PrototypeContext, ForecastingTask]):
    """The supervised loss and the distance to the global prototype."""

    needs_representation = True
    section: FedProtoSettings

    @classmethod
    def sends(cls, section: FedProtoSettings, sizes: Sizes) -> Sequence[Sends]:
        size, present = (sizes.period, sizes.width), "the mean over the clients that take part"
        return [period_prototype(PROTOTYPES, *size, combine="mean", of_present=present)]

    def context(self, guidance: Guidance, cohort: Cohort) -> PrototypeContext:
        received = received_array(guidance, PROTOTYPE, self.task.device)
        return PrototypeContext(len(cohort.names), received)

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: PrototypeContext
    ) -> dict[str, Tensor]:
        representation = self.task.represent(parameters, batch)
        context.local_prototypes.add(representation.detach(), batch.age)
        prediction = self.task.predict(parameters, representation, batch)
        terms = {"prediction": self.task.loss(prediction, batch)}
        if context.global_prototype is not None:
            distance = prototype_distance(representation, context.global_prototype)
            terms["prototype"] = self.section.prototype_weight * distance
        return terms

    def contribution(self, cohort: Cohort, context: PrototypeContext) -> Contribution:
        return Contribution({PROTOTYPES: context.local_prototypes.value().cpu().numpy()})


class ClassPrototypesContext(Context):
    """The global prototypes [C, D], and which classes have a prototype [C]."""

    def __init__(self, prototypes: Tensor, has_prototype: Tensor) -> None:
        self.prototypes, self.has_prototype = prototypes, has_prototype


class FedProtoClassesLearner(
    Learner[ClassPrototypesContext, ClassificationTask | SequenceClassificationTask]
):
    """For classes: the supervised loss, and the distance of each representation from the global
    prototype of its class."""

    section: FedProtoSettings
    needs_representation = True

    @classmethod
    def sends(cls, section: FedProtoSettings, sizes: Sizes) -> Sequence[Sends]:
        return [class_prototypes(sizes, "samples")]

    def context(self, guidance: Guidance, cohort: Cohort) -> ClassPrototypesContext:
        return ClassPrototypesContext(*received_prototypes(guidance, self.task))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ClassPrototypesContext
    ) -> dict[str, Tensor]:
        representation = self.task.represent(parameters, batch)
        prediction = self.task.predict(parameters, representation, batch)
        terms = {"prediction": self.task.loss(prediction, batch)}
        if context.has_prototype.any():
            prototypes = context.prototypes, context.has_prototype
            distance = pull(representation, batch.targets, batch.present, *prototypes)
            terms["prototypes"] = self.section.prototype_weight * distance
        return terms

    def contribution(self, cohort: Cohort, context: ClassPrototypesContext) -> Contribution:
        return sent_prototypes(cohort, self.task)

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Evaluate by the nearest global prototype or by the head, as `inference` says.

        Without any prototype the head predicts.
        """
        shared, has_prototype = received_prototypes(guidance, self.task)
        if self.section.inference == "head" or not has_prototype.any():
            return self.task.evaluate(cohort.parameters, cohort.samples)
        shared = shared.expand(len(cohort.names), -1, -1)
        has_prototype = has_prototype.expand(len(cohort.names), -1)

        def nearness(representation: Tensor) -> Tensor:
            return nearness_of_classes(representation, shared, has_prototype)

        return self.task.judge_scores(cohort.parameters, cohort.samples, nearness)


class FedProtoStrategy(PersonalStrategy):
    """For series: every client receives the mean of all clients' latest prototypes, [B, d_r]."""

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        mean = self.received.mean(PROTOTYPES)
        return Guidance() if mean is None else Guidance({PROTOTYPE: mean})


class FedProtoClassesStrategy(ClassPrototypes, PersonalStrategy):
    """For classes: the mean of a class's prototypes over the round's clients that have it.

    Clients are evaluated with the prototypes of the same round.
    """

    final_after_training = False

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return self.guide(clients, round_)


def pull(
    representation: Tensor,
    labels: Tensor,
    present: Tensor,
    prototypes: Tensor,
    has_prototype: Tensor,
) -> Tensor:
    """Return the mean squared difference between representations and class prototypes, [K].

    representation: [K, B, D]. labels, present: [K, B]. prototypes: [C, D]. has_prototype: [C]. The
    mean is over all images, and images of a class without a prototype add 0.
    """
    squared = (representation - prototypes[labels]).square().mean(dim=2)  # (K, B)
    return (squared * present * has_prototype[labels]).sum(dim=1) / present.sum(dim=1)


def prototype_distance(representation: Tensor, prototype: Tensor) -> Tensor:
    """Return the mean squared distance to the global prototype (Tan et al. 2022, eq. 8).

    representation: [K, B, D]. prototype: [B, D]. Returns [K].
    """
    return (representation - prototype).square().mean(dim=(1, 2))


METHOD = Method(
    name="fedproto",
    title="FedProto",
    strategy={
        "forecasting": FedProtoStrategy,
        "classification": FedProtoClassesStrategy,
        "sequence-classification": FedProtoClassesStrategy,
    },
    learner={
        "forecasting": FedProtoLearner,
        "classification": FedProtoClassesLearner,
        "sequence-classification": FedProtoClassesLearner,
    },
    settings=FedProtoSettings,
    cannot_predict=lambda settings: needs_prototypes(
        settings, settings.method_table(FedProtoSettings).inference
    ),
    tasks=("forecasting", "classification", "sequence-classification"),
)
