"""The table of methods: what `method = "…"` selects on each side.

A new method is one file in ``strategies/``, one in ``learners/``, one settings section, one row
here. A method of somebody's own is a `Method` in a module of theirs. Classes are named by strings,
which `halves` imports when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fedproto_app.errors import SettingsError, did_you_mean
from fedproto_app.users_code import load

if TYPE_CHECKING:
    from fedproto_app.settings.run import Settings
    from fedproto_app.settings.section import Section

SEQUENCE_TASKS = ("sequence-classification", "sequence-regression")

ByTask = str | Mapping[str, str]  # one for all tasks, or one for each


def for_task(part: ByTask, task: str) -> str:
    """What a part of a method is for a task."""
    return part if isinstance(part, str) else part[task]


@dataclass(frozen=True)
class Method:
    """A method of federated learning.

    name: in tables, run folders and summaries; of the app's own methods also in the settings.
    strategy, learner: the server's and the clients' half, "package.module:Class"; where they
        depend on the task, one for each.
    settings: the class of the table ``[own]``, for methods from outside the app.
    section: the method's own numbers, of all settings of a run; both halves get them.
    tasks: those that it works with; empty: all.
    model: what makes its own models, for each task if there are several: of series (settings,
        `WindowLayout`) → `Model`, else (settings, `DataShape`) → `Model`. "": the settings choose
        the model.
    rounds: as many as it has, where that is not for the settings to say.
    encoder_first: whether it learns an encoder of sequences without labels first, in rounds of
        their own.
    check: raises `SettingsError` or ValueError for settings with which the method cannot work.
    asks_sites: what it does that a site with data of its own must allow (`Site.tells_classes`),
        in words, "" for nothing.
    small: what a run of seconds of it needs set besides, for checks of methods.
    check_clients: raises `SettingsError` for fewer clients that can take part than it needs.
    """

    name: str
    strategy: ByTask = field(hash=False)
    learner: ByTask = field(hash=False)
    settings: type[Section] | None = None
    section: Callable[[Settings], Any] = attrgetter("own")
    tasks: tuple[str, ...] = ()
    model: ByTask = field(default="", hash=False)
    rounds: Callable[[Settings], int] | None = None
    encoder_first: bool = False
    asks_sites: Callable[[Settings], str] | None = None
    small: Mapping[str, Any] = field(default_factory=dict, hash=False)
    check: Callable[[Settings], None] | None = None
    check_clients: Callable[[Settings, int], None] | None = None

    def works_with(self, task: str) -> bool:
        """Whether it can learn this task."""
        return not self.tasks or task in self.tasks

    def encoder_rounds(self, settings: Settings) -> int:
        """Rounds of the run before those of the method itself."""
        encoder = settings.encoder
        return encoder.rounds if self.encoder_first and not encoder.path else 0

    def require_fit(self, settings: Settings) -> None:
        """`SettingsError` if the method cannot work with the task or the other settings."""
        if not self.works_with(settings.task):
            raise SettingsError(
                f"method = {settings.method!r}: works with task = "
                f"{' or '.join(map(repr, self.tasks))} only; task = {settings.task!r} has "
                f"{', '.join(methods_of(settings.task))}"
            )
        for part in (self.strategy, self.learner, self.model):
            if not isinstance(part, str) and settings.task not in part:
                raise SettingsError(
                    f"method = {settings.method!r}: has parts for task = "
                    f"{' or '.join(map(repr, part))} only; task = {settings.task!r}"
                )
        if self.model and settings.model.module:
            raise SettingsError(
                f"model.module = {settings.model.module!r}: method = {settings.method!r} has a "
                "model of its own"
            )
        if self.check is not None:
            try:
                self.check(settings)
            except ValueError as error:
                raise SettingsError(str(error)) from None


def _heads_can_be_compared(settings: Settings) -> None:
    if settings.task == "sequence-regression" and settings.fed_react.similarity == "class-norms":
        raise SettingsError(
            "fed-react.similarity = 'class-norms': a head of task = 'sequence-regression' has "
            "no classes; set 'cosine', 'centred-cosine' or 'predictions'"
        )


def _clusters_can_be_chosen(settings: Settings) -> None:
    if settings.fed_react.clusters == 0:
        raise SettingsError(
            f"fed-react.clusters = 0: method = {settings.method!r} needs to know how many there are"
        )


def _overlap_fits_the_clusters(settings: Settings) -> None:
    _clusters_can_be_chosen(settings)
    if settings.flsc.overlap > settings.fed_react.clusters:
        raise SettingsError(
            f"flsc.overlap = {settings.flsc.overlap}: more than fed-react.clusters = "
            f"{settings.fed_react.clusters}"
        )


def _clients_fill_the_clusters(settings: Settings, clients: int) -> None:
    if settings.fed_react.clusters > clients:
        raise SettingsError(
            f"fed-react.clusters = {settings.fed_react.clusters}: must be at most {clients}, the "
            "number of clients that can take part"
        )


def _one(settings: Settings) -> int:
    """A closed form that looks at its data once."""
    return 1


def _one_a_stage(settings: Settings) -> int:
    """A closed form that looks at each stage once; a source's own stages nobody knows yet."""
    if settings.task != "classification":
        return 1
    given = settings.data.partition.scheme == "given"
    return settings.rounds if given else settings.data.partition.stages


