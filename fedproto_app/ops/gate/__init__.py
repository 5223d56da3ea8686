"""The gate around a program of Flower: `client_gate` and `server_gate` replace steps of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_TOKEN = 3  # the descriptor through which docker/gate/ hands over Flower's token


def replace_steps(module: str, **ours: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Replace the module's functions of these names and return the original functions.

    Flower does not guarantee these names. If one is missing, nothing may run: SystemExit.
    """
    steps = vars(import_module(module))
    if missing := ours.keys() - steps.keys():
        raise SystemExit(f"no gate for this Flower: {module} has no {', '.join(sorted(missing))}")
    before = {name: steps[name] for name in ours}
    steps.update(ours)
    return before


def take_token() -> None:
    """Read Flower's token from its pipe, and close the pipe.

    The token joins the arguments that Flower's program reads, but not the process's command line,
    which every process of the machine can see.
    """
    with os.fdopen(_TOKEN) as pipe:
        sys.argv += ["--token", pipe.read().strip()]
