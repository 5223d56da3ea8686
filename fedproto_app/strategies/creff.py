"""CReFF (Shang et al., IJCAI 2022), server half: FedAvg, and a classifier of federated features.

The server holds m features S_c of each class, which begin as noise. Each round they are moved until
their gradients at the classifier φ point as the clients' do; then a fresh classifier, trained on
all of S, is the next φ. FedAvg's model goes on without φ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.errors import SettingsError
from fedproto_app.learners.creff import CLASSIFIER, GRADIENTS
from fedproto_app.maths.federated_features import (
    feature_norm,
    gradient_fault,
    matched_features,
    retrained,
)
from fedproto_app.models.linear import linear_parameters
from fedproto_app.randomness import torch_stream
from fedproto_app.server.federation import Federation
from fedproto_app.settings import CreffSettings, Settings
from fedproto_app.strategies.class_rows import class_fault, largest_rows
from fedproto_app.strategies.fedavg import FedAvgStrategy

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
