"""A user's own code, which a setting names as ``package.module:function``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedproto_app.errors import FedProtoError


def named_function(key: str, named: str, fault: type[FedProtoError]) -> Callable[..., Any]:
    """The function that the setting `key` names.

    Raises the fault if it cannot be imported, or is no function.
    """
    module, _, attribute = named.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise fault(f"{key} = {named!r}: {error}") from None
    if not callable(function):
        raise fault(f"{key} = {named!r}: {attribute} is not a function")
    return function  # type: ignore[no-any-return]


def look_here_for_users_code() -> None:
    """Make modules importable that lie in the folder where the user stands."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
