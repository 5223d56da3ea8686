"""The client half of a method: whose each parameter is, the steps, the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays, Order
from fedproto_app.core.method import IN_LEARNERS, refuse_removed
from fedproto_app.core.metrics import Metric
from fedproto_app.core.sends import Returns, Sends, Sizes
from fedproto_app.maths.optim import CohortOptimizer
from fedproto_app.settings import Training
from fedproto_app.strategies.common.learner import make_optimizer
from fedproto_app.tasks.task import AnyTask

if TYPE_CHECKING:
    from fedproto_app.strategies.common.cohort import Cohort


@dataclass(frozen=True)
class Phase:
    """Epochs over the client's batches in which the parameters with these prefixes learn."""

    name: str
    trainable: tuple[str, ...]
    epochs: int

    def trains(self, parameter: str) -> bool:
        """Whether the parameter learns in this phase."""
        return parameter.startswith(self.trainable)


class NoMemory(NamedTuple):
    """The memory of a client whose method remembers nothing between rounds."""


class Context:
    """What a method holds for one cohort during one round: guidance in, contribution out."""

    def start_epoch(self) -> None:
        """Called before each epoch."""


@dataclass(frozen=True)
class Contribution:
    """What the clients of a cohort send, apart from their shared parameters.

    arrays: [K, …] each; where `present` is given, [K, C, …], and of each client only the rows of
    the classes that it has: present is [K, C] bool.
    """

    arrays: Arrays = field(default_factory=dict)
    present: Tensor | None = None


# For whoever wrote a method without a declaration.
_EXAMPLE = """\
    @classmethod
    def sends(cls, section, sizes):
        return [model(sizes.encoder)]  # from fedproto_app.core.sends import model, Sends
"""

ContextT = TypeVar("ContextT", bound=Context)
TaskT = TypeVar("TaskT", bound=AnyTask)


