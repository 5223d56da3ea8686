"""CReFF (Shang, Lu, Huang, Wang, "Federated learning on heterogeneous and long-tailed data via
classifier re-training with federated features", IJCAI 2022).

A client trains FedAvg's model as in FedAvg. Before training it encodes its images with the received
encoder. For each of its classes, it computes the mean gradient of cross-entropy at φ, the
re-trained classifier that it received. It sends the model and the gradients. Clients are evaluated
with the global encoder and φ.

The server holds m features S_c of each class, which begin as noise. Each round it moves them so
that their gradients at φ point in the same directions as the clients'. Then a fresh classifier is
trained on all of S and becomes the next φ. FedAvg's model does not depend on φ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.section import Count, Positive, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.core.stored import AnyArray
from fedproto_app.models.linear import linear_parameters
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.class_prototypes import class_fault, largest_rows
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.images.task import ClassificationTask

# The maths of classifier re-training with federated features (Shang et al., IJCAI 2022).
#
# A linear classifier on representations of width d is [C, d + 1]: row j holds the weights of class
# j, with the bias in the last column. A gradient with respect to it has the same shape.

_NEVER_ZERO = 1e-6  # added to products of norms
_ROUNDING = 1e-3  # largest rounding error of sums in float32
_NO_BIAS = 1e-9  # added to biases, so that a gradient of 0 is not divided by 0


def logits(classifier: Tensor, features: Tensor) -> Tensor:
    """Return the logits […, C]. classifier: [C, d + 1]. features: […, d]."""
    return functional.linear(features, classifier[:, :-1], classifier[:, -1])


def class_gradient(classifier: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of cross-entropy at the classifier, for images of one class.

    classifier: [C, d + 1]. features: […, m, d]. labels: […], the class of each set of m images.
    weights: […, m], the weights of the images in the mean, which sum to 1. Returns […, C, d + 1],
    the sum over the images of w·(p − e_c) ⊗ (feature, 1).
    """
    predicted = logits(classifier, features).softmax(dim=-1)  # (…, m, C)
    target = functional.one_hot(labels, len(classifier)).to(predicted.dtype).unsqueeze(-2)
    residual = (predicted - target) * weights.unsqueeze(-1)
    return residual.transpose(-1, -2) @ _with_ones(features)


def gradient_distance(gradient: Tensor, target: Tensor) -> Tensor:
    """Return D, the sum of 1 − cosine over the rows of weights, with the biases as one more row.

    gradient, target: […, C, d + 1]. Returns […]. The cosine of a row of zeros is 0.
    """
    rows = _cosine(gradient[..., :-1], target[..., :-1])  # (…, C)
    return (1 - rows).sum(dim=-1) + 1 - _cosine(gradient[..., -1], target[..., -1])


