"""Put a gate around a program of Flower: `client_gate` and `server_gate` replace its steps."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def replace_steps(module: str, **ours: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Replace the module's functions of these names. Return the original functions.

    Flower does not guarantee these names. If one is missing, nothing must run, so SystemExit is
    raised.
    """
    steps = vars(import_module(module))
    if missing := ours.keys() - steps.keys():
        raise SystemExit(f"no gate for this Flower: {module} has no {', '.join(sorted(missing))}")
    before = {name: steps[name] for name in ours}
    steps.update(ours)
    return before
