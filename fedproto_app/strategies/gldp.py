"""GLDP: global and local prototypes of long-tailed, growing classes (GLDP, Algorithm 1).

A client ("Local Clients Update", lines 9 to 18) loads the shared representation Θ into its µ and
trains µ for t epochs with its head ν frozen, then ν for s epochs with µ frozen, with the loss
    L = L_CE + λ·L_LP + (1 − λ)·L_GP                                  (GLDP, eq. 12)
It sends µ and the prototypes of its present classes. Its head and its local prototypes never leave
the node. From earlier stages it stores only the prototypes.

At the server ("Central Server", lines 3 to 8) the representation Θ is the plain mean of the
selected clients' µ (GLDP, eq. 5), through Flower's FedAvg. The global prototype of a class is a
moving average of the mean over the clients that have the class now (GLDP, eq. 11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.metrics import Metric
from fedproto_app.core.section import Count, Section, ShareOrEither, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.maths.class_prototypes import (
    class_means,
    moving_average,
    nearest_prototype,
)
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.common.class_prototypes import ClassPrototypes, needs_prototypes
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution, Learner, Phase
from fedproto_app.strategies.common.prototypes import (
    PROTOTYPES,
    class_prototypes,
    received_prototypes,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.labelled import LabelledBatch


class GldpSettings(Section):
    """``[gldp]``."""

    encoder_epochs: Count = setting(
        10,
        "epochs that train the encoder µ with the head ν frozen (t)",
    )
    head_epochs: Count = setting(20, "later epochs that train ν with µ frozen (s)")
    balance: ShareOrEither = setting(0.5, "weight of local against global prototypes (λ)")
    memory: ShareOrEither = setting(0.5, "weight of the old prototypes in the moving averages (β)")
    relations: bool = setting(True, "if false, ablation without prototype losses")
    local_relation: Literal["embedding", "prediction"] = setting(
        "embedding",
        "local prototype loss of embeddings or of predictions (GLDP, eqs. 7 and 8)",
    )
    prototype_encoder: Literal["own", "shared"] = setting(
        "own",
        "which encoder computes prototypes: the client's trained encoder (GLDP, eq. 6) or the "
        "shared one",
    )
    inference: Literal["local-prototypes", "global-prototypes", "head"] = setting(
        "local-prototypes",
        "what predicts for the main accuracies",
    )


class PrototypeMemory(NamedTuple):
    """A client's memory: Ĉ of the earlier stages, and C of the present stage.

    old, new: Ĉ and C, [C, D]. old_known, new_known: [C] bool, the classes that have a prototype.
    visit: the number of C's stage, -1 before the first.
    """

    old: Tensor
    old_known: Tensor
    new: Tensor
    new_known: Tensor
    visit: Tensor


class RelationContext(Context):
    """The prototypes that the losses pull to, Ĉ [K, C, D] and C̃ [C, D], and masks of those that
    exist, [K, C] and [C]."""

    def __init__(
        self, old: Tensor, old_known: Tensor, shared: Tensor, shared_known: Tensor
    ) -> None:
        self.old, self.old_known, self.shared, self.known = old, old_known, shared, shared_known


class GlobalLocalPrototypeLearner(Learner[RelationContext, ClassificationTask]):
    """A shared encoder, a personal head, and prototypes against forgetting."""

    section: GldpSettings
    needs_representation = True

    def __init__(self, training: Training, section: GldpSettings, task: ClassificationTask) -> None:
        super().__init__(training, section, task)
        self._classes = len(task.shape.classes)

    @classmethod
    def sends(cls, section: GldpSettings, sizes: Sizes) -> Sequence[Sends]:
        plain_mean = model(sizes.encoder, weight="clients")  # GLDP, eq. 5
        return [plain_mean, class_prototypes(sizes, "images")]

    def initial_memory(self) -> PrototypeMemory:
        prototypes = torch.zeros(self._classes, self.task.representation_dim)
        none_known = torch.zeros(self._classes, dtype=torch.bool)
        return PrototypeMemory(
            old=prototypes,
            old_known=none_known,
            new=prototypes,
            new_known=none_known,
            visit=torch.tensor(-1),
        )

    def phases(self) -> list[Phase]:
        return [
            Phase("encoder", (self.task.encoder,), self.section.encoder_epochs),
            Phase("head", (self.task.head,), self.section.head_epochs),
        ]

    def begin(self, cohort: Cohort) -> None:
        self._begin_stage(cohort)
        if self.section.prototype_encoder == "shared":
            self._remember_current(cohort)  # µ is still Θ

    def context(self, guidance: Guidance, cohort: Cohort) -> RelationContext:
        memory: PrototypeMemory = cohort.memory
        shared, shared_known = received_prototypes(guidance, self.task)
        return RelationContext(memory.old, memory.old_known, shared, shared_known)

    def loss(
        self, parameters: Mapping[str, Tensor], batch: LabelledBatch, context: RelationContext
    ) -> dict[str, Tensor]:
        representation = self.task.represent(parameters, batch)
        logits = self.task.predict(parameters, representation, batch)
        terms = {"prediction": self.task.loss(logits, batch)}
        if not self.section.relations:
            return terms
        k = len(representation)
        old, old_known = context.old[:k], context.old_known[:k]
        balance = self.section.balance
        if self.section.local_relation == "prediction":
            local = local_relation_of_predictions(
                logits, batch.targets, batch.present, self.task.predict(parameters, old), old_known
            )
            terms["local-prototypes"] = balance * local
        if batch.encoded:
            return terms  # µ is frozen, so relations of its embeddings are constant here
        means, counts = class_means(representation, batch.targets, batch.present, self._classes)
        if self.section.local_relation == "embedding":
            terms["local-prototypes"] = balance * local_relation(means, counts, old, old_known)
        shared = global_relation(means, counts, context.shared, context.known)
        terms["global-prototypes"] = (1 - balance) * shared
        return terms

    def conclude(self, cohort: Cohort, context: RelationContext) -> dict[str, Tensor]:
        if self.section.prototype_encoder == "own":
            self._remember_current(cohort)
        return {}

    def contribution(self, cohort: Cohort, context: RelationContext) -> Contribution:
        memory: PrototypeMemory = cohort.memory
        return Contribution({PROTOTYPES: memory.new.cpu().numpy()}, memory.new_known)

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Evaluate predictions by local prototypes, by global prototypes and by the head. The rule
        that the settings choose gives the main metrics."""
        clients = len(cohort.names)
        shared, shared_known = received_prototypes(guidance, self.task)
        shared, shared_known = shared.expand(clients, -1, -1), shared_known.expand(clients, -1)
        # The evaluated encoder gives prototypes of the classes that a client has images of.
        current, has = self._current_prototypes(cohort)
        remembered, local_known = self._remembered_prototypes(cohort)
        local = torch.where(has.unsqueeze(2), current, remembered)
        local_known = local_known | has
        rules = {
            "local-prototypes": lambda r: nearest_prototype(r, local, local_known),
            "global-prototypes": lambda r: nearest_prototype(r, shared, shared_known),
            "head": self.task.by_head(cohort.parameters),
        }
        all_rules = {"": rules[self.section.inference], **rules}
        return self.task.judge(cohort.parameters, cohort.samples, all_rules)

    def _begin_stage(self, cohort: Cohort) -> None:
        """Merge the last stage's C into Ĉ where a new stage begins (GLDP, eq. 9)."""
        memory: PrototypeMemory = cohort.memory
        cyclic = self.task.settings.classification.stage_schedule == "cyclic"
        visits = [cohort.server_round] * len(cohort.names) if cyclic else cohort.samples.stages
        visit = torch.tensor(visits, device=memory.visit.device)
        begins = visit != memory.visit
        updated, updated_known = self._remembered_prototypes(cohort)
        memory.old.copy_(torch.where(begins[:, None, None], updated, memory.old))
        memory.old_known.copy_(torch.where(begins[:, None], updated_known, memory.old_known))
        memory.new_known.logical_and_(~begins[:, None])
        memory.visit.copy_(visit)

    def _current_prototypes(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return C_n over the stage's images (GLDP, eq. 6), [K, C, D], and where it exists, [K, C]
        bool."""
        vectors = self.task.train_vectors(cohort.parameters, cohort.samples)
        means, images = class_means(*vectors, self._classes)
        return means, images > 0

    def _remember_current(self, cohort: Cohort) -> None:
        """Store C_n over the whole local set of this stage (GLDP, eq. 6)."""
        means, has = self._current_prototypes(cohort)
        cohort.memory.new.copy_(means)
        cohort.memory.new_known.copy_(has)

    def _remembered_prototypes(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return Ĉ at the end of this stage (GLDP, eq. 9), [K, C, D], and where it exists, [K, C]
        bool."""
        memory: PrototypeMemory = cohort.memory
        return moving_average(
            memory.old, memory.old_known, memory.new, memory.new_known, self.section.memory
        )


def local_relation(means: Tensor, counts: Tensor, old: Tensor, old_known: Tensor) -> Tensor:
    """Return L_LP in the embedding space (GLDP, eq. 7): KL(softmax(Ĉ_n) ‖ softmax(C_n)), [K].

    It is the mean over the classes with images here and an old local prototype, or 0 without any.
    """
    log_old, log_new = old.log_softmax(dim=2), means.log_softmax(dim=2)
    divergence = (log_old.exp() * (log_old - log_new)).sum(dim=2)  # (K, C)
    return _mean(divergence, old_known & (counts > 0))


def local_relation_of_predictions(
    logits: Tensor, labels: Tensor, present: Tensor, old_logits: Tensor, old_known: Tensor
) -> Tensor:
    """Return L_LP of predictions (GLDP, eq. 8): KL(p(Ĉ_n) ‖ p(x)) over images x of class n, [K].

    It is the mean over a class's images, then over classes with an old local prototype. logits:
    [K, B, C]. old_logits: [K, C, C], the head's logits for the prototypes, without gradient.
    """
    log_target = old_logits.detach().log_softmax(dim=2)
    index = labels.unsqueeze(2).expand(-1, -1, logits.shape[2])
    log_target = log_target.gather(1, index)  # (K, B, C), of each image's own class
    divergence = (log_target.exp() * (log_target - logits.log_softmax(dim=2))).sum(dim=2)
    by_class, counts = class_means(divergence.unsqueeze(2), labels, present, old_known.shape[1])
    return _mean(by_class.squeeze(2), old_known & (counts > 0))


def global_relation(
    means: Tensor, counts: Tensor, prototypes: Tensor, has_prototype: Tensor
) -> Tensor:
    """Return L_GP = Σ_n (T_n / T)·MSE(C_n, C̃_n) over classes with a prototype (GLDP, eq. 10), [K].

    prototypes: [C, D] and has_prototype: [C], the same for all clients. T is the number of all
    images, including images of classes without a global prototype.
    """
    distance = (means - prototypes).square().mean(dim=2)  # (K, C)
    share = counts / counts.sum(dim=1, keepdim=True)
    return (share * distance * has_prototype).sum(dim=1)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the classes in the mask, or 0 if there are none: [K, C] → [K]."""
    masked = torch.where(mask, values, 0.0)
    return masked.sum(dim=1) / mask.sum(dim=1).clamp(min=1)


class GlobalLocalPrototypeStrategy(ClassPrototypes, FedAvgStrategy):
    """FedAvg of the encoders, and the global prototypes C̃ [C, D]."""

    section: GldpSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self.memory = self.section.memory


METHOD = Method(
    name="gldp",
    title="GLDP",
    strategy=GlobalLocalPrototypeStrategy,
    learner=GlobalLocalPrototypeLearner,
    settings=GldpSettings,
    cannot_predict=lambda settings: needs_prototypes(
        settings, settings.method_table(GldpSettings).inference
    ),
    tasks=("classification",),
)
