"""The client half of a method, the cohort of clients that it works on, and the training loop.

The server half is in other modules, so that a client process need not load it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast, final, runtime_checkable

import torch
from torch import Tensor

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.loading import load
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.methods import method_named, part_of, pretraining_learner
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.data.shard import Shard
from fedproto_app.maths.optim import CohortAdam, CohortOptimizer, CohortSGD, TimeSmoothed
from fedproto_app.settings import OptimizerSettings, Section, Settings, Training
from fedproto_app.tasks.task import AnyTask
from fedproto_app.trust.discrete_noise import Noise


def make_optimizer(
    settings: OptimizerSettings, parameters: Mapping[str, Tensor]
) -> CohortOptimizer:
    """Return a new optimiser for these parameters [K, …], as the ``[optimizer]`` settings say."""
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
    """Epochs over the client's batches that train only parameters with these prefixes."""

    name: str
    trainable: tuple[str, ...]
    epochs: int

    def trains(self, parameter: str) -> bool:
        """Return whether this phase trains the parameter."""
        return parameter.startswith(self.trainable)


class NoMemory(NamedTuple):
    """The memory of a client whose method stores nothing between rounds."""


@dataclass
class Cohort:
    """Clients that train together: their state, in tensors [K, …], and their samples.

    parameters: the model. memory: the method's state, with the fields of `Learner.initial_memory`.
    samples: the task's `Samples`. trains: whether the cohort trains in this phase. shares: for each
    client, the fraction of its declared samples that is counted in totals (`Order.most_samples`),
    or () if all samples of all clients are counted.
    """

    parameters: dict[str, Tensor]
    optimizer: CohortOptimizer
    memory: Any
    samples: Any
    server_round: int
    trains: bool
    shares: Sequence[float] = ()

    @property
    def names(self) -> list[str]:
        names: list[str] = self.samples.names
        return names

    def memory_tensors(self) -> dict[str, Tensor]:
        """Return the memory's tensors by field, or by "field/name" for those in a dictionary."""
        tensors: dict[str, Tensor] = {}
        for name, value in self.memory._asdict().items():
            if isinstance(value, Tensor):
                tensors[name] = value
            else:
                tensors |= {f"{name}/{key}": tensor for key, tensor in value.items()}
        return tensors


class Context:
    """What a method needs of one cohort in one round, from the guidance to the contribution."""

    def start_epoch(self) -> None:
        """Called before each epoch."""


@dataclass(frozen=True)
class Contribution:
    """What the clients of a cohort send.

    A learner returns the arrays. The node adds everything else, including the model unless the
    learner made its own, and passes the contribution through its stages.

    arrays: what clients send in addition to the shared parameters, [K, …] each. With `present`
    [K, C] bool, the arrays are [K, C, …] and each client sends only the rows of its present
    classes. model: the shared parameters, [K, …] each.
    steps: how far each client's model moved, [K], or empty if no limit applies.
    refused: the rows of clients that send nothing, with the reason.
    noise: if noise is added inside a masked sum, the noise that the total of each array needs, or
    None for a public array.
    """

    arrays: Arrays = field(default_factory=dict)
    present: Tensor | None = None
    model: Mapping[str, Tensor] = field(default_factory=dict)
    steps: Sequence[float] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    noise: Mapping[str, Noise | None] = field(default_factory=dict)


# Shown to the author of a method that declares nothing.
_EXAMPLE = """\
    @classmethod
    def sends(cls, section, sizes):
        return [model(sizes.encoder)]  # from fedproto_app.core.sends import model, Sends
"""


class KernelLoss(NamedTuple):
    """A loss that the compiled kernel can compute: a forecaster's supervised loss, and optionally
    the proximal term µ/2 · ‖w − anchor‖².

    term: the name of the supervised loss. prefix: the prefix of the forecaster's parameters.
    anchor: the anchor of the proximal term, without the client axis, or None without that term.
    """

    term: str = "prediction"
    prefix: str = ""
    anchor: Mapping[str, Tensor] | None = None
    proximal_mu: float = 0.0


class KernelTrained(ABC):
    """A learner that the compiled kernel can train, with `kernel = "numba"`."""

    @abstractmethod
    def kernel_loss(self, phase: Phase, context: Any) -> KernelLoss:
        """Return what `loss` computes in this phase."""


