"""All methods by name.

A method is a module or a folder in ``strategies/`` with a record ``METHOD``. It is named
after the file, with dashes, and no other file lists it. The package ``fedproto_compared`` beside
the app has further methods in the same form, which are found only if it is installed. A user's own
method is a `Method` in a module of theirs, ``package.module:NAME``. A method's module is imported
when the method is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from fedproto_app.core.errors import SettingsError, did_you_mean
from fedproto_app.core.loading import load
from fedproto_app.core.method import Method, Pretraining, for_task
from fedproto_app.core.section import kebab

_PACKAGES = ("fedproto_app.strategies", "fedproto_compared")
_RESPONSE = "response"  # a folder of phases that come before any method of series
_NO_METHODS = ("common", _RESPONSE)  # `common` is code that methods share


class Methods(Mapping[str, Method]):
    """The app's methods by name. Reading a value imports the method's module."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}
        for package in _PACKAGES:
            # Modules are found, not imported, so that reading a table of results loads no torch.
            spec = find_spec(package)
            places = (spec and spec.submodule_search_locations) or ()
            names = sorted(module.name for module in iter_modules(places))
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

    def meaning(self, name: str) -> str:
        """Return a sentence that says what a method is: the start of its module's docstring."""
        text = import_module(self._modules[name]).__doc__ or ""
        return " ".join(text.partition("\n\n")[0].rstrip(".").split())


METHODS = Methods()


def methods_of(task: str) -> list[str]:
    """Return the app's methods that work with a task."""
    return [name for name, method in METHODS.items() if method.works_with(task)]


def require_known(name: str) -> str:
    """Return the name of a listed method or ``package.module:METHOD``, or raise ValueError."""
    if name not in METHODS and ":" not in name:
        raise ValueError(
            f"method = {name!r}: unknown method; {did_you_mean(name, METHODS)}known: "
            f"{', '.join(map(repr, METHODS))}, or 'package.module:METHOD' of your own"
        )
    return name


def method_named(name: str) -> Method:
    """Return the record for ``method = name``, or raise `SettingsError` if there is none."""
    if name in METHODS:
        return METHODS[name]
    setting = f"method = {name!r}"
    record = load(name, setting)
    if not isinstance(record, Method):
        raise SettingsError(
            f"{setting}: is a {type(record).__name__}, expected a fedproto_app.core.method.Method"
        )
    if record.name in METHODS:
        raise SettingsError(f"{setting}: its name = {record.name!r} is that of a method of the app")
    return record


def part_of(method: Method, half: str, task: str) -> Any:
    """Return the class of one half of a method for a task. half: "strategy" or "learner"."""
    part = for_task(getattr(method, half), task)
    return load(part, f"{method.name}'s {half} = {part!r}") if isinstance(part, str) else part


def response_phases() -> tuple[Pretraining, ...]:
    """Return the phases that learn how series respond to columns known in advance."""
    phases: tuple[Pretraining, ...] = import_module(f"{_PACKAGES[0]}.{_RESPONSE}").PHASES
    return phases


def pretraining_learner(pretraining: Pretraining) -> Any:
    """Return the class of the clients' half of a first phase."""
    return load(pretraining.learner, f"the first phase's learner = {pretraining.learner!r}")
