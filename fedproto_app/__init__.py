"""Personalised federated learning on heterogeneous time series and images, as a Flower app.

The names below are the Python interface (docs/python.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedproto_app.core.version import __version__

if TYPE_CHECKING:
    from fedproto_app.api import (
        ClientModel,
        Run,
        check,
        compare,
        load,
        report,
        resume,
        run,
        sweep,
        try_file,
    )
    from fedproto_app.forecaster import Forecaster

__all__ = [
    "ClientModel",
    "Forecaster",
    "Run",
    "__version__",
    "check",
    "compare",
    "load",
    "report",
    "resume",
    "run",
    "sweep",
    "try_file",
]


def __getattr__(name: str) -> Any:
    """Import the interface only when it is asked for, because every process imports this module."""
    if name == "Forecaster":
        from fedproto_app.forecaster import Forecaster

        return Forecaster
    if name in __all__:
        from fedproto_app import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Include the interface, so that a notebook can complete its names."""
    return sorted({*globals(), *__all__})