ContextT = TypeVar("ContextT", bound=Context)
TaskT = TypeVar("TaskT", bound=AnyTask)


class Learner(ABC, Generic[ContextT, TaskT]):
    """The client half of a method.

    section: the method's settings, which a subclass annotates with their class.
    needs_representation: whether the model must give a representation as well as a prediction.
    personalises: whether the models of `personalised` are evaluated instead of the trained ones.
    releases: what clients send with these settings. shared: the prefixes of the parameters that
    come from the server each round. All other parameters are personal: they stay on the node, with
    the state of their optimiser. encoder: the prefixes of the parameters that representations
    depend on. sends_mean: whether a node replies with the mean of its clients' shared parameters
    instead of each client's parameters. weighs_samples: whether clients are weighed by their
    numbers of samples in that mean.
    """

    section: Section
    needs_representation = False
    personalises = False

    def __init__(self, training: Training, section: Section, task: TaskT) -> None:
        self.training, self.section, self.task = training, section, task
        self.releases = tuple(self.sends(section, Sizes(encoder=task.encoder, head=task.head)))
        model = next((release for release in self.releases if release.parameters), None)
        self.shared = model.parameters if model else ()
        self.encoder: tuple[str, ...] = (task.encoder,)
        self.sends_mean = training.nodes_average and (model is None or model.combine == "mean")
        by_samples = model is None or model.weight == "samples"
        self.weighs_samples = by_samples and training.counts_samples

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        """Return the declarations of all that a client sends, with these settings."""
        raise SettingsError(f"{cls.__name__} does not declare what its clients send:\n{_EXAMPLE}")

    def initial_parameters(self) -> dict[str, Tensor]:
        """Return a client's parameters before its first round, without the client axis."""
        return self.task.initial_parameters()

    def initial_memory(self) -> NamedTuple:
        """Return a client's memory before its first round, without the client axis.

        It is a NamedTuple whose fields are tensors of any dtype or dictionaries of tensors. With a
        client axis it is `Cohort.memory`, which the node stores from round to round.
        """
        return NoMemory()

    @final
    def is_shared(self, name: str) -> bool:
        """Return whether the parameter comes from the server each round."""
        return name.startswith(self.shared)

    def phases(self) -> Sequence[Phase]:
        """Return the phases of local training in a round."""
        return [Phase("local", ("",), self.training.local_epochs)]

    def make_optimizer(self, parameters: Mapping[str, Tensor]) -> CohortOptimizer:
        """Return a new optimiser for the trained parameters [K, …], as ``[optimizer]`` says.

        A method that changes the steps wraps this optimiser (`maths/optim.py`).
        """
        return make_optimizer(self.training.optimizer, parameters)

    def batches(self, samples: Any, generators: Sequence[torch.Generator]) -> Iterator[Any]:
        """Yield the batches of an epoch. Each is passed to `loss`.

        The length of a batch's ``inputs`` is its number of clients. A method may combine several
        of the task's batches into one step (`pairs_of`), or take several steps on one batch.
        """
        return self.task.batches(samples, generators)

    def begin(self, cohort: Cohort) -> None:
        """Change the cohort in place before it trains."""

    def context(self, guidance: Guidance, cohort: Cohort) -> ContextT:
        """Return what the method needs of the cohort in this round.

        It comes from the guidance and the cohort's shared parameters. By default it is empty.
        """
        return cast("ContextT", Context())

    @abstractmethod
    def loss(
        self, parameters: Mapping[str, Tensor], batch: Any, context: ContextT
    ) -> dict[str, Tensor]:
        """Return the terms of the loss, [k] each, whose sum is minimised.

        The batch holds the first k clients of the cohort.
        """

    @final
    @classmethod
    def suits_kernel(cls) -> bool:
        """Return whether `kernel_loss` describes all of the training, so that the kernel can do it.

        The class that defines `kernel_loss` must define `loss` too, and no class may override
        `batches` or `make_optimizer`.
        """
        if not issubclass(cls, KernelTrained):
            return False
        loss, kernel_loss, batches, make_optimizer = (
            next(kind for kind in cls.__mro__ if name in vars(kind))
            for name in ("loss", "kernel_loss", "batches", "make_optimizer")
        )
        return loss is kernel_loss and batches is make_optimizer is Learner

    def conclude(self, cohort: Cohort, context: ContextT) -> Mapping[str, Tensor]:
        """Change untrained parameters and the memory in place after the last epoch of a round.

        Return further losses and measurements, [K] each, which are added to the losses of the
        phases but not to their "total".
        """
        return {}

    def contribution(self, cohort: Cohort, context: ContextT) -> Contribution:
        """Return what the cohort's clients send in addition to their shared parameters.

        If the contribution has a `model`, it replaces these parameters.
        """
        return Contribution()

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Take in the guidance before an evaluation without training.

        Change the cohort's parameters and memory in place, and return the rows of the changed
        clients, whose state is then stored.
        """
        return []

    def personalised(self, cohort: Cohort, guidance: Guidance) -> dict[str, Tensor] | None:
        """Return personalised models, [K, …] each, or None to use the shared one.

        Called before the server evaluates the clients' models. The returned models are evaluated
        and stored for forecasts, but the next round starts without them.
        """
        return None

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Return the task's metrics of the cohort's models, each as a list over the clients."""
        return self.task.evaluate(cohort.parameters, cohort.samples)


