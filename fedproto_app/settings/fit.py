"""Checks the settings, and the arrays that clients send, against the method and the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedproto_app.core.errors import SettingsError, optional
from fedproto_app.core.method import Method
from fedproto_app.core.methods import (
    METHODS,
    method_named,
    methods_of,
    part_of,
    pretraining_learner,
)
from fedproto_app.core.section import Section
from fedproto_app.core.sends import Sends, Sizes, averages, unmaskable
from fedproto_app.core.tasks import task_record
from fedproto_app.settings.run import Settings


def require_fit(method: Method, settings: Settings) -> None:
    """Raise `SettingsError` if the method cannot work with the task or the other settings."""
    if not method.works_with(settings.task):
        raise SettingsError(
            f"method = {settings.method!r}: works with task = "
            f"{' or '.join(map(repr, method.tasks))} only; task = {settings.task!r} has "
            f"{', '.join(methods_of(settings.task))}"
        )
    for part in (method.strategy, method.learner, method.model):
        if isinstance(part, Mapping) and settings.task not in part:
            raise SettingsError(
                f"method = {settings.method!r}: has parts for task = "
                f"{' or '.join(map(repr, part))} only; task = {settings.task!r}"
            )
    if method.name not in METHODS:  # a user's method, which no test of the app covers
        require_one_place(method, releases_of(method, settings))
    if method.model and settings.model.module:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} has a "
            "model of its own"
        )
    if method.joined_clients and settings.has_response:
        raise SettingsError(
            f"method = {settings.method!r}: its clients see each other's values, so columns that "
            "are known in advance (data.known, data.covariates, data.holidays, data.calendar = "
            "'year') cannot be taken into account"
        )
    _require_one_shape(method, settings)
    _require_kernel(method, settings)
    if settings.aggregation.rule != "mean" and not averages(releases_of(method, settings)):
        raise SettingsError(
            f"aggregation.rule = {settings.aggregation.rule!r}: method = {settings.method!r} makes "
            "no mean of its clients' models, prototypes or sums that a rule could replace"
        )
    _require_maskable(method, settings)
    if settings.patience and settings.privacy.reported == "none":
        raise SettingsError(
            f"patience = {settings.patience}: watches the clients' validation errors, which "
            f"privacy.metrics = {settings.privacy.metrics!r} withholds; set patience = 0, or "
            f"privacy.metrics = {'noised' if settings.privacy.is_on else 'exact'!r}"
        )
    if method.check is not None:
        try:
            method.check(settings)
        except ValueError as error:
            raise SettingsError(str(error)) from None


def require_one_place(method: Method, releases: Sequence[Sends]) -> None:
    """Raise `SettingsError` if two releases of a method share an array or both send parameters."""
    names = [name for release in releases for name in release.arrays]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"method {method.name!r}: declares {name!r} in two Sends")
    if sum(bool(release.parameters) for release in releases) > 1:
        raise SettingsError(
            f"method {method.name!r}: declares two Sends with parameters; one names all prefixes"
        )


def _require_one_shape(method: Method, settings: Settings) -> None:
    """Raise `SettingsError` for widths that do not go with the model or the method.

    Some models have only one width. If the server averages parameters, all models need one shape.
    """
    if settings.model.factors == (1.0,):
        return
    setting = f"model.width-factors = {settings.model.width_factors!r}"
    if settings.model.module:
        raise SettingsError(f"{setting}: model.module = {settings.model.module!r} has one width")
    if method.model or method.pretraining:
        raise SettingsError(f"{setting}: method = {settings.method!r} has a model of its own")
    if len(settings.model.factors) > 1 and _shares_parameters(method, settings):
        able = [
            name
            for name in methods_of(settings.task)
            if not (METHODS[name].model or METHODS[name].pretraining)
            and not _shares_parameters(METHODS[name], settings)
        ]
        raise SettingsError(
            f"{setting}: method = {settings.method!r} sends parameters of the model, which must "
            f"have one width at all clients; for task = {settings.task!r} several widths go with "
            f"{', '.join(able)}"
        )


def _require_kernel(method: Method, settings: Settings) -> None:
    """Raise `SettingsError` if `kernel = "numba"` cannot train this, or numba is not installed."""
    if settings.kernel == "torch":
        return
    model, optimizer, task = settings.model, settings.optimizer, settings.task
    window = optimizer.smoothing_window
    lacking = {
        f"task = {task!r}": not task_record(task).forecasts,
        f"model.module = {model.module!r}": bool(model.module),
        f"model.width-factors = {model.width_factors!r}": model.factors != (1.0,),
        f"optimizer.name = {optimizer.name!r}": optimizer.name != "adam",
        f"optimizer.smoothing-window = {window}": window > 1,
        f"precision = {settings.precision!r}": settings.precision != "float32",
        f"device = {settings.device!r}": settings.device != "cpu",
    }
    for setting, is_lacking in lacking.items():
        if is_lacking:
            raise SettingsError(
                "kernel = 'numba': trains only the GRU of series with Adam, in float32 on a CPU, "
                f"so {setting} needs kernel = 'torch'"
            )
    if not _suits_kernel(method, task):
        able = [name for name in methods_of(task) if _suits_kernel(METHODS[name], task)]
        raise SettingsError(
            f"kernel = 'numba': trains only {', '.join(able)}, so method = {settings.method!r} "
            "needs kernel = 'torch'"
        )
    optional("numba", "fast", "kernel = 'numba'")


def _suits_kernel(method: Method, task: str) -> bool:
    suits: bool = part_of(method, "learner", task).suits_kernel()
    return suits and not method.model


def _shares_parameters(method: Method, settings: Settings) -> bool:
    return any(release.parameters for release in releases_of(method, settings))


def _require_maskable(method: Method, settings: Settings) -> None:
    """Raise `SettingsError` if `aggregation.secure` is set but the server needs single values."""
    aggregation = settings.aggregation
    if not aggregation.secure:
        return
    if aggregation.rule != "mean":
        raise SettingsError(
            f"aggregation.secure = true: aggregation.rule = {aggregation.rule!r} looks at each "
            "client's model, and a masked sum hides these; only rule = 'mean' goes with it"
        )
    if 0 < len(settings.nodes.named) < aggregation.secure_minimum:
        raise SettingsError(
            f"nodes.names = {settings.nodes.names!r}: a masked sum needs "
            f"aggregation.secure-minimum = {aggregation.secure_minimum} nodes"
        )
    releases = releases_of(method, settings)
    before = [release for _, learnt in pretraining_releases(settings) for release in learnt]
    if reason := unmaskable(releases or before):
        able = [
            name
            for name in methods_of(settings.task)
            if not unmaskable(releases_of(METHODS[name], settings))
        ]
        raise SettingsError(
            f"aggregation.secure = true: method = {settings.method!r} {reason}; for task = "
            f"{settings.task!r} masked sums go with {', '.join(able)}"
        )
    sums_samples = any(release.clip == "sums" for release in releases)
    hides_clients = settings.privacy.is_on and settings.privacy.unit == "client"
    if sums_samples and hides_clients and not aggregation.weight_limit:
        raise SettingsError(
            "aggregation.weight-limit = 0: in a masked sum the noise must hide even the client "
            "with the most samples, so the number of samples that count must be limited"
        )


def releases_of(method: Method, settings: Settings) -> tuple[Sends, ...]:
    """Return what a method sends with these settings. The shapes are not determined yet."""
    learner = part_of(method, "learner", settings.task)
    return tuple(learner.sends(table_of(method, settings), Sizes()))


def withholds_samples(settings: Settings) -> bool:
    """Return whether the nodes keep their clients' numbers of samples to themselves.

    They cannot if the method sends sums of samples, because a noised sum shows how many are in it.
    """
    releases = releases_of(method_named(settings.method), settings)
    return not settings.training.counts_samples and all(r.clip != "sums" for r in releases)


def table_of(method: Method, settings: Settings) -> Section:
    """The method's table in these settings, or the defaults if the run has another method."""
    mine = isinstance(settings.method_settings, method.settings)
    return settings.method_settings if mine else method.settings()


