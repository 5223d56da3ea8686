"""CReFF (Shang, Lu, Huang, Wang, "Federated learning on heterogeneous and long-tailed data via
classifier re-training with federated features", IJCAI 2022).

A client trains as FedAvg's, from FedAvg's model. Before that it represents its images with the
encoder as received, and computes for each class that it has now the mean gradient of cross-entropy
at the re-trained classifier φ as received. It sends both. Clients are judged by the global encoder
with φ.

The server holds m features S_c of each class, which begin as noise. Each round they are moved until
their gradients at the classifier φ point as the clients' do; then a fresh classifier, trained on
all of S, is the next φ. FedAvg's model goes on without φ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Order
from fedproto_app.core.method import Method
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.core.section import Count, Positive, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.models.linear import linear_parameters
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.class_prototypes import class_fault, largest_rows
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Context, Contribution
from fedproto_app.strategies.compared.creff import (
    batch_weights,
    class_gradient,
    feature_norm,
    gradient_fault,
    logits,
    matched_features,
    retrained,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.images.task import ClassificationTask


class CreffSettings(Section):
    """``[creff]``: FedAvg, and a classifier re-trained at the server (docs: creff-fedic.md)."""

    features_per_class: Count = setting(100, "m, federated features of a class at the server")
    match_steps: Count = setting(100, "a round, that move them towards the clients' gradients")
    match_rate: Positive = setting(0.1, "of such a step")
    classifier_epochs: Count = setting(300, "of the fresh classifier on them, every round")
    classifier_batch_size: Count = setting(32, "features of a step")
    classifier_rate: Positive = setting(0.01, "of such a step")
    gradient_batches: Count = setting(
        10, "random batches of a class whose mean gradient a client sends"
    )
    gradient_batch_size: Count = setting(32, "images of such a batch, at most")


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


MOST_VALUES = 2**28  # of all classes' gradients: 1 GiB


class CreffStrategy(FedAvgStrategy):
    """State: S [C, m, d] and φ [C, d + 1]."""

    section: CreffSettings

    def __init__(self, settings: Settings, section: CreffSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        classes, width = len(federation.shape.classes), self.learner.task.representation_dim
        if classes**2 * (width + 1) > MOST_VALUES:
            raise SettingsError(
                f"method = {settings.method!r}: a gradient of {classes} × {width + 1} values for "
                f"each of {classes} classes are more than {MOST_VALUES} values"
            )
        noise = torch_stream(settings.seed, "creff", "features")
        self._features = torch.randn(classes, section.features_per_class, width, generator=noise)
        # Of all cores, threads would mostly wait for each other: the tensors are small.
        torch.set_num_threads(settings.threads)
        self._classifier = self._fresh_classifier(0)

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """φ, beside the model."""
        return Guidance({CLASSIFIER: self._classifier.numpy()})

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        return class_fault(
            reply,
            GRADIENTS,
            round_,
            lambda row, label: gradient_fault(torch.from_numpy(row), label),
        )

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Of features that are far longer a gradient would drown the others in the mean."""
        return largest_rows(replies, GRADIENTS, lambda row: feature_norm(torch.from_numpy(row)))

    def update(self, received: Received, round_: Round) -> None:
        """Match the features to the clients' mean gradients, and train φ anew on them."""
        means = _means(received.fresh)
        if not means:
            return
        section, classes = self.section, torch.tensor(sorted(means))
        self._features[classes], distances = matched_features(
            self._features[classes],
            self._classifier,
            classes,
            torch.stack([means[one] for one in classes.tolist()]),
            section.match_steps,
            section.match_rate,
        )
        number, each, width = self._features.shape
        self._classifier = retrained(
            self._fresh_classifier(round_.number),
            self._features.reshape(-1, width),
            torch.arange(number).repeat_interleave(each),
            section.classifier_epochs,
            section.classifier_batch_size,
            section.classifier_rate,
            torch_stream(self.settings.seed, "creff", "batches", round_.number),
        )
        before, after = (distances / len(means)).tolist()
        round_.figures |= {"distance_before": before, "distance_after": after}

    def state(self) -> dict[str, NDArray[Any]]:
        return {"features": self._features.numpy(), "classifier": self._classifier.numpy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if state:
            self._features = torch.from_numpy(state["features"])
            self._classifier = torch.from_numpy(state["classifier"])

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``retrained-classifier``: φ, a row a class and its bias last, and the classes' names."""
        names = np.array(self.federation.shape.classes)
        return {CLASSIFIER: {"classifier": self._classifier.numpy(), "names": names}}

    def _fresh_classifier(self, number: int) -> Tensor:
        """As a linear layer begins, drawn for the round."""
        classes, _, width = self._features.shape
        drawn = linear_parameters(
            width, classes, torch_stream(self.settings.seed, "creff", "classifier", number)
        )
        return torch.cat([drawn["weight"].T, drawn["bias"].unsqueeze(1)], dim=1)


def _means(replies: Sequence[ClientReply]) -> dict[int, Tensor]:
    """The plain mean of each class's gradients, in the order of the clients' names."""
    by_class: dict[int, list[Tensor]] = {}
    for reply in sorted(replies, key=lambda one: one.key):
        for label, gradient in reply.by_class(GRADIENTS).items():
            by_class.setdefault(label, []).append(torch.from_numpy(gradient))
    return {one: torch.stack(its).double().mean(dim=0).float() for one, its in by_class.items()}


METHOD = Method(
    name="creff",
    strategy=CreffStrategy,
    learner=CreffLearner,
    settings=CreffSettings,
    tasks=("classification",),
    small={
        "creff.features-per-class": 10,
        "creff.match-steps": 10,
        "creff.classifier-epochs": 10,
    },
)
