"""FedTGP (Zhang, Liu, Hua, Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for data and model heterogeneity in federated learning", AAAI 2024), client
half.

A client trains a model of its own on cross-entropy plus λ times the mean squared difference of its
images' representations and the global prototypes of their classes. It sends the mean representation
of each class that it has now, by its trained encoder. It predicts with its own model; what the
nearest global prototype says, by which the authors' code predicts, is told beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.global_prototypes import PROTOTYPES, received_prototypes
from fedproto_app.learners.learner import Context, Contribution, Learner
from fedproto_app.maths.class_prototypes import class_means, nearest_prototype
from fedproto_app.maths.trainable_prototypes import pull
from fedproto_app.messages import Order
from fedproto_app.metrics import Metric
from fedproto_app.settings import FedTgpSettings
from fedproto_app.tasks.images.task import ClassificationTask, ImageBatch


class PrototypesContext(Context):
    """The global prototypes [C, D], and which classes have one [C]."""

    def __init__(self, prototypes: Tensor, known: Tensor) -> None:
        self.prototypes, self.known = prototypes, known


class FedTgpLearner(Learner[PrototypesContext, ClassificationTask]):
    """A model that stays, whose representation is pulled to the global prototypes."""

    section: FedTgpSettings
    needs_representation = True

    @classmethod
    def sends(cls, section: FedTgpSettings, sizes: Sizes) -> Sequence[Sends]:
        return [
            Sends(
                "prototypes",
                {PROTOTYPES: (sizes.width,)},
                rows="class",
                reveals="a prototype for each class of which a client has images",
                consent="tells-classes",
            )
        ]

    def context(self, order: Order, cohort: Cohort) -> PrototypesContext:
        return PrototypesContext(*received_prototypes(order, self.task))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: ImageBatch, context: PrototypesContext
    ) -> dict[str, Tensor]:
        representation = self.task.represent(parameters, batch)
        logits = self.task.predict(parameters, representation, batch)
        terms = {"prediction": self.task.loss(logits, batch)}
        if context.known.any():
            distance = pull(
                representation, batch.labels, batch.present, context.prototypes, context.known
            )
            terms["prototypes"] = self.section.prototype_weight * distance
        return terms

    def contribution(
        self, cohort: Cohort, context: PrototypesContext, server_round: int
    ) -> Contribution:
        vectors = self.task.train_vectors(cohort.parameters, cohort.samples)
        means, images = class_means(*vectors, len(self.task.shape.classes))
        return Contribution({PROTOTYPES: means.cpu().numpy()}, images > 0)

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        """By the model's own head, and by the nearest of the global prototypes that came."""
        clients = len(cohort.names)
        shared, known = received_prototypes(order, self.task)
        shared, known = shared.expand(clients, -1, -1), known.expand(clients, -1)
        rules = {
            "": self.task.by_head(cohort.parameters),
            "global-prototypes": lambda r: nearest_prototype(r, shared, known),
        }
        return self.task.judge(cohort.parameters, cohort.samples, rules)
