"""FedPCL (Deng and Yang, "Prototype contrastive learning for personalized federated learning",
ICANN 2023, LNCS 14256), on classes of images and sequences, and on series.

A client trains the model that it receives. In addition to the prediction loss it minimises
ProtoNCE: a representation should be similar to the prototypes of its class and dissimilar to those
of other classes. The client sends the model and its prototypes, which are its mean representations
of each class. Before it is evaluated, it fits the head to its own data on the averaged encoder.

The server averages the model as FedAvg does. It sends each client the mean of the clients'
prototypes, or, with ``fedpcl.prototypes = "multiple"``, every client's prototypes.

A series has no classes, so the phases of its period take their place. A prototype is then B × d_r
values, and the server uses the latest prototype of every client. For images and sequences it uses
the prototypes of the round's clients, and a class that none of them has keeps its last mean.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.section import CountOrZero, NonNegative, Positive, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.core.stored import AnyArray
from fedproto_app.settings import Training
from fedproto_app.strategies.common.class_prototypes import ClassPrototypes, needs_prototypes
from fedproto_app.strategies.common.learner import (
    Cohort,
    Context,
    Contribution,
    Learner,
    Phase,
    TaskT,
    fine_tuned,
)
from fedproto_app.strategies.common.prototypes import PROTOTYPES as CLASS_PROTOTYPES
from fedproto_app.strategies.common.prototypes import (
    PeriodPrototype,
    class_prototypes,
    period_prototype,
    received_array,
    received_prototypes,
    sent_prototypes,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.forecasting.task import Batch, ForecastingTask
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask
from fedproto_app.trust.outliers import largest


class FedPclSettings(Section):
    """``[fedpcl]``: Deng and Yang's, not Tan et al.'s of the same name (docs: compared.md)."""

    prototypes: Literal["single", "multiple"] = setting(
        "single",
        "what to contrast with: the clients' mean prototypes, or every client's own, which all "
        "clients then receive",
    )
    temperature: Positive = setting(0.07, "the contrast's temperature (τ)")
    contrast_weight: NonNegative = setting(
        1.0, "weight of the contrast relative to the prediction (γ)"
    )
    supervised: bool = setting(
        True, "if false, rounds train with the contrast alone, and only fine-tuning uses targets"
    )
    fine_tune_epochs: CountOrZero = setting(
        1, "epochs of the head before evaluation, with the encoder frozen"
    )
    inference: Literal["prototypes", "head"] = setting(
        "head",
        "what predicts classes: the head, or the most similar prototype",
    )


PROTOTYPES = "client-prototypes"  # up: each client's, [B, d_r]
# Down: the prototypes of M clients, [M, B, d_r], or M = 1 for their mean. With classes and
# "multiple", they are [M, C, d_r], with zeros for a class that a client does not have.
GLOBAL_PROTOTYPES = "global-prototypes"


class ContrastContext(Context):
    """contrasts, supervised: which terms the loss has."""

    def __init__(self, *, contrasts: bool, supervised: bool) -> None:
        self.contrasts, self.supervised = contrasts, supervised


ContrastT = TypeVar("ContrastT", bound=ContrastContext)


class ContrastLearner(Learner[ContrastT, TaskT]):
    """The supervised loss and ProtoNCE, for the model that the server averages."""

    needs_representation = True
    section: FedPclSettings

    def __init__(self, training: Training, section: FedPclSettings, task: TaskT) -> None:
        super().__init__(training, section, task)
        self.personalises = section.fine_tune_epochs > 0

    @abstractmethod
    def contrast(self, representation: Tensor, batch: Any, context: ContrastT) -> Tensor:
        """Return ProtoNCE of a batch's representations, [k]."""

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ContrastT
    ) -> dict[str, Tensor]:
        representation = self.task.represent(parameters, batch)
        terms = {}
        if context.supervised:
            prediction = self.task.predict(parameters, representation, batch)
            terms["prediction"] = self.task.loss(prediction, batch)
        if context.contrasts:
            contrast = self.contrast(representation, batch, context)
            terms["contrast"] = self.section.contrast_weight * contrast
        return terms

    def personalised(self, cohort: Cohort, guidance: Guidance) -> dict[str, Tensor] | None:
        """Return the model after training its head on targets, with the averaged encoder frozen."""
        if not self.section.fine_tune_epochs:
            return None
        by_targets = ContrastContext(contrasts=False, supervised=True)
        phase = Phase("fine-tune", (self.task.head,), self.section.fine_tune_epochs)
        return fine_tuned(self, cohort, by_targets, phase)


class PeriodContext(ContrastContext):
    """The received prototypes [M, B, D], if any yet, and the cohort's prototypes so far."""

    def __init__(self, clients: int, received: Tensor | None, *, supervised: bool) -> None:
        super().__init__(contrasts=True, supervised=supervised)
        self.received, self.own = received, PeriodPrototype(clients)

    def start_epoch(self) -> None:
        self.own.clear()


