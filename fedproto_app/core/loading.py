"""Import objects that settings and records name as ``package.module:name``, here only."""

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


def load(target: str, key: str, fault: type[FedProtoError] = SettingsError) -> Any:
    """Return the object that ``package.module:name`` names.

    key: the setting or field with this value; error messages begin with it. Raise `fault` if the
    object cannot be imported.
    """
    module, _, name = target.partition(":")
    if not is_code(target):
        raise fault(f"{key}: expected package.module:NAME")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise fault(f"{key}: {error}{_moved(error.name or '')}") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise fault(f"{key}: {error}") from None
    except FedProtoError as error:  # of a class that the module derives from
        raise fault(f"{key}: {error}") from None
    except Exception as error:  # a user's module may raise anything
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        removed = [text for name, text in IN_METHODS.items() if f"argument '{name}'" in message]
        message += "".join(f"; since version 0.2 {text}" for text in removed)
        raise fault(f"{key}: module {module!r} cannot be imported: {message}") from error


# Methods whose folder has another name than their modules had before version 0.2.
_FOLDERS = {
    "jsd_prototype": "fuels",
    "global_local_prototype": "gldp",
    "evolutionary_cluster": "fed_react",
    "constant_answers": "naive",
}


def _moved(module: str) -> str:
    """Return the end of an error message: where a module of version 0.1 is now, "" if unknown.

    Of a package that is gone Python names the package alone, not the module in it.
    """
    package, _, name = module.rpartition(".")
    if module == "fedproto_app.learners" or package == "fedproto_app.learners":
        return (
            "; since version 0.2 a learner stands with its method, as"
            " fedproto_app.strategies.fuels.learner, and what methods share in"
            " fedproto_app.strategies.common"
        )
    if package == "fedproto_app.strategies":
        folder = _FOLDERS.get(name, name)
        places = [f"strategies.{in_folder}{folder}" for in_folder in ("", "compared.")]
        places = [f"{place}{end}" for place in places for end in (".strategy", "")]
        places.append(f"strategies.common.{name}")
    else:
        places = ["core.method" if name == "methods" else f"core.{name}"]
    for place in places if package.partition(".")[0] == "fedproto_app" else ():
        with suppress(ModuleNotFoundError):
            if find_spec(f"fedproto_app.{place}"):
                return f"; since version 0.2 it is fedproto_app.{place}"
    return ""


def named_function(key: str, target: str, fault: type[FedProtoError]) -> Callable[..., Any]:
    """Return the function that the setting `key` names.

    Raise `fault` if it cannot be imported or is not a function.
    """
    function = load(target, f"{key} = {target!r}", fault)
    if not callable(function):
        raise fault(f"{key} = {target!r}: {target.partition(':')[2]} is not a function")
    return function  # type: ignore[no-any-return]


def look_here_for_users_code() -> None:
    """Make the modules in the user's current folder importable, after all other modules."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
