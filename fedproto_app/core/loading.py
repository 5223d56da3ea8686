"""Code that a setting names as ``package.module:name``, a user's own above all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.method import IN_METHODS


def is_code(text: str) -> bool:
    """Whether the text has the form ``package.module:name``; `load` imports nothing else."""
    module, _, name = text.partition(":")
    return all(map(str.isidentifier, [*module.split("."), name]))


def load(target: str, what: str, fault: type[FedProtoError] = SettingsError) -> Any:
    """What ``package.module:name`` names.

    what: the setting or the field that says so, as a message begins. Raises the fault.
    """
    module, _, name = target.partition(":")
    if not is_code(target):
        raise fault(f"{what}: expected package.module:NAME")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise fault(f"{what}: {error}{_moved(error.name or '')}") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise fault(f"{what}: {error}") from None
    except FedProtoError as error:  # of a class that the module derives from
        raise fault(f"{what}: {error}") from None
    except Exception as error:  # whatever somebody's own module raises
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        removed = [text for name, text in IN_METHODS.items() if f"argument '{name}'" in said]
        said += "".join(f"; since version 0.2 {text}" for text in removed)
        raise fault(f"{what}: module {module!r} cannot be imported: {said}") from error


# Methods whose folder is not called as their modules were before version 0.2.
_FOLDERS = {
    "jsd_prototype": "fuels",
    "global_local_prototype": "gldp",
    "evolutionary_cluster": "fed_react",
    "constant_answers": "naive",
}


def _moved(module: str) -> str:
    """Where a module of `learners` or `strategies` of version 0.1 stands now, "" if nowhere."""
    package, _, name = module.rpartition(".")
    half = {"fedproto_app.learners": "learner", "fedproto_app.strategies": "strategy"}.get(package)
    folder = _FOLDERS.get(name, name)
    places = (f"{folder}.{half}", folder, f"compared.{folder}.{half}", f"compared.{folder}")
    for place in (*places, f"common.{name}") if half else ():
        new = "core.sends" if name == "release" else f"strategies.{place}"
        with suppress(ModuleNotFoundError):
            if find_spec(f"fedproto_app.{new}"):
                return f"; since version 0.2 it is fedproto_app.{new}"
    return ""


def named_function(key: str, named: str, fault: type[FedProtoError]) -> Callable[..., Any]:
    """The function that the setting `key` names.

    Raises the fault if it cannot be imported, or is no function.
    """
    function = load(named, f"{key} = {named!r}", fault)
    if not callable(function):
        raise fault(f"{key} = {named!r}: {named.partition(':')[2]} is not a function")
    return function  # type: ignore[no-any-return]


def look_here_for_users_code() -> None:
    """Make the modules in the user's current folder importable, after all others."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
