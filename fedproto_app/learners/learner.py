"""What the client half of a method is: which parameters are whose, which steps, which loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting import Batch, ForecastingTask
from fedproto_app.wire import Arrays, Order


@dataclass(frozen=True)
class Phase:
    """Epochs over the client's batches in which the parameters with these prefixes learn."""

    name: str
    trainable: tuple[str, ...]
    epochs: int


class Context:
    """What a method holds for one cohort during one round: guidance in, contribution out."""

    def start_epoch(self) -> None:
        """Called before each epoch."""


ContextType = TypeVar("ContextType", bound=Context)


class Learner(ABC, Generic[ContextType]):
    """The client half of a method.

    shared: prefixes of the parameters that come from the server each round; the others are the
        client's own and stay on its node with their Adam moments.
    augmentation_low: if not None, batches carry the temporally shifted view too.
    """

    shared: tuple[str, ...] = ()
    augmentation_low: float | None = None

    def __init__(self, settings: Settings, task: ForecastingTask) -> None:
        self.settings, self.task = settings, task

    def initial_parameters(self) -> dict[str, Tensor]:
        """One client's parameters before its first round, without the client axis."""
        return self.task.initial_parameters()

    def is_shared(self, name: str) -> bool:
        """Whether the parameter comes from the server each round."""
        return name.startswith(self.shared)

    def phases(self) -> Sequence[Phase]:
        """The local training of a round."""
        return [Phase("local", ("",), self.settings.local_epochs)]

    @abstractmethod
    def context(self, order: Order, names: Sequence[str], device: torch.device) -> ContextType:
        """What the order means for the cohort with these clients."""

    @abstractmethod
    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: ContextType
    ) -> dict[str, Tensor]:
        """The terms of the loss, [k] each, that are added up and minimised.

        The batch holds the first k clients of the cohort.
        """

    def contribution(self, context: ContextType, names: Sequence[str], server_round: int) -> Arrays:
        """What the cohort's clients send, [K, …] each, apart from their shared parameters."""
        return {}
