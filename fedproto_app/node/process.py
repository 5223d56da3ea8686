"""What kind of process the node's code runs in.

A SuperNode's process does one order and ends, so state lies on the disk. An actor of Flower's
simulation, or a worker of the engine in the process, lives for the whole run. A worker keeps state
in memory and writes it when it is told to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedproto_app.node.memory_store import MemoryStore
from fedproto_app.node.store import ClientStore


class _Memory:
    """The stores of a worker's nodes, by folder. limit: bytes of states that may wait in each."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.stores: dict[Path, MemoryStore] = {}


_memory: _Memory | None = None  # of a worker that keeps state in memory
_worker = False


def become_worker(memory: int = 0) -> None:
    """This process is a worker of a simulation. memory: bytes for the state of a node; 0: none."""
    global _memory, _worker
    _worker = True
    _memory = _Memory(memory) if memory else None


def in_simulation() -> bool:
    """Whether this process is part of a simulation, not a SuperNode's."""
    ray = sys.modules.get("ray")
    return _worker or (ray is not None and bool(ray.is_initialized()))


def store_of(folder: Path, clients: int, writer: int = 0) -> ClientStore:
    """The state of so many clients in a node's folder. writer: this process's number there."""
    if _memory is None:
        return ClientStore(folder, writer)
    if folder not in _memory.stores:
        _memory.stores[folder] = MemoryStore(folder, _memory.limit, clients, writer)
    return _memory.stores[folder]


def flush() -> None:
    """Write all state that waits in memory."""
    for store in _memory.stores.values() if _memory else ():
        store.flush()
