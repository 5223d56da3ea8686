"""What a method needs to know of a task, and nothing of its data.

A method (a learner) asks its task for initial parameters, batches, representations, predictions
and the supervised loss; whether they are about series or images it never sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sizes
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import ClientData
from fedproto_app.models.model import ENCODER, Model
from fedproto_app.models.module import ModuleShape, module_model
from fedproto_app.settings import Settings


class Samples(Protocol):
    """The samples of K clients of a cohort, those with most batches first.

    train_samples: those of this round, the clients' weights. batch_counts: batches an epoch.
    """

    @property
    def names(self) -> list[str]: ...
    @property
    def train_samples(self) -> list[int]: ...
    @property
    def batch_counts(self) -> list[int]: ...


class Batch(Protocol):
    """One training step's samples of the first k clients of a cohort; inputs: [k, B, …]."""

    @property
    def inputs(self) -> Tensor: ...


ClientT = TypeVar("ClientT", bound=ClientData)
SamplesT = TypeVar("SamplesT", bound=Samples)
BatchT = TypeVar("BatchT", bound=Batch)


class Task(ABC, Generic[ClientT, SamplesT, BatchT]):
    """A kind of learning problem.

    encoder, head: prefixes of the parameters of the representation and of what predicts from it.
    criterion: the metric by which a model is chosen, smaller being better; made of validation
        data alone. evaluates_local: whether clients' models are also evaluated before averaging.
    """

    encoder: ClassVar[str] = ENCODER
    head: ClassVar[str]
    criterion: ClassVar[Metric]
    evaluates_local: ClassVar[bool]

    def __init__(
        self,
        settings: Settings,
        shape: DataShape | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.settings = settings
        self.shape = shape or DataShape()
        self.device = device or torch.device("cpu")

    @staticmethod
    @abstractmethod
    def required_metrics(settings: Settings) -> tuple[Metric, ...]:
        """What `evaluate` tells of every client; it may tell more."""

    @staticmethod
    def sample_multiple(settings: Settings) -> int:
        """What every client's number of train samples is a multiple of."""
        return 1

    @staticmethod
    def longer_fault(settings: Settings) -> str | None:
        """Why a run of more rounds would not have begun as one of fewer did, or None."""
        return None

    @staticmethod
    @abstractmethod
    def metrics_fault(metrics: Mapping[Metric, float]) -> str | None:
        """Why a client's metrics, of whichever of its models, cannot be true, or None."""

    @staticmethod
    def stays(metric: Metric) -> bool:
        """Whether what `evaluate` tells is for the client's own use and never leaves its node."""
        return False

    @staticmethod
    @abstractmethod
    def shape_fault(shape: DataShape) -> str | None:
        """Why the task cannot work on data of this shape, or None."""

    @abstractmethod
    def own_model(self) -> Model:
        """The task's own model, as the settings choose and size it."""

    @abstractmethod
    def module_shape(self) -> ModuleShape:
        """What a user's own module takes and gives as the task's model."""

    @cached_property
    def model(self) -> Model:
        """The model of every client: the user's module where the settings name one.

        Made when it is first asked for. Raises `SettingsError` for a module that cannot serve.
        """
        named = self.settings.model.module
        if not named:
            return self.own_model()
        return module_model(named, self.module_shape(), self.settings.seed, self.device)

    def sizes(self) -> Sizes:
        """What the shapes of a method's messages are made of."""
        parameters = {n: tuple(v.shape) for n, v in self.initial_parameters().items()}
        return Sizes(
            width=self.representation_dim,
            classes=len(self.shape.classes),
            parameters=parameters,
            encoder=self.encoder,
            head=self.head,
        )

    @property
    def representation_dim(self) -> int:
        """D, the width of the representation."""
        return self.model.representation_dim

    def initial_parameters(self) -> dict[str, Tensor]:
        """One client's parameters at round 0, equal for all clients of a run.

        A common start keeps the clients' representation spaces comparable, which prototypes need
        as much as averaged weights do.
        """
        generator = torch_stream(self.settings.seed, "initial parameters")
        return self.model.initial_parameters(generator)

    def mixed_precision(self) -> AbstractContextManager[object]:
        """Within it products are of bfloat16 if the settings say so; what a task's encoder gives
        is float32 again, and so are heads, losses, prototypes, gradients and the optimiser."""
        if self.settings.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @abstractmethod
    def steps(self, client: ClientT, server_round: int) -> int:
        """Batches of the client in an epoch of this round."""

    def scale(self, client: ClientT) -> dict[str, float]:
        """What a model of the client needs, besides its tensors, to be used on new data."""
        return {}

    @abstractmethod
    def gather(self, clients: Sequence[ClientT], server_round: int) -> SamplesT:
        """The clients' samples of this round on the device; they come in falling `steps`."""

    @abstractmethod
    def batches(self, samples: SamplesT, generators: Sequence[torch.Generator]) -> Iterator[BatchT]:
        """One epoch, in an order of each client's own."""

    def fix_encoder(self, parameters: Mapping[str, Tensor], samples: SamplesT) -> SamplesT:
        """The samples for epochs in which the encoder does not learn.

        A task whose encoder is dear computes the representations here, once for all epochs.
        """
        return samples

    @abstractmethod
    def represent(self, parameters: Mapping[str, Tensor], batch: BatchT) -> Tensor:
        """The representation of the batch's samples, [k, B, D]."""

    @abstractmethod
    def predict(
        self, parameters: Mapping[str, Tensor], representation: Tensor, batch: BatchT | None = None
    ) -> Tensor:
        """What the head makes of representations [k, B, D].

        batch: whose representations they are, for a task whose heads see more of a sample than its
        representation; None for representations of no sample.
        """

    @abstractmethod
    def loss(self, prediction: Tensor, batch: BatchT) -> Tensor:
        """The supervised loss, [k]."""

    @abstractmethod
    def evaluate(
        self, parameters: Mapping[str, Tensor], samples: SamplesT
    ) -> dict[Metric, list[float]]:
        """Metrics of each client, a list over the clients each."""


AnyTask = Task[Any, Any, Any]

_SMALL_COHORT = 64


def at_once(most: int, clients: int) -> int:
    """Samples a client that go through a model together without gradients.

    `most` in a small cohort; in a large one fewer, so that the memory it takes does not grow.
    """
    return max(1, most * _SMALL_COHORT // max(clients, _SMALL_COHORT))


def in_padded(counts: Sequence[int], longest: int, device: torch.device) -> Tensor:
    """[K, longest] float, 1 where a client with so many samples has one, 0 in the padding."""
    places = torch.arange(longest, device=device)
    return (places < torch.tensor(counts, device=device).unsqueeze(1)).float()


def masked_mean(values: Tensor, mask: Tensor) -> list[float]:
    """[K, m] → the mean of each client's values in the mask, 0 without any."""
    means: list[float] = ((values * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).tolist()
    return means
