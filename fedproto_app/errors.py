"""The errors a user can cause, told in one line and without a traceback."""

from __future__ import annotations


class FedProtoError(Exception):
    """Base of every error that is the user's to mend; the command line prints it in one line."""


class SettingsError(FedProtoError):
    """A run or node setting that is unknown, ill-typed, out of range or contradictory."""


class DataError(FedProtoError):
    """A data source, or one client of it, that cannot be used; names the file or client."""


class FederationError(FedProtoError):
    """The federation cannot go on: no node came, or too many replies failed."""
