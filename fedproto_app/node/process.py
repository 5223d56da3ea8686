"""Tell what kind of process runs the node's code.

A SuperNode's process carries out one order and ends, so the state must be on the disk. An actor of
Flower's simulation, or a worker of the engine, lives for the whole run. A worker keeps state in
memory and writes it when `store.flush` is called. A SuperNode starts a process for each message, so
this module imports nothing slow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_number: int | None = None  # set in a worker


def become_worker(number: int = 0) -> None:
    """Make this process a worker of a simulation, with this number among the workers."""
    global _number
    _number = number


@contextmanager
def as_worker() -> Iterator[None]:
    """Make this process the only worker of a simulation during a ``with`` block."""
    global _number
    before = _number
    become_worker()
    try:
        yield
    finally:
        _number = before


def worker_number() -> int:
    """Return this process's number among the workers, or 0 if it is not a worker."""
    return _number or 0


def in_simulation() -> bool:
    """Return whether this process is part of a simulation and not of a SuperNode."""
    ray = sys.modules.get("ray")
    return _number is not None or (ray is not None and bool(ray.is_initialized()))
