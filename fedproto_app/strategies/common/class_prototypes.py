"""A global prototype for each class, which the clients' prototypes of a round move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import Guidance, Received, Round
from fedproto_app.maths.class_prototypes import moving_average
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.class_prototypes import CheckedClassPrototypes
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.global_prototypes import PROTOTYPES


class ClassPrototypes(CheckedClassPrototypes):
    """State: C̃ [C, D], and which classes any client has had so far [C].

    memory: the share of the old prototypes where new ones came.
    """

    memory = 0.0

    def __init__(
        self, settings: Settings, section: Any, federation: Federation | None = None
    ) -> None:
        super().__init__(settings, section, federation)
        self._prototypes = torch.zeros(self.sizes.classes, self.sizes.width)
        self._known = torch.zeros(self.sizes.classes, dtype=torch.bool)

    def update(self, received: Received, round_: Round) -> None:
        """GLDP, eq. 11; without memory, FedProto's mean of the round."""
        means = received.class_means(PROTOTYPES, self.sizes.classes)
        if means is not None:
            new, new_known = map(torch.from_numpy, means)
            self._prototypes, self._known = moving_average(
                self._prototypes, self._known, new, new_known, self.memory
            )

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """C̃ of the classes that any client has had so far."""
        classes = self._classes()
        if not classes:
            return Guidance()
        return Guidance({PROTOTYPES: self._prototypes[classes].numpy()}, classes=classes)

    def state(self) -> dict[str, NDArray[Any]]:
        """classes: those with a global prototype; prototypes: [len(classes), D]."""
        classes = self._classes()
        return {
            "classes": np.array(classes, dtype=np.int64),
            "prototypes": self._prototypes[classes].numpy(),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if state:
            classes = torch.from_numpy(state["classes"])
            self._prototypes[classes] = torch.from_numpy(state["prototypes"])
            self._known[classes] = True

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``prototypes``: the global prototypes, with the names of their classes."""
        names = np.array([self.federation.shape.classes[one] for one in self._classes()])
        return {"prototypes": {**ClassPrototypes.state(self), "names": names}}

    def _classes(self) -> list[int]:
        known: list[int] = self._known.nonzero().flatten().tolist()
        return known
