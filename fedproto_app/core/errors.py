"""The errors a user can cause, told in one line and without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedProtoError(Exception):
    """Base of every error that is the user's to mend; the command line prints it in one line."""


class SettingsError(FedProtoError):
    """A run or node setting that is unknown, ill-typed, out of range or contradictory."""


class DataError(FedProtoError):
    """A data source, or one client of it, that cannot be used; names the file or client."""


class FederationError(FedProtoError):
    """The federation cannot go on: no node came, or too many replies failed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the known names that are spelled almost so, empty if there is none."""
    near = get_close_matches(name, known)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""