def matched_features(
    features: Tensor, classifier: Tensor, labels: Tensor, target: Tensor, steps: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Take steps of gradient descent on Σ_c D(gradient of the features of class c, target_c).

    features: [n, m, d] of n classes. labels: [n]. target: [n, C, d + 1]. Returns the new features
    and, [2], the sum of D before the first step and before the last.
    """
    weights = features.new_full(features.shape[:2], 1 / features.shape[1])
    distances = []
    for _ in range(steps):
        leaf = features.detach().requires_grad_()
        gradient = class_gradient(classifier, leaf, labels, weights)
        distance = gradient_distance(gradient, target).sum()
        (slope,) = torch.autograd.grad(distance, [leaf])
        features = leaf.detach() - rate * slope
        distances.append(distance.detach())
    return features, torch.stack([distances[0], distances[-1]])


def retrained(
    classifier: Tensor,
    features: Tensor,
    labels: Tensor,
    epochs: int,
    batch_size: int,
    rate: float,
    generator: torch.Generator,
) -> Tensor:
    """Return the classifier after epochs of SGD on cross-entropy: [C, d + 1].

    features: [n, d]. labels: [n]. The generator draws the order of each epoch.
    """
    inputs = _with_ones(features)
    targets = functional.one_hot(labels, len(classifier)).to(inputs.dtype)
    classifier = classifier.clone()
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=generator)
        for batch in torch.split(order, batch_size):
            features_of_batch = inputs[batch]
            residual = (features_of_batch @ classifier.T).softmax(dim=1) - targets[batch]
            classifier -= (rate / len(features_of_batch)) * (residual.T @ features_of_batch)
    return classifier


def batch_weights(images: int, batch_size: int, batches: int, generator: torch.Generator) -> Tensor:
    """Return each image's weight [images] in the mean over random batches.

    A batch holds no image twice. If all images fit into a batch, they have equal weights.
    """
    size = min(batch_size, images)
    if size == images:
        return torch.full((images,), 1 / images)
    drawn = [torch.randperm(images, generator=generator)[:size] for _ in range(batches)]
    return torch.bincount(torch.cat(drawn), minlength=images) / (batches * size)


def gradient_fault(gradient: Tensor, label: int) -> str | None:
    """Return why this cannot be a mean gradient [C, d + 1] of images of one class, or None.

    p − e_c is between −1 and 0 for the class itself, between 0 and 1 for the others, and sums to 0.
    """
    bias = gradient[:, -1]
    other_classes = torch.cat([bias[:label], bias[label + 1 :]])
    if not (-1 - _ROUNDING <= bias[label] <= _ROUNDING and (other_classes >= -_ROUNDING).all()):
        return "its biases' part has the wrong signs or is beyond ±1"
    if bias.sum().abs() > _ROUNDING:
        return f"its biases' part sums to {bias.sum():.3g}, expected 0"
    return None


def feature_norm(gradient: Tensor) -> float:
    """Return the largest norm of a mean feature that the gradient [C, d + 1] implies.

    The row of class j is the sum of w·(p_j − e_cj)·feature. The factors w·(p_j − e_cj) have one
    sign and sum to the bias's gradient, so row / bias is a mean of features.
    """
    norms, bias = gradient[:, :-1].norm(dim=1), gradient[:, -1].abs()
    return float((norms / (bias + _NO_BIAS)).max())


def _with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], dim=-1)


def _cosine(left_rows: Tensor, right_rows: Tensor) -> Tensor:
    """Return the cosine along the last dimension."""
    norms: Tensor = left_rows.norm(dim=-1) * right_rows.norm(dim=-1)
    return (left_rows * right_rows).sum(dim=-1) / (norms + _NEVER_ZERO)


class CreffSettings(Section):
    """``[creff]``: FedAvg, and a classifier re-trained at the server (docs: compared.md)."""

    features_per_class: Count = setting(100, "federated features per class at the server (m)")
    match_steps: Count = setting(
        100, "steps per round that fit these features to the clients' gradients"
    )
    match_rate: Positive = setting(0.1, "learning rate of these steps")
    classifier_epochs: Count = setting(
        300, "epochs per round of a new classifier on these features"
    )
    classifier_batch_size: Count = setting(32, "features per step")
    classifier_rate: Positive = setting(0.01, "learning rate of the classifier")
    gradient_batches: Count = setting(
        10, "random batches per class. A client sends their mean gradient"
    )
    gradient_batch_size: Count = setting(32, "most images in such a batch")


GRADIENTS = "class-gradients"  # up, by class: [C, d + 1] each
CLASSIFIER = "retrained-classifier"  # down: φ [C, d + 1]


class GradientContext(Context):
    """gradients: [K, C, C, d + 1], 0 for a class without images. present: [K, C] bool."""

    def __init__(self, gradients: Tensor, present: Tensor) -> None:
        self.gradients, self.present = gradients, present


class CreffLearner(SoloLearner):
    """FedAvg's local training, and a gradient for each of the client's classes."""

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

    def context(self, guidance: Guidance, cohort: Cohort) -> GradientContext:
        """Compute the gradients with the received model, before training changes it."""
        classifier, samples = self._received(guidance), cohort.samples
        features = self.task.encode_all(cohort.parameters, samples.values)
        classes = len(self.task.shape.classes)
        gradients = classifier.new_zeros(len(cohort.names), classes, *classifier.shape)
        present = torch.zeros(len(cohort.names), classes, dtype=torch.bool)
        for row, images in enumerate(samples.train_samples):
            labels = samples.targets[row, :images]
            for label in labels.unique().tolist():
                class_features = features[row, :images][labels == label]
                weights = self._weights(cohort, row, label, len(class_features))
                of_class = torch.tensor(label, device=class_features.device)
                gradients[row, label] = class_gradient(
                    classifier, class_features, of_class, weights
                )
                present[row, label] = True
        return GradientContext(gradients, present)

    def contribution(self, cohort: Cohort, context: Context) -> Contribution:
        assert isinstance(context, GradientContext)
        return Contribution({GRADIENTS: context.gradients.cpu().numpy()}, context.present)

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Evaluate with φ, and also with the averaged model's own head.

        A locally trained model is evaluated with its own head, as in FedAvg.
        """
        head = self.task.by_head(cohort.parameters)
        chosen = head if cohort.trains else self._by_retrained(guidance)
        return self.task.judge(cohort.parameters, cohort.samples, {"": chosen, "head": head})

    def _weights(self, cohort: Cohort, row: int, label: int, images: int) -> Tensor:
        """Return the weights [images] of a client's images of a class."""
        generator = torch_stream(
            self.training.seed, cohort.names[row], cohort.server_round, "class-gradient", label
        )
        drawn = batch_weights(
            images, self.section.gradient_batch_size, self.section.gradient_batches, generator
        )
        return drawn.to(self.task.device)

    def _by_retrained(self, guidance: Guidance) -> Callable[[Tensor], Tensor]:
        classifier = self._received(guidance)
        return lambda representation: logits(classifier, representation).argmax(dim=2)

    def _received(self, guidance: Guidance) -> Tensor:
        return torch.from_numpy(guidance.arrays[CLASSIFIER]).to(self.task.device)


MOST_VALUES = 2**28  # of all classes' gradients: 1 GiB


class CreffStrategy(FedAvgStrategy):
    """State: S [C, m, d] and φ [C, d + 1]."""

    section: CreffSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        classes, width = len(federation.shape.classes), self.learner.task.representation_dim
        if classes**2 * (width + 1) > MOST_VALUES:
            raise SettingsError(
                f"method = {settings.method!r}: a gradient of {classes} × {width + 1} values for "
                f"each of {classes} classes are more than {MOST_VALUES} values"
            )
        noise = torch_stream(settings.seed, "creff", "features")
        shape = (classes, self.section.features_per_class, width)
        self._features = torch.randn(shape, generator=noise)
        self._classifier = self._fresh_classifier(0)

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send φ with the model."""
        return Guidance({CLASSIFIER: self._classifier.numpy()})

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        return class_fault(
            reply,
            GRADIENTS,
            round_,
            lambda row, label: gradient_fault(torch.from_numpy(row), label),
        )

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Return clients with unusually long features, because their gradients would dominate."""
        return largest_rows(replies, GRADIENTS, lambda row: feature_norm(torch.from_numpy(row)))

    def update(self, round_: Round) -> None:
        """Match the features to the clients' mean gradients, and train a new φ on them."""
        means = _means(self.received.fresh)
        if not means:
            return
        section, classes = self.section, torch.tensor(sorted(means))
        self._features[classes], distances = matched_features(
            self._features[classes],
            self._classifier,
            classes,
            torch.stack([means[label] for label in classes.tolist()]),
            section.match_steps,
            section.match_rate,
        )
        number, per_class, width = self._features.shape
        self._classifier = retrained(
            self._fresh_classifier(round_.number),
            self._features.reshape(-1, width),
            torch.arange(number).repeat_interleave(per_class),
            section.classifier_epochs,
            section.classifier_batch_size,
            section.classifier_rate,
            torch_stream(self.settings.seed, "creff", "batches", round_.number),
        )
        before, after = (distances / len(means)).tolist()
        round_.figures |= {"distance_before": before, "distance_after": after}

    def state(self) -> dict[str, AnyArray]:
        return {"features": self._features.numpy(), "classifier": self._classifier.numpy()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        if state:
            self._features = torch.from_numpy(state["features"])
            self._classifier = torch.from_numpy(state["classifier"])

    def findings(self) -> dict[str, dict[str, AnyArray]]:
        """``retrained-classifier``: φ, one row per class, bias last, and the classes' names."""
        names = np.array(self.federation.shape.classes)
        return {CLASSIFIER: {"classifier": self._classifier.numpy(), "names": names}}

    def _fresh_classifier(self, number: int) -> Tensor:
        """Return a classifier initialised like a linear layer, drawn for the round."""
        classes, _, width = self._features.shape
        drawn = linear_parameters(
            width, classes, torch_stream(self.settings.seed, "creff", "classifier", number)
        )
        return torch.cat([drawn["weight"].T, drawn["bias"].unsqueeze(1)], dim=1)


def _means(replies: Sequence[ClientReply]) -> dict[int, Tensor]:
    """Return the plain mean of each class's gradients, summed in the order of the replies."""
    by_class: dict[int, list[Tensor]] = {}
    for reply in replies:
        for label, gradient in reply.by_class(GRADIENTS).items():
            by_class.setdefault(label, []).append(torch.from_numpy(gradient))
    return {
        label: torch.stack(gradients).double().mean(dim=0).float()
        for label, gradients in by_class.items()
    }


METHOD = Method(
    name="creff",
    strategy=CreffStrategy,
    learner=CreffLearner,
    settings=CreffSettings,
    cannot_predict=lambda settings: "the server's head, which predicts, is not kept",
    tasks=("classification",),
    small={
        "creff.features-per-class": 10,
        "creff.match-steps": 10,
        "creff.classifier-epochs": 10,
    },
)
