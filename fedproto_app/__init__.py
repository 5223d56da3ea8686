"""Personalised federated learning on heterogeneous time series and images, as a Flower app.

`try_file`, `run`, `resume` and `load` are the Python interface (docs/python.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedproto_app.core.version import __version__

if TYPE_CHECKING:
    from fedproto_app.api import ClientModel, Run, load, resume, run, try_file

_INTERFACE = ("ClientModel", "Run", "load", "resume", "run", "try_file")
__all__ = ["ClientModel", "Run", "__version__", "load", "resume", "run", "try_file"]


def __getattr__(name: str) -> Any:
    """The interface is imported when it is asked for: every process imports this module."""
    if name in _INTERFACE:
        from fedproto_app import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With the interface, so that a notebook completes its names."""
    return sorted({*globals(), *__all__})
