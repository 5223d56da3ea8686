"""CReFF (Shang et al., IJCAI 2022), server half: FedAvg, and a classifier of federated features.

The server holds m features S_c of each class, which begin as noise. Each round they are moved until
their gradients at the classifier φ point as the clients' do; then a fresh classifier, trained on
all of S, is the next φ. FedAvg's model goes on without φ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.errors import SettingsError
from fedproto_app.learners.creff import CLASSIFIER, GRADIENTS
from fedproto_app.maths.federated_features import (
    feature_norm,
    gradient_fault,
    matched_features,
    retrained,
)
from fedproto_app.messages import Order
from fedproto_app.models.linear import linear_parameters
from fedproto_app.randomness import torch_stream
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import CreffSettings, Settings
from fedproto_app.strategies.class_rows import believed, rows_by_class
from fedproto_app.strategies.fedavg import FedAvgStrategy

MOST_VALUES = 2**28  # of all classes' gradients: 1 GiB

Gradients = dict[ClientKey, dict[int, Tensor]]  # [C, d + 1] of each class that a client has


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
        self._round = 0
        self._classifier = self._fresh_classifier()

    def guide(self, order: Order, keys: list[ClientKey]) -> Order:
        """The model and φ."""
        return replace(order, arrays={**order.arrays, CLASSIFIER: self._classifier.numpy()})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        self._round = server_round
        return super().aggregate_train(server_round, replies)

    def absorb(self, answers: list[NodeReply]) -> None:
        """Match the features to the clients' mean gradients, and train φ anew on them."""
        arrived = _received(answers)
        # Of features that are far longer a gradient would drown the others in the mean.
        good = believed(self.federation, arrived, gradient_fault, feature_norm, "gradients")
        means = _means(good)
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
            self._fresh_classifier(),
            self._features.reshape(-1, width),
            torch.arange(number).repeat_interleave(each),
            section.classifier_epochs,
            section.classifier_batch_size,
            section.classifier_rate,
            torch_stream(self.settings.seed, "creff", "batches", self._round),
        )
        before, after = (distances / len(means)).tolist()
        self.federation.note({"distance_before": before, "distance_after": after})

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

    def _fresh_classifier(self) -> Tensor:
        """As a linear layer begins, drawn for the round."""
        classes, _, width = self._features.shape
        drawn = linear_parameters(
            width, classes, torch_stream(self.settings.seed, "creff", "classifier", self._round)
        )
        return torch.cat([drawn["weight"].T, drawn["bias"].unsqueeze(1)], dim=1)


def _received(answers: list[NodeReply]) -> Gradients:
    return {
        key: {one: torch.from_numpy(row) for one, row in its.items()}
        for key, its in rows_by_class(answers, GRADIENTS).items()
    }


def _means(gradients: Gradients) -> dict[int, Tensor]:
    """The plain mean of each class's gradients, in the order of the clients' names."""
    by_class: dict[int, list[Tensor]] = {}
    for key in sorted(gradients):
        for label, gradient in gradients[key].items():
            by_class.setdefault(label, []).append(gradient)
    return {one: torch.stack(its).double().mean(dim=0).float() for one, its in by_class.items()}