def pretraining_releases(settings: Settings) -> list[tuple[int, tuple[Sends, ...]]]:
    """Return, for each phase before the method's own, its number of rounds and the releases of
    one round."""
    return [
        (rounds, tuple(pretraining_learner(phase).sends(phase.section(settings), Sizes())))
        for phase in settings.first_phases
        if (rounds := phase.rounds(settings))
    ]


def check_settings(settings: Settings) -> None:
    """Raise `SettingsError` for settings that contradict each other for their task."""
    if check := TASK_CHECKS.get(settings.task):
        check(settings)


def _require_fitting_stages(settings: Settings) -> None:
    """Raise `SettingsError` if the rounds are fewer than the stages, or no model can be chosen."""
    partition = settings.data.partition
    chosen = settings.keep != "last" or settings.patience > 0
    if chosen and partition.validation_share == 0:
        raise SettingsError(
            "data.partition.validation-share = 0 leaves no images to choose a model by: set "
            "keep = 'last' and patience = 0"
        )
    if partition.scheme == "given":
        return  # stages given by the source are checked when it is read
    if settings.rounds < partition.stages:
        raise SettingsError(
            f"rounds = {settings.rounds}: fewer than data.partition.stages = {partition.stages}, "
            "so some stages would never be trained on"
        )
    if partition.stages > 1 and chosen:
        raise SettingsError(
            f"keep = {settings.keep!r}, patience = {settings.patience}: errors of different stages "
            f"cannot be compared; data.partition.stages = {partition.stages} needs "
            "keep = 'last' and patience = 0"
        )


# For each task, a function that raises `SettingsError` for settings that contradict each other.
TASK_CHECKS: dict[str, Callable[[Settings], None]] = {"classification": _require_fitting_stages}
