"""The interface between methods and tasks, independent of the kind of data.

A method (a learner) gets initial parameters, batches, representations, predictions and the
supervised loss from its task, whether the data are series, images or sequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedproto_app.core.loading import load
from fedproto_app.core.method import for_task
from fedproto_app.core.methods import method_named
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sizes
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import ClientData
from fedproto_app.models.model import ENCODER, Model
from fedproto_app.models.module import ModuleShape, module_model
from fedproto_app.settings import Settings
from fedproto_app.tasks.metrics import TaskMetrics


class Samples(Protocol):
    """The samples of K clients of a cohort, in falling order of their number of batches.

    train_samples: each client's number of train samples in this round, which is its weight.
    batch_counts: each client's number of batches in an epoch.
    """

    @property
    def names(self) -> list[str]: ...
    @property
    def train_samples(self) -> list[int]: ...
    @property
    def batch_counts(self) -> list[int]: ...


class Batch(Protocol):
    """One training step's samples of the first k clients of a cohort. inputs: [k, B, …]."""

    @property
    def inputs(self) -> Tensor: ...


ClientT = TypeVar("ClientT", bound=ClientData)
SamplesT = TypeVar("SamplesT", bound=Samples)
BatchT = TypeVar("BatchT", bound=Batch)


class Task(ABC, Generic[ClientT, SamplesT, BatchT]):
    """A kind of learning problem.

    encoder, head: prefixes of the names of the encoder's and the head's parameters.
    metrics: what `evaluate` measures, and how it is stored and shown. evaluates_local: whether
        clients' models are also evaluated before averaging.
    """

    encoder: ClassVar[str] = ENCODER
    head: ClassVar[str]
    metrics: ClassVar[TaskMetrics]
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

    @classmethod
    def required_metrics(cls, settings: Settings) -> tuple[Metric, ...]:
        """Return the metrics that `evaluate` always reports. It may report more.

        A metric of the kept model is sent only for the model that a client keeps.
        """
        return tuple(map(Metric, cls.metrics.names))

    @staticmethod
    def sample_multiple(settings: Settings) -> int:
        """Return a number that divides every client's number of train samples."""
        return 1

    @staticmethod
    def longer_fault(settings: Settings) -> str | None:
        """Return why a run with more rounds would have started differently, or None."""
        return None

    @classmethod
    @abstractmethod
    def metrics_fault(cls, metrics: Mapping[Metric, float]) -> str | None:
        """Return why no model of a client can have these metrics, or None."""

    @staticmethod
    def stays(metric: Metric) -> bool:
        """Return whether a metric of `evaluate` never leaves the client's node."""
        return False

    def is_of_class(self, metric: Metric) -> bool:
        """Return whether a metric of `evaluate` says something about a single class."""
        return False

    @staticmethod
    @abstractmethod
    def shape_fault(shape: DataShape) -> str | None:
        """Return why the task cannot use data of this shape, or None."""

    @abstractmethod
    def default_model(self) -> Model:
        """Return the task's built-in model, as the settings choose and size it."""

    def special_model(self, shape: object, pretraining: bool = False) -> Model | None:
        """Return the model that the method brings for this task, or None if it brings none.

        shape: the shape of the samples, which is passed to the method's function. pretraining:
        whether to use the model of the method's first phase if the method brings none for the
        second.
        """
        method = method_named(self.settings.method)
        path = for_task(method.model, self.settings.task)
        if pretraining and method.pretraining:
            path = path or method.pretraining.model
        make = load(path, f"the model of {method.name}") if path else None
        model: Model | None = make and make(self.settings, shape)
        return model

    @abstractmethod
    def module_shape(self) -> ModuleShape:
        """Return the input and output shapes of a user's module."""

    @cached_property
    def model(self) -> Model:
        """The model of every client, which is the user's module if the settings name one.

        It is created at first use. Raise `SettingsError` for an unsuitable module.
        """
        model_path = self.settings.model.module
        if not model_path:
            return self.default_model()
        return module_model(model_path, self.module_shape(), self.settings.seed, self.device)

    def sizes(self) -> Sizes:
        """Return the sizes that determine the shapes of a method's messages."""
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
        """The width D of the representation."""
        return self.model.representation_dim

    def initial_parameters(self) -> dict[str, Tensor]:
        """Return one client's parameters at round 0, equal for all clients of a run.

        A common start keeps the clients' representation spaces comparable, which both prototypes
        and averaged weights need.
        """
        generator = torch_stream(self.settings.seed, "initial parameters")
        return self.model.initial_parameters(generator)

    def mixed_precision(self) -> AbstractContextManager[object]:
        """Return a context that computes products in bfloat16 if the settings say so.

        The result of an encoder is converted to float32. Heads, losses, prototypes, gradients and
        the optimiser use float32.
        """
        if self.settings.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @abstractmethod
    def steps(self, client: ClientT, server_round: int) -> int:
        """Return the number of the client's batches in an epoch of this round."""

    def scale(self, client: ClientT) -> dict[str, float]:
        """Return the numbers that a client's model needs, beside its tensors, for new data."""
        return {}

    def response(self, client: ClientT) -> dict[str, list[Any]]:
        """Return the numbers that restore the values subtracted from a client's data."""
        return {}

    @abstractmethod
    def gather(self, clients: Sequence[ClientT], server_round: int) -> SamplesT:
        """Return the clients' samples of this round on the device.

        Clients must be in falling order of `steps`.
        """

    @abstractmethod
    def batches(self, samples: SamplesT, generators: Sequence[torch.Generator]) -> Iterator[BatchT]:
        """Yield the batches of one epoch, in a separate random order for each client."""

    def fix_encoder(self, parameters: Mapping[str, Tensor], samples: SamplesT) -> SamplesT:
        """Return the samples for epochs with a frozen encoder.

        A task with an expensive encoder computes the representations here, once for all epochs.
        """
        return samples

    @abstractmethod
    def represent(self, parameters: Mapping[str, Tensor], batch: BatchT) -> Tensor:
        """Return the representation of the batch's samples, [k, B, D]."""

    def predict(
        self, parameters: Mapping[str, Tensor], representation: Tensor, batch: BatchT | None = None
    ) -> Tensor:
        """Return the head's predictions [k, B, outputs] for representations [k, B, D].

        batch: the samples of these representations, for heads that need more of a sample than its
        representation, or None if there are no samples.
        """
        return self.model.predict(parameters, representation)

    @abstractmethod
    def loss(self, prediction: Tensor, batch: BatchT) -> Tensor:
        """Return the supervised loss of each client, [k]."""

    @abstractmethod
    def evaluate(
        self, parameters: Mapping[str, Tensor], samples: SamplesT
    ) -> dict[Metric, list[float]]:
        """Return each metric as a list over the clients."""


AnyTask = Task[Any, Any, Any]

_SMALL_COHORT = 64


def at_once(limit: int, clients: int) -> int:
    """Return how many samples per client go through a model together without gradients.

    This is `limit` in a small cohort, and less in a large cohort, to bound memory.
    """
    return max(1, limit * _SMALL_COHORT // max(clients, _SMALL_COHORT))


def in_padded(counts: Sequence[int], longest: int, device: torch.device) -> Tensor:
    """Return a float mask [K, longest], 1 for each client's samples, 0 in the padding."""
    places = torch.arange(longest, device=device)
    return (places < torch.tensor(counts, device=device).unsqueeze(1)).float()


def shuffled(
    counts: Sequence[int], length: int, generators: Sequence[torch.Generator]
) -> tuple[Tensor, Tensor]:
    """Return each client's order of samples in an epoch, and a float mask, both [K, length].

    counts: each client's number of samples. Both results are 0 after a client's samples.
    """
    order = torch.zeros(len(counts), length, dtype=torch.int64)
    for row, (count, generator) in enumerate(zip(counts, generators, strict=True)):
        order[row, :count] = torch.randperm(count, generator=generator)
    return order, in_padded(counts, length, order.device)
