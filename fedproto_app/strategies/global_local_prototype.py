"""GLDP, server half: "Central Server" (GLDP, Algorithm 1, lines 3 to 8).

The representation Θ is the plain mean of the selected clients' µ (GLDP, eq. 5), through Flower's
own FedAvg; the global prototype of a class follows the mean of the clients that have it now (GLDP,
eq. 11).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.learners.global_prototypes import PROTOTYPES
from fedproto_app.maths.class_prototypes import moving_average
from fedproto_app.messages import Order
from fedproto_app.secure.fixed_point import BY_CLASS, Sums
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import GldpSettings, Settings
from fedproto_app.strategies.class_rows import rows_by_class
from fedproto_app.strategies.client_models import middle
from fedproto_app.strategies.fedavg import FedAvgStrategy


class GlobalLocalPrototypeStrategy(FedAvgStrategy):
    """FedAvg of the encoders, and C̃ [C, D] with the classes that it knows [C]."""

    section: GldpSettings

    def __init__(self, settings: Settings, section: GldpSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self._prototypes = torch.zeros(self.sizes.classes, self.sizes.width)
        self._known = torch.zeros(self.sizes.classes, dtype=torch.bool)

    def guide(self, order: Order, keys: list[ClientKey]) -> Order:
        """Θ and C̃ of the classes that any client has had so far."""
        classes = self._classes()
        if not classes:
            return order
        arrays = {**order.arrays, PROTOTYPES: self._prototypes[classes].numpy()}
        return replace(order, arrays=arrays, classes=classes)

    def absorb(self, answers: list[NodeReply]) -> None:
        arrived: dict[int, list[NDArray[np.float32]]] = defaultdict(list)
        # In the order of names: the sum must not depend on who came first.
        for _, its in sorted(rows_by_class(answers, PROTOTYPES).items()):
            for one, prototype in its.items():
                arrived[one].append(prototype)
        new, new_known = torch.zeros_like(self._prototypes), torch.zeros_like(self._known)
        for one, prototypes in arrived.items():
            together = middle(np.stack(prototypes), self.settings.aggregation)
            new[one] = torch.from_numpy(together)
            new_known[one] = True
        self._follow(new, new_known)

    def absorb_total(self, total: Sums) -> None:
        counts = total.counts[BY_CLASS]
        means = total.values[PROTOTYPES] / np.maximum(counts, 1)[:, np.newaxis]
        self._follow(torch.from_numpy(means).float(), torch.from_numpy(counts > 0))

    def _follow(self, new: Tensor, new_known: Tensor) -> None:
        """GLDP, eq. 11."""
        self._prototypes, self._known = moving_average(
            self._prototypes, self._known, new, new_known, self.section.memory
        )

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
        return {"prototypes": {**self.state(), "names": names}}

    def _classes(self) -> list[int]:
        known: list[int] = self._known.nonzero().flatten().tolist()
        return known