AnyLearner = Learner[Any, Any]


@runtime_checkable
class Predicts(Protocol):
    """A learner whose clients predict with a model other than the trained one."""

    def predictor(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the model that the clients predict with, under the task's names, [K, …] each.

        parameters: the clients' parameters. Those of kept models include the memory's tensors, as
        ``memory/…``.
        """


def make_learner(settings: Settings, task: AnyTask, server_round: int = 1) -> AnyLearner:
    """Return the client half of the method, or of the first phase that this round belongs to."""
    learner: AnyLearner
    if settings.kernel == "numba" and task.device.type != "cpu":
        raise SettingsError(
            f"kernel = 'numba': computes on a CPU, and this node's device is {task.device}"
        )
    if phase := settings.phase_of(server_round):
        learner = pretraining_learner(phase)(settings.training, phase.section(settings), task)
    else:
        of_method = part_of(method_named(settings.method), "learner", settings.task)
        learner = of_method(settings.training, settings.method_settings, task)
    return learner


def samples_after_pretraining(settings: Settings, server_round: int) -> Callable[..., Shard] | None:
    """Return `Pretraining.samples`, or None in rounds that train on the unchanged data."""
    phases = settings.first_phases
    if not phases or settings.phase_of(server_round):
        return None
    samples: Callable[..., Shard] = load(phases[-1].samples, "the samples after the first phases")
    return samples


def new_cohort(
    learner: AnyLearner,
    parameters: dict[str, Tensor],
    samples: Any,
    server_round: int,
    *,
    trains: bool = True,
) -> Cohort:
    """Return a cohort with a new optimiser and empty memory."""
    trained = {
        name: value
        for name, value in parameters.items()
        if trains and any(phase.trains(name) for phase in learner.phases())
    }
    memory = _of_clients(learner.initial_memory(), len(samples.names), learner.task.device)
    optimizer = learner.make_optimizer(trained)
    return Cohort(parameters, optimizer, memory, samples, server_round, trains)


def _of_clients(memory: NamedTuple, clients: int, device: torch.device) -> NamedTuple:
    """Return one client's memory, repeated for this many clients along a new client axis."""

    def with_clients(value: Tensor) -> Tensor:
        return value.to(device).expand(clients, *value.shape).clone()

    fields = {
        field: with_clients(value)
        if isinstance(value, Tensor)
        else {name: with_clients(tensor) for name, tensor in value.items()}
        for field, value in memory._asdict().items()
    }
    return memory._replace(**fields)


def train_cohort(learner: AnyLearner, cohort: Cohort, context: Context) -> dict[str, Tensor]:
    """Train the cohort for a round, in place.

    Return, for each term of the loss, its mean over the steps of the last epoch that had the term,
    [K]. Also return the losses from `Learner.conclude`.
    """
    losses: dict[str, Tensor] = {}
    for phase in learner.phases():
        losses |= _train_phase(learner, cohort, context, phase)
    return {**losses, **learner.conclude(cohort, context)}


def fine_tuned(
    learner: AnyLearner, cohort: Cohort, context: Context, phase: Phase
) -> dict[str, Tensor]:
    """Return the cohort's parameters after this phase of training with a new optimiser.

    The cohort is not changed.
    """
    copied = {name: value.clone() for name, value in cohort.parameters.items()}
    trained = {name: value for name, value in copied.items() if phase.trains(name)}
    copy = replace(cohort, parameters=copied, optimizer=learner.make_optimizer(trained))
    _train_phase(learner, copy, context, phase)
    return copied


def _train_phase(
    learner: AnyLearner, cohort: Cohort, context: Context, phase: Phase
) -> dict[str, Tensor]:
    losses: dict[str, Tensor] = {}
    samples = cohort.samples
    if not any(
        phase.trains(name) and name.startswith(learner.encoder) for name in cohort.parameters
    ):
        samples = learner.task.fix_encoder(cohort.parameters, samples)
    for epoch in range(phase.epochs):
        generators = [
            torch_stream(learner.training.seed, name, cohort.server_round, phase.name, epoch)
            for name in cohort.names
        ]
        losses |= _train_epoch(learner, cohort, context, phase, samples, generators)
    return losses


def _train_epoch(
    learner: AnyLearner,
    cohort: Cohort,
    context: Context,
    phase: Phase,
    samples: Any,
    generators: Sequence[torch.Generator],
) -> dict[str, Tensor]:
    if learner.training.kernel == "numba" and isinstance(learner, KernelTrained):
        loss = learner.kernel_loss(phase, context)
        return _train_kernel_epoch(learner, cohort, loss, phase, samples, generators)
    size = len(cohort.names)
    trainable = [name for name in cohort.parameters if phase.trains(name)]
    # "total" exists even without a step, as when a step needs two batches and no client has two.
    sums = {"total": torch.zeros(size, device=learner.task.device)}
    steps = torch.zeros(size, device=learner.task.device)
    context.start_epoch()
    for batch in learner.batches(samples, generators):
        active = len(batch.inputs)
        leaves = {
            name: value[:active].detach().requires_grad_(name in trainable)
            for name, value in cohort.parameters.items()
        }
        terms = learner.loss(leaves, batch, context)
        total = torch.stack(list(terms.values())).sum(dim=0)  # (k,)
        # The clients' losses share no parameter, so the sum's gradient is each client's gradient. A
        # parameter outside this round's loss (a projector without guidance) has gradient zero.
        gradients = torch.autograd.grad(
            total.sum(), [leaves[name] for name in trainable], materialize_grads=True
        )
        cohort.optimizer.step(cohort.parameters, dict(zip(trainable, gradients, strict=True)))
        for name, term in {"total": total, **terms}.items():
            mean = sums.setdefault(name, torch.zeros(size, device=term.device))
            mean[:active] += term.detach()
        steps[:active] += 1
    return {name: value / steps.clamp(min=1) for name, value in sums.items()}


def _train_kernel_epoch(
    learner: AnyLearner,
    cohort: Cohort,
    loss: KernelLoss,
    phase: Phase,
    samples: Any,
    generators: Sequence[torch.Generator],
) -> dict[str, Tensor]:
    """Do the work of `_train_epoch` with the compiled kernel."""
    from fedproto_app.models.kernel.cohort import train_cohort_epoch  # numba is an extra
    from fedproto_app.tasks.forecasting.task import ForecastingTask

    # `settings/fit.py` refuses other settings
    assert isinstance(cohort.optimizer, CohortAdam)
    assert isinstance(learner.task, ForecastingTask)
    prediction, proximal = train_cohort_epoch(
        cohort.parameters,
        [name for name in cohort.parameters if phase.trains(name)],
        cohort.optimizer,
        learner.task.kernel_epoch(samples, generators),
        prefix=loss.prefix,
        anchor=loss.anchor,
        proximal_mu=loss.proximal_mu,
    )
    terms = {loss.term: prediction}
    if loss.anchor is not None:
        terms["proximal"] = proximal
    return {"total": prediction + proximal, **terms}
