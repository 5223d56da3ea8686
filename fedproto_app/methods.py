"""All methods by name, and what of them fits the settings of a run.

A method is a module or a folder in ``strategies/`` or ``strategies/compared/`` with a record
``METHOD``; the file's name, with dashes, is the method's. Nothing else lists it. A method from
outside the app is a `Method` in a module of the user's, ``package.module:NAME``. A method's module
is imported when the method is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from fedproto_app.core.errors import SettingsError, did_you_mean
from fedproto_app.core.loading import load
from fedproto_app.core.method import SEQUENCE_TASKS, ByTask, Method, Pretraining, for_task
from fedproto_app.core.section import Section, kebab
from fedproto_app.core.sends import Returns, Sends, Sizes, averages, unmaskable

if TYPE_CHECKING:
    from fedproto_app.settings.run import Settings

__all__ = [
    "METHODS",
    "SEQUENCE_TASKS",
    "ByTask",
    "Method",
    "Pretraining",
    "for_task",
    "method_named",
    "methods_of",
    "require_fit",
    "require_known",
]

_PACKAGES = ("fedproto_app.strategies", "fedproto_app.strategies.compared")
_NO_METHODS = ("common", "compared")


class Methods(Mapping[str, Method]):
    """The app's methods by name; asking for one imports its module."""

    def __init__(self) -> None:
        folder = Path(__file__).parent / "strategies"
        self._modules: dict[str, str] = {}
        for package, place in zip(_PACKAGES, (folder, folder / "compared"), strict=True):
            names = sorted(module.name for module in iter_modules([str(place)]))
            self._modules |= {kebab(n): f"{package}.{n}" for n in names if n not in _NO_METHODS}

    def __getitem__(self, name: str) -> Method:
        method: Method = import_module(self._modules[name]).METHOD
        return method

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, name: object) -> bool:
        return name in self._modules


METHODS = Methods()


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
    setting = f"method = {name!r}"
    record = load(name, setting)
    if not isinstance(record, Method):
        raise SettingsError(
            f"{setting}: is a {type(record).__name__}, expected a fedproto_app.methods.Method"
        )
    if record.name in METHODS:
        raise SettingsError(f"{setting}: its name = {record.name!r} is that of a method of the app")
    return record


def require_fit(method: Method, settings: Settings) -> None:
    """`SettingsError` if the method cannot work with the task or the other settings."""
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
    if method.name not in METHODS:  # somebody's own, which may declare nothing
        require_one_place(method, releases_of(method, settings))
    if method.model and settings.model.module:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} has a "
            "model of its own"
        )
    _require_one_shape(method, settings)
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


def require_one_place(method: Method, releases: Sequence[Sends]) -> None:
    """`SettingsError` for an array in two releases of a method, or two releases of the model."""
    names = [name for release in releases for name in release.arrays]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"method {method.name!r}: declares {name!r} in two Sends")
    if sum(bool(release.parameters) for release in releases) > 1:
        raise SettingsError(
            f"method {method.name!r}: declares two Sends with parameters; one names all prefixes"
        )


def _require_one_shape(method: Method, settings: Settings) -> None:
    """`SettingsError` for other widths where there is no such model, and for several where the
    server averages parameters, which needs models of one shape."""
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
            f"have one width at all clients; of task = {settings.task!r} several widths go with "
            f"{', '.join(able)}"
        )


def _shares_parameters(method: Method, settings: Settings) -> bool:
    return any(release.parameters for release in releases_of(method, settings))


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


def part_of(method: Method, half: str, task: str) -> Any:
    """The class of a method's half for a task. half: "strategy" or "learner"."""
    part = for_task(getattr(method, half), task)
    return load(part, f"{method.name}'s {half} = {part!r}") if isinstance(part, str) else part


def pretraining_learner(pretraining: Pretraining) -> Any:
    """The class of the clients' half of a first phase."""
    return load(pretraining.learner, f"the first phase's learner = {pretraining.learner!r}")


def releases_of(method: Method, settings: Settings) -> tuple[Sends, ...]:
    """What clients send by a method with these settings; shapes are not known yet."""
    learner = part_of(method, "learner", settings.task)
    return tuple(learner.sends(table_of(method, settings), Sizes()))


def returns_of(method: Method, settings: Settings) -> tuple[Returns, ...]:
    """What clients get by a method with these settings, where a site must allow it."""
    learner = part_of(method, "learner", settings.task)
    return tuple(learner.returns(table_of(method, settings)))


def table_of(method: Method, settings: Settings) -> Section:
    """The method's table in these settings; its defaults if the run has another method."""
    mine = isinstance(settings.method_settings, method.settings)
    return settings.method_settings if mine else method.settings()


def pretraining_releases(method: Method, settings: Settings) -> tuple[Sends, ...]:
    """What clients send in the rounds before those of the method; () if there are none."""
    pretraining = method.pretraining
    if pretraining is None or not pretraining.rounds(settings):
        return ()
    learner = pretraining_learner(pretraining)
    return tuple(learner.sends(pretraining.section(settings), Sizes()))
