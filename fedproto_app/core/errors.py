"""The errors a user can cause, reported in one line and without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class FedProtoError(Exception):
    """Base of every error that is the user's to mend. The command line prints it in one line."""


class SettingsError(FedProtoError):
    """A run or node setting that is unknown, ill-typed, out of range or contradictory."""


class DataError(FedProtoError):
    """A data source, or one client of it, that cannot be used, with the file or client."""


class FederationError(FedProtoError):
    """The federation cannot go on: no node came, or too many replies failed."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question that lists the names spelled almost alike, "" if there are none."""
    near = get_close_matches(name, names)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def system_fault(error: OSError) -> str:
    """Return the system's message, and the file if the error names one."""
    if error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    return str(error)


# Libraries that only some people need: what pip calls extras.


def optional(module: str, extra: str, user: str) -> Any:
    """Return the module of an extra's library.

    user: the part of the program that needs it. Error messages begin with it. Raise
    `SettingsError`, which names the extra, if the library is missing or cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise SettingsError(
            f"{user}: needs {library} ({error}); install it with: "
            f'pip install "fedproto-app[{extra}]"'
        ) from None
