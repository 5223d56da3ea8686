"""Libraries that only some people need: what pip calls extras."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedproto_app.core.errors import SettingsError


def optional(module: str, extra: str, what: str) -> Any:
    """The module of an extra's library.

    what: that needs it, as a message begins. Raises `SettingsError`, which names the extra, if the
    library is not installed or cannot be used.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise SettingsError(
            f"{what}: needs {library} ({error}); install it with: "
            f'pip install "fedproto-app[{extra}]"'
        ) from None
