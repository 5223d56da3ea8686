"""The table of methods, and how to find one.

A new method is one file in ``strategies/``, one in ``learners/``, one settings section, one row
here. A method of somebody's own is a `Method` in a module of theirs. Classes are named by strings,
which `halves` imports when they are asked for.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from fedproto_app import method_checks
from fedproto_app.core.sends import Returns, Sends, Sizes, averages, unmaskable
from fedproto_app.errors import SettingsError, did_you_mean
from fedproto_app.method import SEQUENCE_TASKS, ByTask, Method, for_task
from fedproto_app.users_code import load

if TYPE_CHECKING:
    from fedproto_app.settings.run import Settings

__all__ = [
    "METHODS",
    "SEQUENCE_TASKS",
    "ByTask",
    "Method",
    "for_task",
    "method_named",
    "methods_of",
    "require_fit",
    "require_known",
]

# Of the rounds in which an encoder is learned without labels.
ENCODER_LEARNER = "fedproto_app.learners.contrastive_encoder:ContrastiveEncoderLearner"
_LINEAR = "fedproto_app.tasks.forecasting.own_models:linear"
_FREQUENT = "fedproto_app.learners.constant_answers:FrequentClassLearner"
_CLASSES = "fedproto_app.strategies.analytic_classes:AnalyticClassesStrategy"
_CLASSES_LEARNER = "fedproto_app.learners.analytic_classes:AnalyticClassesLearner"
_FEDPROTO_CLASSES = "fedproto_app.strategies.fedproto:FedProtoClassesStrategy"
_FEDPROTO_CLASSES_LEARNER = "fedproto_app.learners.fedproto:FedProtoClassesLearner"
_NEAR_VECTORS = "fedproto_app.learners.knn_per:KnnPerVectorsLearner"

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
    ),
    Method(
        name="fed-react",
        strategy="fedproto_app.strategies.evolutionary_cluster:EvolutionaryClusterStrategy",
        learner="fedproto_app.learners.evolutionary_cluster:EvolutionaryClusterLearner",
        section=attrgetter("fed_react"),
        tasks=SEQUENCE_TASKS,
        encoder_first=True,
        check=method_checks.heads_can_be_compared,
        check_clients=method_checks.clients_fill_the_clusters,
    ),
    Method(
        name="ifca",
        strategy="fedproto_app.strategies.ifca:IfcaStrategy",
        learner="fedproto_app.learners.ifca:IfcaLearner",
        section=lambda settings: settings.fed_react.choosing(1),
        tasks=SEQUENCE_TASKS,
        encoder_first=True,
        check=method_checks.clusters_can_be_chosen,
        check_clients=method_checks.clients_fill_the_clusters,
    ),
    Method(
        name="flsc",
        strategy="fedproto_app.strategies.ifca:IfcaStrategy",
        learner="fedproto_app.learners.ifca:IfcaLearner",
        section=lambda settings: settings.fed_react.choosing(settings.flsc.overlap),
        tasks=SEQUENCE_TASKS,
        encoder_first=True,
        check=method_checks.overlap_fits_the_clusters,
        check_clients=method_checks.clients_fill_the_clusters,
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
        rounds=method_checks.one_a_stage,
    ),
    Method(
        name="seasonal-naive",
        strategy="fedproto_app.strategies.solo:SoloStrategy",
        learner="fedproto_app.learners.naive:SeasonalNaiveLearner",
        tasks=("forecasting",),
        model=_LINEAR,
        rounds=method_checks.one,
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
        rounds=method_checks.a_stage_and_guesses,
        guesses=method_checks.classes_are_guessed,
        check=method_checks.closed_form_can_be_had,
    ),
    Method(
        name="kindred",
        strategy="fedproto_app.strategies.kindred:KindredStrategy",
        learner="fedproto_app.learners.kindred:KindredLearner",
        section=attrgetter("kindred"),
        tasks=("forecasting",),
        model="fedproto_app.tasks.forecasting.own_models:random_features",
        rounds=method_checks.one,
    ),
    Method(
        name="fedavg",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.fedavg:FedAvgLearner",
        section=attrgetter("fedavg"),
    ),
    Method(
        name="fedavg-ft",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.fedavg:FedAvgLearner",
        section=attrgetter("fedavg.fine_tuned"),
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
        name="per-fedavg",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.per_fedavg:PerFedAvgLearner",
        section=attrgetter("per_fedavg"),
    ),
    Method(
        name="pfedme",
        strategy="fedproto_app.strategies.pfedme:PFedMeStrategy",
        learner="fedproto_app.learners.pfedme:PFedMeLearner",
        section=attrgetter("pfedme"),
    ),
    Method(
        name="fedproto",
        strategy={
            "forecasting": "fedproto_app.strategies.fedproto:FedProtoStrategy",
            "classification": _FEDPROTO_CLASSES,
            "sequence-classification": _FEDPROTO_CLASSES,
        },
        learner={
            "forecasting": "fedproto_app.learners.fedproto:FedProtoLearner",
            "classification": _FEDPROTO_CLASSES_LEARNER,
            "sequence-classification": _FEDPROTO_CLASSES_LEARNER,
        },
        section=attrgetter("fedproto"),
        tasks=("forecasting", "classification", "sequence-classification"),
    ),
    Method(
        name="fedpcl",
        strategy="fedproto_app.strategies.fedpcl:FedPclStrategy",
        learner="fedproto_app.learners.fedpcl:FedPclLearner",
        section=attrgetter("fedpcl"),
        tasks=("forecasting",),
    ),
    Method(
        name="fedda",
        strategy="fedproto_app.strategies.fedda:FedDaStrategy",
        learner="fedproto_app.learners.fedda:FedDaLearner",
        section=attrgetter("fedda"),
        tasks=("forecasting",),
        small={"data.periodic-window": 1, "data.synthetic.days": 24, "fedda.warm-up-epochs": 2},
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
        name="fedgru",
        strategy="fedproto_app.strategies.fedgru:FedGruStrategy",
        learner="fedproto_app.learners.fedgru:FedGruLearner",
        section=attrgetter("fedgru"),
        tasks=("forecasting",),
        model="fedproto_app.tasks.forecasting.own_models:gru_of_clusters",
        check=method_checks.organisations_have_places,
        small={"fedgru.hidden": 8, "fedgru.organisations": 4},
    ),
    Method(
        name="fcgcn",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.fedavg:FedAvgLearner",
        section=attrgetter("fcgcn"),
        tasks=("forecasting",),
        model="fedproto_app.tasks.forecasting.own_models:community_gcn",
        joined_clients="fedproto_app.tasks.forecasting.communities:with_communities",
        needs_simulation=method_checks.pools_windows,
        cannot_forecast="it needs the values of all clients of its community at the same time",
    ),
    Method(
        name="fedala",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner="fedproto_app.learners.fedala:FedAlaLearner",
        section=attrgetter("fedala"),
    ),
    Method(
        name="fedtgp",
        strategy="fedproto_app.strategies.fedtgp:FedTgpStrategy",
        learner="fedproto_app.learners.fedtgp:FedTgpLearner",
        section=attrgetter("fedtgp"),
        tasks=("classification",),
        small={"fedtgp.server-epochs": 5},
    ),
    Method(
        name="knn-per",
        strategy="fedproto_app.strategies.fedavg:FedAvgStrategy",
        learner={
            "forecasting": "fedproto_app.learners.knn_per:KnnPerForecastLearner",
            "classification": _NEAR_VECTORS,
            "sequence-classification": _NEAR_VECTORS,
            "sequence-regression": _NEAR_VECTORS,
        },
        section=attrgetter("knn_per"),
        model={
            "forecasting": "fedproto_app.tasks.forecasting.own_models:remembering",
            "classification": "fedproto_app.tasks.images.own_models:remembering",
            "sequence-classification": "fedproto_app.tasks.sequences.own_models:remembering",
            "sequence-regression": "fedproto_app.tasks.sequences.own_models:remembering",
        },
        small={"knn-per.most-samples": 50},
    ),
    Method(
        name="cnfgnn",
        strategy="fedproto_app.strategies.cnfgnn:CnfgnnStrategy",
        learner="fedproto_app.learners.cnfgnn:CnfgnnLearner",
        section=attrgetter("cnfgnn"),
        tasks=("forecasting",),
        model="fedproto_app.tasks.forecasting.own_models:graph_forecaster",
        needs_simulation=method_checks.needs_the_graph_network,
        cannot_forecast=(
            "its decoder needs what the server's graph network makes of all clients' encodings of "
            "the same time"
        ),
        by_time=True,
        small={"cnfgnn.hidden": 8, "cnfgnn.server-rate": 1e-4},
    ),
    Method(
        name="census",
        strategy="fedproto_app.strategies.census:CensusStrategy",
        learner="fedproto_app.learners.census:CensusLearner",
        section=attrgetter("census"),
        tasks=("classification",),
        model="fedproto_app.tasks.images.own_models:learned_and_random_patches",
        small={"census.features": 2},
    ),
    Method(
        name="creff",
        strategy="fedproto_app.strategies.creff:CreffStrategy",
        learner="fedproto_app.learners.creff:CreffLearner",
        section=attrgetter("creff"),
        tasks=("classification",),
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


def require_fit(method: Method, settings: Settings) -> None:
    """`SettingsError` if the method cannot work with the task or the other settings."""
    if not method.works_with(settings.task):
        raise SettingsError(
            f"method = {settings.method!r}: works with task = "
            f"{' or '.join(map(repr, method.tasks))} only; task = {settings.task!r} has "
            f"{', '.join(methods_of(settings.task))}"
        )
    for part in (method.strategy, method.learner, method.model):
        if not isinstance(part, str) and settings.task not in part:
            raise SettingsError(
                f"method = {settings.method!r}: has parts for task = "
                f"{' or '.join(map(repr, part))} only; task = {settings.task!r}"
            )
    if method.model and settings.model.module:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} has a "
            "model of its own"
        )
    if settings.aggregation.rule != "mean" and not averages(releases_of(method, settings)):
        raise SettingsError(
            f"aggregation.rule = {settings.aggregation.rule!r}: method = {settings.method!r} makes "
            "no mean of its clients' models, prototypes or sums that a rule could replace"
        )
    _require_maskable(method, settings)
    if method.check is not None:
        try:
            method.check(settings)
        except ValueError as error:
            raise SettingsError(str(error)) from None


def _require_maskable(method: Method, settings: Settings) -> None:
    """`SettingsError` if `aggregation.secure` is set and the server needs more than totals."""
    aggregation = settings.aggregation
    if not aggregation.secure:
        return
    if aggregation.rule != "mean":
        raise SettingsError(
            f"aggregation.secure = true: aggregation.rule = {aggregation.rule!r} looks at each "
            "client's model, of which a masked sum shows none; only rule = 'mean' goes with it"
        )
    if reason := unmaskable(releases_of(method, settings)):
        able = [name for name in methods_of(settings.task) if not _unmaskable(name, settings)]
        raise SettingsError(
            f"aggregation.secure = true: method = {settings.method!r} {reason}; of task = "
            f"{settings.task!r} masked sums go with {', '.join(able)}"
        )
    if settings.privacy.is_on:
        raise SettingsError(
            f"aggregation.secure = true: what privacy.mechanism = {settings.privacy.mechanism!r} "
            "makes noisy is not masked yet; set one of the two"
        )


def _unmaskable(name: str, settings: Settings) -> str:
    return unmaskable(releases_of(METHODS[name], settings))


def releases_of(method: Method, settings: Settings) -> tuple[Sends, ...]:
    """What clients send by a method with these settings; shapes are not known yet."""
    named = for_task(method.learner, settings.task)
    learner = load(named, f"{method.name}'s learner = {named!r}")
    return tuple(learner.sends(method.section(settings), Sizes()))


def returns_of(method: Method, settings: Settings) -> tuple[Returns, ...]:
    """What clients get by a method with these settings, where a site must allow it."""
    named = for_task(method.learner, settings.task)
    learner = load(named, f"{method.name}'s learner = {named!r}")
    return tuple(learner.returns(method.section(settings)))


def encoder_releases(settings: Settings) -> tuple[Sends, ...]:
    """What clients send in the rounds in which an encoder is learned without labels."""
    learner = load(ENCODER_LEARNER, "the encoder's learner")
    return tuple(learner.sends(settings.encoder, Sizes()))
