"""Errors that a user can cause. They are reported in one line, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class FedProtoError(Exception):
    """Base of every error that the user can mend. The command line prints it in one line."""


class SettingsError(FedProtoError):
    """A run or node setting that is unknown, ill-typed, out of range or contradictory."""


class DataError(FedProtoError):
    """A data source, or a client in it, that cannot be used. The text names the file or client."""


class FederationError(FedProtoError):
    """The federation cannot go on because no node connected or too many replies failed."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests similarly spelled names, or "" if there are none."""
    near = get_close_matches(name, names)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def system_fault(error: OSError) -> str:
    """Return the system's message, and the file if the error names one."""
    if error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return str(error)


# Libraries that only some people need, which pip calls extras.


def optional(module: str, extra: str, user: str) -> Any:
    """Return a module of a library that belongs to an extra.

    user: the part of the program that needs the module. Error messages begin with it. Raise a
    `SettingsError` that names the extra if the library is missing or cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise SettingsError(
            f"{user}: needs {library} ({error}); install it with: "
            f'pip install "fedproto-app[{extra}]"'
        ) from None