class FedPclLearner(ContrastLearner[PeriodContext, ForecastingTask]):
    """For series: the phases of the period are the classes."""

    @classmethod
    def sends(cls, section: FedPclSettings, sizes: Sizes) -> Sequence[Sends]:
        prototype = period_prototype(PROTOTYPES, sizes.period, sizes.width, combine="each")
        return [model(sizes.encoder, sizes.head), prototype]

    def context(self, guidance: Guidance, cohort: Cohort) -> PeriodContext:
        received = received_array(guidance, GLOBAL_PROTOTYPES, self.task.device)
        return PeriodContext(len(cohort.names), received, supervised=self.section.supervised)

    def contrast(self, representation: Tensor, batch: Batch, context: PeriodContext) -> Tensor:
        """Return the loss, [k]. Until prototypes arrive, it is 0 and has no gradient."""
        context.own.add(representation.detach(), batch.age)
        if context.received is None:
            return 0 * representation.sum(dim=(1, 2))
        return prototype_contrast(representation, context.received, self.section.temperature)

    def contribution(self, cohort: Cohort, context: PeriodContext) -> Contribution:
        return Contribution({PROTOTYPES: context.own.value().cpu().numpy()})


class ClassesContext(ContrastContext):
    """The received sets of prototypes [M, C, D], and the classes of each set [M, C] bool."""

    def __init__(self, prototypes: Tensor, has_class: Tensor, *, supervised: bool) -> None:
        super().__init__(contrasts=True, supervised=supervised)
        self.prototypes, self.has_class = prototypes, has_class


class FedPclClassesLearner(
    ContrastLearner[ClassesContext, ClassificationTask | SequenceClassificationTask]
):
    """For classes: a client sends the mean representation of each class that it has."""

    @classmethod
    def sends(cls, section: FedPclSettings, sizes: Sizes) -> Sequence[Sends]:
        prototypes = class_prototypes(sizes, "samples")
        if section.prototypes == "multiple":
            shown = "shows every client the class prototypes of every other"
            prototypes = replace(prototypes, combine="each", passed_on=shown)
        return [model(sizes.encoder, sizes.head), prototypes]

    def context(self, guidance: Guidance, cohort: Cohort) -> ClassesContext:
        return ClassesContext(*self._received(guidance), supervised=self.section.supervised)

    def contrast(self, representation: Tensor, batch: Any, context: ClassesContext) -> Tensor:
        """Return the loss, [k]. Until prototypes arrive, it is 0 and has no gradient."""
        if not len(context.prototypes):
            return 0 * representation.sum(dim=(1, 2))
        return class_contrast(
            representation,
            batch.targets,
            batch.present,
            context.prototypes,
            context.has_class,
            self.section.temperature,
        )

    def contribution(self, cohort: Cohort, context: ClassesContext) -> Contribution:
        return sent_prototypes(cohort, self.task)

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Evaluate by the head or by the most similar prototype, as the settings say.

        Without any prototype the head predicts.
        """
        prototypes, has_class = self._received(guidance)
        if self.section.inference == "head" or not len(prototypes):
            return self.task.evaluate(cohort.parameters, cohort.samples)
        return self.task.judge_scores(
            cohort.parameters, cohort.samples, lambda r: class_likeness(r, prototypes, has_class)
        )

    def _received(self, guidance: Guidance) -> tuple[Tensor, Tensor]:
        """Return the received sets of prototypes [M, C, D], M = 0 if none, and the classes of
        each set [M, C] bool."""
        sets = received_array(guidance, GLOBAL_PROTOTYPES, self.task.device)
        if sets is not None:
            has_class = sets.any(dim=2)  # zeros have no direction
        else:
            mean, has_mean = received_prototypes(guidance, self.task)
            sets, has_class = mean.unsqueeze(0), has_mean.unsqueeze(0)
        filled = has_class.any(dim=1)
        return sets[filled], has_class[filled]


class FedPclStrategy(FedAvgStrategy):
    """For series: every client's latest prototypes, [N, B, d_r]."""

    section: FedPclSettings

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        mean = self.received.mean(PROTOTYPES)
        if mean is None:
            return Guidance()
        single = self.section.prototypes == "single"
        sets = mean[None] if single else self.received.stacked(PROTOTYPES)
        return Guidance({GLOBAL_PROTOTYPES: sets})

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send the model alone, because clients fit their heads to their own targets."""
        return Guidance()

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Return clients whose prototype is far longer than the round's other prototypes.

        Such prototypes would decide the mean's direction, and only directions matter to the loss.
        """
        lengths = {
            reply.key: float(np.linalg.norm(reply.arrays[PROTOTYPES].astype(np.float64)))
            for reply in replies
        }
        return largest(lengths, "its prototype is not used: its length is")