class Learner(ABC, Generic[ContextT, TaskT]):
    """The client half of a method.

    section: the method's own settings; subclasses say which class.
    needs_representation: whether it needs a model with a representation besides the prediction.
    releases: what it sends with these settings. shared: prefixes of the parameters that come from
        the server each round; the others are the client's own and stay on its node with their
        optimiser's state. sends_mean: whether a node answers with the mean of its clients' shared
        parameters, or with each client's. weighs_samples: whether that mean weighs a client by its
        samples.
    """

    section: Any
    needs_representation = False

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        refuse_removed(cls, IN_LEARNERS)

    def __init__(self, training: Training, section: Any, task: TaskT) -> None:
        self.training, self.section, self.task = training, section, task
        self.releases = tuple(self.sends(section, Sizes(encoder=task.encoder, head=task.head)))
        model = next((release for release in self.releases if release.parameters), None)
        self._shared = model.parameters if model else ()
        self.sends_mean = training.nodes_average and (model is None or model.combine == "mean")
        self.weighs_samples = model is None or model.weight == "samples"

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        """All that a client sends, with these settings of the method."""
        raise SettingsError(f"{cls.__name__} does not declare what its clients send:\n{_EXAMPLE}")

    @classmethod
    def returns(cls, section: Any) -> Sequence[Returns]:
        """What clients get besides the shared parameters, where a site must allow it."""
        return ()

    @property
    def shared(self) -> tuple[str, ...]:
        return self._shared

    @shared.setter
    def shared(self, prefixes: object) -> None:
        raise SettingsError(
            f"{type(self).__name__}.shared = {prefixes!r}: since version 0.2 sends() declares it:\n"
            f"{_EXAMPLE}"
        )

    def initial_parameters(self) -> dict[str, Tensor]:
        """One client's parameters before its first round, without the client axis."""
        return self.task.initial_parameters()

    def initial_memory(self) -> NamedTuple:
        """What a client remembers before its first round, without the client axis.

        A NamedTuple of the method's own, whose fields are tensors of any dtype or dictionaries of
        tensors. With a client axis it is `Cohort.memory`, which stays at the node from round to
        round.
        """
        return NoMemory()

    def is_shared(self, name: str) -> bool:
        """Whether the parameter comes from the server each round."""
        return name.startswith(self.shared)

    def is_encoder(self, name: str) -> bool:
        """Whether representations change with the parameter."""
        return name.startswith(self.task.encoder)

    def phases(self) -> Sequence[Phase]:
        """The local training of a round."""
        return [Phase("local", ("",), self.training.local_epochs)]

    def make_optimizer(self, parameters: Mapping[str, Tensor]) -> CohortOptimizer:
        """A new optimiser for the parameters [K, …] that learn, as ``[optimizer]`` has it.

        A method that changes the steps, or what follows a step, wraps it (`maths/optim.py`).
        """
        return make_optimizer(self.training.optimizer, parameters)

    def batches(self, samples: Any, generators: Sequence[torch.Generator]) -> Iterator[Any]:
        """One epoch's batches of the task, as the method wants them.

        Each item is handed to `loss` as it is; its ``inputs`` tell how many clients it is for.
        So a step may be about several batches (`pairs_of`), and several steps about one.
        """
        return self.task.batches(samples, generators)

    def begin(self, cohort: Cohort) -> None:
        """Called when the cohort is about to train, to change in place what is not trained."""

    @abstractmethod
    def context(self, order: Order, cohort: Cohort) -> ContextT:
        """What the order means for the cohort."""

    @abstractmethod
    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ContextT
    ) -> dict[str, Tensor]:
        """The terms of the loss, [k] each, that are added up and minimised.

        The batch is one of the task's and holds the first k clients of the cohort.
        """

    def conclude(self, cohort: Cohort, context: ContextT) -> Mapping[str, Tensor]:
        """Called after the last epoch of a round, to change in place what no phase trains, and what
        clients remember.

        Returns the losses of what it fitted itself and what it measured, [K] each, besides the
        losses of the phases; they are no part of "total" there.
        """
        return {}

    def contribution(self, cohort: Cohort, context: ContextT, server_round: int) -> Contribution:
        """What the cohort's clients send, apart from their shared parameters."""
        return Contribution()

    def sums_bound(self, cohort: Cohort) -> tuple[float, list[int]]:
        """The most length that one sample adds to all sums together, and how many samples each
        client's sums are of. `Training.sample_clip` is set."""
        raise SettingsError(
            f"{type(self).__name__} declares clip = 'sums', so it needs sums_bound(cohort): how "
            "far one sample can move them"
        )

    def answer(self, cohort: Cohort, order: Order) -> Contribution:
        """What the cohort's clients say to a question that the server asks between the phases of a
        round (`Pipeline.question`); nothing of the cohort is kept."""
        return Contribution()

    def model_to_send(self, cohort: Cohort) -> dict[str, Tensor]:
        """What each client sends of the shared model, [K, …] each."""
        return {name: v for name, v in cohort.parameters.items() if self.is_shared(name)}

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Called before an evaluation on its own, to take in what the order brings the clients.

        Changes the cohort's parameters and memory in place; returns the rows of the clients it
        changed, whose state is then kept.
        """
        return []

    def personalises(self) -> bool:
        """Whether clients are judged by what `personalised` makes, not by what training left."""
        return False

    def personalised(self, cohort: Cohort, order: Order) -> dict[str, Tensor] | None:
        """The clients' own models made of the shared one, [K, …] each, None if that is the model.

        Called when the server evaluates the models that clients are judged by. The returned models
        are judged and kept, and clients forecast with them; the next round starts without them.
        """
        return None

    def predictor(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The model that the clients predict with, under the task's names, [K, …] each."""
        return parameters

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        """The task's metrics of the cohort's models, a list over the clients each."""
        return self.task.evaluate(cohort.parameters, cohort.samples)


AnyLearner = Learner[Any, Any]
