"""Imports objects that settings and records name as ``package.module:name``. Only this does so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import FedProtoError, SettingsError


def is_code(text: str) -> bool:
    """Whether the text has the form ``package.module:name``, the only one that `load` imports."""
    module, _, name = text.partition(":")
    return all(map(str.isidentifier, [*module.split("."), name]))


def load(target: str, key: str, fault: type[FedProtoError] = SettingsError) -> Any:
    """Return the object that ``package.module:name`` names.

    key: the setting or field with this value. Error messages begin with it. Raise `fault` if the
    object cannot be imported.
    """
    module, _, name = target.partition(":")
    if not is_code(target):
        raise fault(f"{key}: expected package.module:NAME")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError, FedProtoError) as error:
        raise fault(f"{key}: {error}") from None
    except Exception as error:  # a user's module may raise anything
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise fault(f"{key}: module {module!r} cannot be imported: {message}") from error


def named_function(key: str, target: str, fault: type[FedProtoError]) -> Callable[..., Any]:
    """Return the function that the setting `key` names.

    Raise `fault` if it cannot be imported or is not a function.
    """
    function = load(target, f"{key} = {target!r}", fault)
    if not callable(function):
        raise fault(f"{key} = {target!r}: {target.partition(':')[2]} is not a function")
    return function  # type: ignore[no-any-return]


def look_here_for_users_code() -> None:
    """Make the modules in the user's current folder importable. All other modules come first."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
