"""FedTGP (Zhang, Liu, Hua, Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for data and model heterogeneity in federated learning", AAAI 2024).

A client trains a personal model on cross-entropy plus λ times the mean squared difference between
its images' representations and the global prototypes of their classes. It sends the trained
encoder's mean representation of each of its classes. It predicts with its own model. The prediction
by the nearest global prototype, which the authors' code uses, is reported too.

The server trains the global prototypes. In each round a small network learns a prototype for every
class. By a margin, the prototype of a class should be nearer to the clients' prototypes of that
class than the prototypes of other classes are. The server sends the prototypes to the clients and
continues with the same network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import Method
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.section import Count, NonNegative, Positive, Section, setting
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.class_prototypes import nearest_prototype
from fedproto_app.models.linear import linear_parameters, with_prefixes
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.class_prototypes import ClassPrototypes, largest_rows
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort
from fedproto_app.strategies.common.prototypes import (
    PROTOTYPES,
    class_prototypes,
    received_prototypes,
)
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_compared.fedproto import FedProtoClassesLearner

# The server's network computes the prototype of each class from a vector that is learned for it.
# Its parameters, for C classes and width D of the representation:
#     embedding [C, D], hidden.weight [D, D], hidden.bias [D], output.weight [D, D], output.bias [D]
EMBEDDING, HIDDEN, OUTPUT = "embedding", "hidden.", "output."

Network = Mapping[str, Tensor]


def generated(network: Network) -> Tensor:
    """Return the global prototypes [C, D]: linear, ReLU, linear."""
    hidden = network[EMBEDDING] @ network[HIDDEN + "weight"] + network[HIDDEN + "bias"]
    return hidden.relu() @ network[OUTPUT + "weight"] + network[OUTPUT + "bias"]


def adaptive_margin(prototypes: Tensor, labels: Tensor, threshold: float) -> float:
    """Return δ, the largest distance between two classes' mean prototypes, at most the threshold τ.

    prototypes: [n, D]. labels: [n]. The margin is 0 if all prototypes are of one class.
    """
    classes = sorted(set(labels.tolist()))
    means = torch.stack([prototypes[labels == label].mean(dim=0) for label in classes])
    return min(float(_distances(means, means).max()), threshold)


def contrastive_loss(
    generated_prototypes: Tensor, prototypes: Tensor, labels: Tensor, margin: float
) -> Tensor:
    """Return the mean cross-entropy of softmax(−φ).

    φ is the distance from a received prototype to each generated prototype. The distance to the
    generated prototype of its own class is lengthened by the margin.

    generated_prototypes: [C, D]. prototypes: [n, D]. labels: [n].
    """
    distances = _distances(prototypes, generated_prototypes)  # (n, C)
    lengthened = margin * functional.one_hot(labels, len(generated_prototypes))
    return functional.cross_entropy(-(distances + lengthened), labels)


def trained(
    network: Network,
    prototypes: Tensor,
    labels: Tensor,
    margin: float,
    epochs: int,
    batch_size: int,
    rate: float,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], float]:
    """Return the network after epochs of SGD on the prototypes, and the last epoch's mean loss.

    prototypes: [n, D]. labels: [n]. The generator draws the order of each epoch.
    """
    after, losses = dict(network), [0.0]
    for _ in range(epochs):
        losses = []
        order = torch.randperm(len(labels), generator=generator)
        for batch in torch.split(order, batch_size):
            leaves = {name: value.detach().requires_grad_() for name, value in after.items()}
            loss = contrastive_loss(generated(leaves), prototypes[batch], labels[batch], margin)
            slopes = torch.autograd.grad(loss, list(leaves.values()))
            after = {
                name: value.detach() - rate * slope
                for (name, value), slope in zip(leaves.items(), slopes, strict=True)
            }
            losses.append(loss.item())
    return after, sum(losses) / len(losses)


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Return Euclidean distances, [n, D], [m, D] → [n, m], with gradient 0 at equal points."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


class FedTgpSettings(Section):
    """``[fedtgp]`` (docs: compared.md)."""

    prototype_weight: NonNegative = setting(1.0, "weight of the prototypes in the loss (λ)")
    margin_threshold: NonNegative = setting(100.0, "largest adaptive margin (τ)")
    server_epochs: Count = setting(
        100, "epochs per round that train the prototypes at the server (S)"
    )
    server_batch_size: Count = setting(10, "clients' prototypes per step")
    server_rate: Positive = setting(0.01, "learning rate of this training")


class FedTgpLearner(FedProtoClassesLearner):
    """FedProto's training: a personal model, pulled to the global prototypes.

    The server receives each client's prototypes, not their mean.
    """

    task: ClassificationTask

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [replace(class_prototypes(sizes, "images"), combine="each", clip="")]

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Evaluate by the model's own head and by the nearest received global prototype."""
        clients = len(cohort.names)
        shared, has_prototype = received_prototypes(guidance, self.task)
        shared, has_prototype = shared.expand(clients, -1, -1), has_prototype.expand(clients, -1)
        rules = {
            "": self.task.by_head(cohort.parameters),
            "global-prototypes": lambda r: nearest_prototype(r, shared, has_prototype),
        }
        return self.task.judge(cohort.parameters, cohort.samples, rules)


class FedTgpStrategy(ClassPrototypes, PersonalStrategy):
    """State: the network, which makes C̃, and the classes that a client sent a prototype for."""

    section: FedTgpSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        width, classes = self.sizes.width, self.sizes.classes
        draws = torch_stream(settings.seed, "fedtgp", "network")
        embedding = torch.randn(classes, width, generator=draws)
        layers = {layer: linear_parameters(width, width, draws) for layer in (HIDDEN, OUTPUT)}
        self._network = {EMBEDDING: embedding, **with_prefixes(layers)}

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return self.guide(clients, round_)

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        return largest_rows(replies, PROTOTYPES, lambda row: float(np.linalg.norm(row)))

    def update(self, round_: Round) -> None:
        """Train the network on the prototypes of this round."""
        pairs = [
            pair
            for reply in self.received.fresh
            for pair in sorted(reply.by_class(PROTOTYPES).items())
        ]
        if not pairs:
            return
        labels = torch.tensor([label for label, _ in pairs])
        prototypes = torch.from_numpy(np.stack([row for _, row in pairs]))
        section = self.section
        margin = adaptive_margin(prototypes, labels, section.margin_threshold)
        network, loss = trained(
            self._network,
            prototypes,
            labels,
            margin,
            section.server_epochs,
            section.server_batch_size,
            section.server_rate,
            torch_stream(self.settings.seed, "fedtgp", "batches", round_.number),
        )
        if not all(value.isfinite().all() for value in network.values()):
            return  # keep the last usable network
        self._network, self._prototypes = network, generated(network)
        self._known[labels] = True
        round_.figures |= {"margin": margin, "server_loss": loss}

    def state(self) -> dict[str, AnyArray]:
        network = {name: value.numpy() for name, value in self._network.items()}
        return {**network, "known": self._known.numpy()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        if state:
            self._network = {name: torch.from_numpy(state[name]) for name in self._network}
            self._prototypes = generated(self._network)
            self._known = torch.from_numpy(state["known"])


METHOD = Method(
    name="fedtgp",
    strategy=FedTgpStrategy,
    learner=FedTgpLearner,
    settings=FedTgpSettings,
    tasks=("classification",),
    small={"fedtgp.server-epochs": 5},
)