def _counts_classes(settings: Settings) -> str:
    return "sends the sums and the number of a client's samples of each class"


def _counts_classes_in_closed_form(settings: Settings) -> str:
    if settings.task == "forecasting" or settings.analytic.sharing == "none":
        return ""
    return _counts_classes(settings)


def _has_prototypes_of_classes(settings: Settings) -> str:
    return "sends a prototype for each class of which a client has images"


def _has_gradients_of_classes(settings: Settings) -> str:
    return "sends a gradient for each class of which a client has images"


_LINEAR = "fedproto_app.tasks.forecasting.own_models:linear"
_FREQUENT = "fedproto_app.learners.constant_answers:FrequentClassLearner"
_CLASSES = "fedproto_app.strategies.analytic_classes:AnalyticClassesStrategy"
_CLASSES_LEARNER = "fedproto_app.learners.analytic_classes:AnalyticClassesLearner"

_TABLE = (
    Method(
        name="fuels",
        strategy="fedproto_app.strategies.jsd_prototype:JSDPrototypeStrategy",
        learner="fedproto_app.learners.jsd_prototype:JSDPrototypeLearner",
        section=attrgetter("fuels"),
        tasks=("forecasting",),
    ),
    Method(
        name="gldp",
        strategy="fedproto_app.strategies.global_local_prototype:GlobalLocalPrototypeStrategy",
        learner="fedproto_app.learners.global_local_prototype:GlobalLocalPrototypeLearner",
        section=attrgetter("gldp"),
        tasks=("classification",),
        asks_sites=_has_prototypes_of_classes,
    ),
    Method(
        name="fed-react",
        strategy="fedproto_app.strategies.evolutionary_cluster:EvolutionaryClusterStrategy",
        learner="fedproto_app.learners.evolutionary_cluster:EvolutionaryClusterLearner",
        section=attrgetter("fed_react"),
        tasks=SEQUENCE_TASKS,
        encoder_first=True,
        check=_heads_can_be_compared,
        check_clients=_clients_fill_the_clusters,
    ),
    Method(
        name="ifca",
        strategy="fedproto_app.strategies.ifca:IfcaStrategy",
        learner="fedproto_app.learners.ifca:IfcaLearner",
        section=lambda settings: settings.fed_react.choosing(1),
        tasks=SEQUENCE_TASKS,
        encoder_first=True,
        check=_clusters_can_be_chosen,
        check_clients=_clients_fill_the_clusters,
    ),
    Method(
        name="flsc",
        strategy="fedproto_app.strategies.ifca:IfcaStrategy",
        learner="fedproto_app.learners.ifca:IfcaLearner",
        section=lambda settings: settings.fed_react.choosing(settings.flsc.overlap),
        tasks=SEQUENCE_TASKS,
        encoder_first=True,
        check=_overlap_fits_the_clusters,
        check_clients=_clients_fill_the_clusters,
    ),
    Method(
        name="solo",
        strategy="fedproto_app.strategies.solo:SoloStrategy",
        learner="fedproto_app.learners.solo:SoloLearner",
    ),
    Method(
        name="naive",
        strategy="fedproto_app.strategies.solo:SoloStrategy",
        learner={
            "forecasting": "fedproto_app.learners.naive:NaiveLearner",
            "classification": _FREQUENT,
            "sequence-classification": _FREQUENT,
            "sequence-regression": "fedproto_app.learners.constant_answers:MeanNumberLearner",
        },
        model={
            "forecasting": _LINEAR,
            "classification": "fedproto_app.tasks.images.own_models:constant",
            "sequence-classification": "fedproto_app.tasks.sequences.own_models:constant",
            "sequence-regression": "fedproto_app.tasks.sequences.own_models:constant",
        },
        rounds=_one_a_stage,
    ),
    Method(
        name="seasonal-naive",
        strategy="fedproto_app.strategies.solo:SoloStrategy",
        learner="fedproto_app.learners.naive:SeasonalNaiveLearner",
        tasks=("forecasting",),
        model=_LINEAR,
        rounds=_one,
    ),
    Method(
        name="analytic",
        strategy={
            "forecasting": "fedproto_app.strategies.analytic:AnalyticStrategy",
            "classification": _CLASSES,
            "sequence-classification": _CLASSES,
        },
        learner={
            "forecasting": "fedproto_app.learners.analytic:AnalyticLearner",
            "classification": _CLASSES_LEARNER,
            "sequence-classification": _CLASSES_LEARNER,
        },
        section=attrgetter("analytic"),
        tasks=("forecasting", "classification", "sequence-classification"),
        model={
            "forecasting": _LINEAR,
            "classification": "fedproto_app.tasks.images.own_models:random_patches",
            "sequence-classification": "fedproto_app.tasks.sequences.own_models:random_kernels",
        },
        rounds=_one_a_stage,
        asks_sites=_counts_classes_in_closed_form,
    ),
    Method(
        name="kindred",
        strategy="fedproto_app.strategies.kindred:KindredStrategy",
        learner="fedproto_app.learners.kindred:KindredLearner",
        section=attrgetter("kindred"),
        tasks=("forecasting",),
        model="fedproto_app.tasks.forecasting.own_models:random_features",
        rounds=_one,
    ),
    Method(
        name="fedavg",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.fedavg:FedAvgLearner",
        section=attrgetter("fedavg"),
    ),
    Method(
        name="fedprox",
        strategy="fedproto_app.strategies.fedprox:FedProxStrategy",
        learner="fedproto_app.learners.fedprox:FedProxLearner",
        section=attrgetter("fedprox"),
    ),
    Method(
        name="fedrep",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.fedrep:FedRepLearner",
        section=attrgetter("fedrep"),
    ),
    Method(
        name="fedproto",
        strategy="fedproto_app.strategies.fedproto:FedProtoStrategy",
        learner="fedproto_app.learners.fedproto:FedProtoLearner",
        section=attrgetter("fedproto"),
        tasks=("forecasting",),
    ),
    Method(
        name="apfl",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.apfl:ApflLearner",
        section=attrgetter("apfl"),
    ),
    Method(
        name="ditto",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.ditto:DittoLearner",
        section=attrgetter("ditto"),
    ),
    Method(
        name="census",
        strategy="fedproto_app.strategies.census:CensusStrategy",
        learner="fedproto_app.learners.census:CensusLearner",
        section=attrgetter("census"),
        tasks=("classification",),
        model="fedproto_app.tasks.images.own_models:learned_and_random_patches",
        asks_sites=_counts_classes,
        small={"census.features": 2},
    ),
    Method(
        name="creff",
        strategy="fedproto_app.strategies.creff:CreffStrategy",
        learner="fedproto_app.learners.creff:CreffLearner",
        section=attrgetter("creff"),
        tasks=("classification",),
        asks_sites=_has_gradients_of_classes,
        small={
            "creff.features-per-class": 10,
            "creff.match-steps": 10,
            "creff.classifier-epochs": 10,
        },
    ),
    Method(
        name="fedic",
        strategy="fedproto_app.strategies.fedic:FedicStrategy",
        learner="fedproto_app.learners.fedic:FedicLearner",
        section=attrgetter("fedic"),
        tasks=("classification",),
        small={
            "data.partition.reserve-per-class": 4,
            "fedic.tuning-steps": 5,
            "fedic.calibration-steps": 5,
            "fedic.student-steps": 5,
        },
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _TABLE}


def methods_of(task: str) -> list[str]:
    """The app's own methods that work with a task."""
    return [name for name, method in METHODS.items() if method.works_with(task)]


def require_known(name: str) -> str:
    """The name, if it is one of the table or ``package.module:METHOD``; else ValueError."""
    if name not in METHODS and ":" not in name:
        raise ValueError(
            f"method = {name!r}: unknown method; {did_you_mean(name, METHODS)}known: "
            f"{', '.join(map(repr, METHODS))}, or 'package.module:METHOD' of your own"
        )
    return name


def method_named(name: str) -> Method:
    """The record that ``method = name`` means; `SettingsError` if there is none."""
    if name in METHODS:
        return METHODS[name]
    what = f"method = {name!r}"
    found = load(name, what)
    if not isinstance(found, Method):
        raise SettingsError(
            f"{what}: is a {type(found).__name__}, expected a fedproto_app.methods.Method"
        )
    if found.name in METHODS:
        raise SettingsError(f"{what}: its name = {found.name!r} is that of a method of the app")
    return found
