"""CReFF (Shang, Lu, Huang, Wang, "Federated learning on heterogeneous and long-tailed data via
classifier re-training with federated features", IJCAI 2022), client half.

A client trains as FedAvg's, from FedAvg's model. Before that it represents its images with the
encoder as received, and computes for each class that it has now the mean gradient of cross-entropy
at the re-trained classifier φ as received. It sends both. Clients are judged by the global encoder
with φ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Contribution
from fedproto_app.learners.solo import SoloLearner
from fedproto_app.maths.federated_features import batch_weights, class_gradient, logits
from fedproto_app.messages import Order
from fedproto_app.metrics import Metric
from fedproto_app.randomness import torch_stream
from fedproto_app.settings import CreffSettings
from fedproto_app.tasks.images.task import ClassificationTask

GRADIENTS = "class-gradients"  # up, by class: [C, d + 1] each
CLASSIFIER = "retrained-classifier"  # down: φ [C, d + 1]


class GradientContext(Context):
    """gradients: [K, C, C, d + 1], 0 for a class without images; present: [K, C] bool."""

    def __init__(self, gradients: Tensor, present: Tensor) -> None:
        self.gradients, self.present = gradients, present


class CreffLearner(SoloLearner):
    """FedAvg's local training, and a gradient for each class at hand."""

    section: CreffSettings
    task: ClassificationTask
    needs_representation = True

    @classmethod
    def sends(cls, section: CreffSettings, sizes: Sizes) -> Sequence[Sends]:
        gradients = Sends(
            "gradients",
            {GRADIENTS: (sizes.classes, sizes.width + 1)},
            rows="class",
            reveals="a gradient for each class of which a client has images",
            consent="tells-classes",
        )
        return [model(sizes.encoder, sizes.head), gradients]

    def context(self, order: Order, cohort: Cohort) -> GradientContext:
        """The gradients, of the model as it came; training changes it afterwards."""
        classifier, samples = self._received(order), cohort.samples
        features = self.task.encode_all(cohort.parameters, samples.pixels)
        classes = len(self.task.shape.classes)
        gradients = classifier.new_zeros(len(cohort.names), classes, *classifier.shape)
        present = torch.zeros(len(cohort.names), classes, dtype=torch.bool)
        for row, images in enumerate(samples.train_samples):
            labels = samples.labels[row, :images]
            for label in labels.unique().tolist():
                own = features[row, :images][labels == label]
                weights = self._weights(cohort, row, label, len(own))
                of_class = torch.tensor(label, device=own.device)
                gradients[row, label] = class_gradient(classifier, own, of_class, weights)
                present[row, label] = True
        return GradientContext(gradients, present)

    def contribution(self, cohort: Cohort, context: Context, server_round: int) -> Contribution:
        assert isinstance(context, GradientContext)
        return Contribution({GRADIENTS: context.gradients.cpu().numpy()}, context.present)

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        """By φ, and by the averaged model's own head besides.

        A model as its local training left it, which is FedAvg's, is judged by its own head.
        """
        head = self.task.by_head(cohort.parameters)
        chosen = head if order.evaluate else self._by_retrained(order)
        return self.task.judge(cohort.parameters, cohort.samples, {"": chosen, "head": head})

    def _weights(self, cohort: Cohort, row: int, label: int, images: int) -> Tensor:
        """[images] of a client's class."""
        generator = torch_stream(
            self.training.seed, cohort.names[row], cohort.server_round, "class-gradient", label
        )
        drawn = batch_weights(
            images, self.section.gradient_batch_size, self.section.gradient_batches, generator
        )
        return drawn.to(self.task.device)

    def _by_retrained(self, order: Order) -> Callable[[Tensor], Tensor]:
        classifier = self._received(order)
        return lambda representation: logits(classifier, representation).argmax(dim=2)

    def _received(self, order: Order) -> Tensor:
        return torch.from_numpy(order.arrays[CLASSIFIER]).to(self.task.device)
