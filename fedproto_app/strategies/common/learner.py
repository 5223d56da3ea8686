"""The client half of a method: shared and personal parameters, training phases, loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.method import IN_LEARNERS, refuse_removed
from fedproto_app.core.metrics import Metric
from fedproto_app.core.sends import Returns, Sends, Sizes
from fedproto_app.maths.optim import CohortOptimizer
from fedproto_app.settings import Training
from fedproto_app.tasks.task import AnyTask

if TYPE_CHECKING:
    from fedproto_app.strategies.common.cohort import Cohort


from fedproto_app.maths.optim import CohortAdam, CohortSGD, TimeSmoothed
from fedproto_app.settings import OptimizerSettings


def make_optimizer(
    settings: OptimizerSettings, parameters: Mapping[str, Tensor]
) -> CohortOptimizer:
    """Return a new optimiser by the ``[optimizer]`` settings, for these parameters [K, …]."""
    optimizer: CohortOptimizer
    if settings.name == "adam":
        optimizer = CohortAdam(parameters, settings.learning_rate)
    else:
        optimizer = CohortSGD(
            parameters, settings.learning_rate, settings.momentum, settings.weight_decay
        )
    window = settings.smoothing_window
    if window > 1:
        optimizer = TimeSmoothed(optimizer, parameters, window, settings.smoothing_factor)
    return optimizer


@dataclass(frozen=True)
class Phase:
    """Epochs over the client's batches that train the parameters with these prefixes."""

    name: str
    trainable: tuple[str, ...]
    epochs: int

    def trains(self, parameter: str) -> bool:
        """Return whether this phase trains the parameter."""
        return parameter.startswith(self.trainable)


class NoMemory(NamedTuple):
    """The memory of a client whose method stores nothing between rounds."""


class Context:
    """The method's data of one cohort in one round, from its guidance to its contribution."""

    def start_epoch(self) -> None:
        """Called before each epoch."""


@dataclass(frozen=True)
class Contribution:
    """The arrays that the clients of a cohort send in addition to their shared parameters.

    arrays: [K, …] each. With `present` [K, C] bool, the arrays are [K, C, …] and each client sends
    only the rows of its present classes.
    """

    arrays: Arrays = field(default_factory=dict)
    present: Tensor | None = None


# Shown to the author of a method without a declaration.
_EXAMPLE = """\
    @classmethod
    def sends(cls, section, sizes):
        return [model(sizes.encoder)]  # from fedproto_app.core.sends import model, Sends
"""

ContextT = TypeVar("ContextT", bound=Context)
TaskT = TypeVar("TaskT", bound=AnyTask)


class Learner(ABC, Generic[ContextT, TaskT]):
    """The client half of a method.

    section: the method's settings; subclasses name the class.
    needs_representation: whether the model must have a representation as well as a prediction.
    releases: its declarations with these settings. shared: prefixes of the parameters that come
        from the server each round; the other parameters are personal and stay on the node with
        their optimiser's state. sends_mean: whether a node replies with the mean of its clients'
        shared parameters, or with each client's. weighs_samples: whether that mean weighs clients
        by their samples.
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
        """Return the declarations of all that a client sends, with these settings."""
        raise SettingsError(f"{cls.__name__} does not declare what its clients send:\n{_EXAMPLE}")

    @classmethod
    def returns(cls, section: Any) -> Sequence[Returns]:
        """Return what clients get in addition to the shared parameters and a site must allow."""
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
        """Return a client's parameters before its first round, without the client axis."""
        return self.task.initial_parameters()

    def initial_memory(self) -> NamedTuple:
        """Return a client's memory before its first round, without the client axis.

        It is a NamedTuple whose fields are tensors of any dtype or dictionaries of tensors. With a
        client axis it is `Cohort.memory`, which the node stores from round to round.
        """
        return NoMemory()

    def is_shared(self, name: str) -> bool:
        """Return whether the parameter comes from the server each round."""
        return name.startswith(self.shared)

    def is_encoder(self, name: str) -> bool:
        """Return whether representations depend on the parameter."""
        return name.startswith(self.task.encoder)

    def phases(self) -> Sequence[Phase]:
        """Return the phases of local training in a round."""
        return [Phase("local", ("",), self.training.local_epochs)]

    def make_optimizer(self, parameters: Mapping[str, Tensor]) -> CohortOptimizer:
        """Return a new optimiser for the trained parameters [K, …], by ``[optimizer]``.

        A method that changes the steps wraps it (`maths/optim.py`).
        """
        return make_optimizer(self.training.optimizer, parameters)

    def batches(self, samples: Any, generators: Sequence[torch.Generator]) -> Iterator[Any]:
        """Yield an epoch's batches, which are passed to `loss`.

        The length of a batch's ``inputs`` is its number of clients. A method may combine several
        of the task's batches into a step (`pairs_of`), or take several steps on one.
        """
        return self.task.batches(samples, generators)

    def begin(self, cohort: Cohort) -> None:
        """Change the cohort in place before it trains."""

    @abstractmethod
    def context(self, guidance: Guidance, cohort: Cohort) -> ContextT:
        """Return the cohort's data of this round, from the guidance and its shared parameters."""

    @abstractmethod
    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ContextT
    ) -> dict[str, Tensor]:
        """Return the terms of the loss, [k] each, whose sum is minimised.

        The batch holds the first k clients of the cohort.
        """

    def conclude(self, cohort: Cohort, context: ContextT) -> Mapping[str, Tensor]:
        """Change untrained parameters and the memory in place after the last epoch of a round.

        Return further losses and measurements, [K] each, which are added to the losses of the
        phases but not to their "total".
        """
        return {}

    def contribution(self, cohort: Cohort, context: ContextT, server_round: int) -> Contribution:
        """Return what the cohort's clients send in addition to their shared parameters."""
        return Contribution()

    def sums_bound(self, cohort: Cohort) -> tuple[float, list[int]]:
        """Return the largest norm that a sample adds to all sums together, and the number of
        samples in each client's sums. Called if `Training.sample_clip` is set."""
        raise SettingsError(
            f"{type(self).__name__} declares clip = 'sums', so it needs sums_bound(cohort): how "
            "far one sample can move them"
        )

    def answer(self, cohort: Cohort, guidance: Guidance) -> Contribution:
        """Return the clients' answers to a question of the server between the phases of a round
        (`Pipeline.question`). Changes to the cohort are not stored."""
        return Contribution()

    def model_to_send(self, cohort: Cohort) -> dict[str, Tensor]:
        """Return the shared parameters that each client sends, [K, …] each."""
        return {name: v for name, v in cohort.parameters.items() if self.is_shared(name)}

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Take in the guidance before an evaluation without training.

        Change the cohort's parameters and memory in place; return the rows of the changed clients,
        whose state is then stored.
        """
        return []

    def personalises(self) -> bool:
        """Return whether the models of `personalised` are evaluated, not the trained models."""
        return False

    def personalised(self, cohort: Cohort, guidance: Guidance) -> dict[str, Tensor] | None:
        """Return personalised models from the shared one, [K, …] each; None to use the shared one.

        Called before the server evaluates the clients' models. The returned models are evaluated
        and stored for forecasts; the next round starts without them.
        """
        return None

    def predictor(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the model that the clients predict with, under the task's names, [K, …] each."""
        return parameters

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Return the task's metrics of the cohort's models, a list over the clients each."""
        return self.task.evaluate(cohort.parameters, cohort.samples)


AnyLearner = Learner[Any, Any]