class FedPclClassesStrategy(ClassPrototypes, FedAvgStrategy):
    """For classes: the mean of each class over the round's clients that have it. With "multiple",
    the prototypes of each of these clients instead."""

    section: FedPclSettings

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        if self.section.prototypes == "single":
            return super().guide(clients, round_)
        replies = self.received.fresh
        if not replies:
            return Guidance()
        sets = np.zeros((len(replies), self.sizes.classes, self.sizes.width), np.float32)
        for row, reply in enumerate(replies):
            sets[row, list(reply.classes)] = reply.arrays[CLASS_PROTOTYPES]
        return Guidance({GLOBAL_PROTOTYPES: sets})

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        by_head = self.section.inference == "head"
        return Guidance() if by_head else self.guide(clients, round_)

    def state(self) -> dict[str, AnyArray]:
        """Keep the means, and the round's prototypes if all clients receive them."""
        multiple = self.section.prototypes == "multiple"
        return {**super().state(), **(self.received.state() if multiple else {})}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        super().restore(state)
        self.received.restore(state)


def prototype_contrast(representation: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Return ProtoNCE with the phases of the period as classes (our reading of Deng and Yang 2023).

    Row b should be similar to row b of each prototype and dissimilar to its other rows: the mean
    over b and m of
        −log( exp(cos(r_b, P_m,b) / τ) / Σ_j exp(cos(r_b, P_m,j) / τ) ).
    representation: [K, B, D]. prototypes: [M, B, D], of M clients, or M = 1 for their mean.
    Returns [K].
    """
    scaled = _cosines(representation, prototypes) / temperature  # (K, B, M, B)
    matching = scaled.diagonal(dim1=1, dim2=3)  # (K, M, B)
    return (scaled.logsumexp(dim=3) - matching.transpose(1, 2)).mean(dim=(1, 2))


def class_contrast(
    representation: Tensor,
    labels: Tensor,
    present: Tensor,
    prototypes: Tensor,
    has_prototype: Tensor,
    temperature: float,
) -> Tensor:
    """Return ProtoNCE over classes (our reading of Deng and Yang 2023).

    Sample b should be similar to the prototypes of its class y_b and dissimilar to the prototypes
    of other classes. The loss is the mean over the samples. A sample's loss is the mean, over those
    sets m of prototypes that have its class, of
        −log( exp(cos(r_b, P_m,y_b) / τ) / Σ_c exp(cos(r_b, P_m,c) / τ) ),
    where c runs over the classes in m.

    representation: [K, B, D]. labels, present: [K, B]. prototypes: [M, C, D], of M clients, or
    M = 1 for their mean. has_prototype: [M, C] bool, each set's classes, at least one. A sample
    adds 0 if no set has its class. Returns [K].
    """
    scaled = _cosines(representation, prototypes) / temperature  # (K, B, M, C)
    label = labels[:, :, None, None].expand(-1, -1, len(prototypes), 1)
    matching = scaled.gather(3, label).squeeze(3)  # (K, B, M)
    contrasts = scaled.masked_fill(~has_prototype, -torch.inf).logsumexp(dim=3) - matching
    has_class = has_prototype.T[labels]  # (K, B, M)
    mean = (contrasts * has_class).sum(dim=2) / has_class.sum(dim=2).clamp(min=1)
    return (mean * present).sum(dim=1) / present.sum(dim=1)


def class_likeness(representation: Tensor, prototypes: Tensor, has_prototype: Tensor) -> Tensor:
    """Return the cosine with the most similar prototype of each class, [K, n, D] → [K, n, C].

    prototypes: [M, C, D]. has_prototype: [M, C] bool. −∞ for a class without a prototype.
    """
    cosines = _cosines(representation, prototypes)
    return cosines.masked_fill(~has_prototype, -torch.inf).amax(dim=2)


def _cosines(representation: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosine of every row with every prototype: [K, B, D], [M, C, D] → [K, B, M, C]."""
    clients, rows, width = representation.shape
    directions = _unit(prototypes).reshape(-1, width)  # (M·C, D)
    return (_unit(representation) @ directions.T).view(clients, rows, *prototypes.shape[:2])


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=2, eps=1e-8)


METHOD = Method(
    name="fedpcl",
    strategy={
        "forecasting": FedPclStrategy,
        "classification": FedPclClassesStrategy,
        "sequence-classification": FedPclClassesStrategy,
    },
    learner={
        "forecasting": FedPclLearner,
        "classification": FedPclClassesLearner,
        "sequence-classification": FedPclClassesLearner,
    },
    settings=FedPclSettings,
    cannot_predict=lambda settings: needs_prototypes(
        settings, settings.method_table(FedPclSettings).inference
    ),
    tasks=("forecasting", "classification", "sequence-classification"),
)
