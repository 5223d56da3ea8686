"""A user's function as the source: it gives what a test hands over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fedproto_app.settings import DataSettings

FACTORY = f"{__name__}:factory"
Loaded = TypeVar("Loaded")
handed_over: Any = None


def factory(settings: DataSettings) -> Any:
    return handed_over


def load_given(load: Callable[[DataSettings], Loaded], content: Any, **settings: Any) -> Loaded:
    """Read a source with a user's function that gives this object."""
    global handed_over
    handed_over = content
    return load(DataSettings(source=FACTORY, **settings))
