"""The kind of process that the node's code runs in.

A SuperNode's process carries out one order and ends, so state lies on the disk. An actor of
Flower's simulation, or a worker of the engine, lives for the whole run. A worker keeps state in
memory and writes it when `flush` is called.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from fedproto_app.node.device import memory_of
from fedproto_app.node.store import ClientStore

_STATE_SHARE = 1 / 3  # of a GPU's memory, for states that stay there


class _Memory:
    """The stores of a worker's nodes, by folder.

    limit: bytes of states that may wait in each store. nodes: number of nodes in the simulation.
    """

    def __init__(self, limit: int, nodes: int) -> None:
        self.limit, self.nodes = limit, nodes
        self.stores: dict[Path, ClientStore] = {}


_memory: _Memory | None = None  # set in a worker that keeps state in memory
_worker = False
_number = 0


def become_worker(memory: int = 0, nodes: int = 1, number: int = 0) -> None:
    """Make this process a worker of a simulation of so many nodes.

    memory: bytes for the state of a node; 0 keeps no state in memory. number: the worker's, from 0.
    """
    global _memory, _worker, _number
    _worker, _number = True, number
    _memory = _Memory(memory, nodes) if memory else None


def number() -> int:
    """Return this process's number among the workers, 0 if it is not a worker."""
    return _number


def in_simulation() -> bool:
    """Return whether this process is part of a simulation, not of a SuperNode."""
    ray = sys.modules.get("ray")
    return _worker or (ray is not None and bool(ray.is_initialized()))


def store_of(folder: Path, clients: int, device: torch.device | None = None) -> ClientStore:
    """Return the store of a node with so many clients. device: the device of the node."""
    if _memory is None:
        return ClientStore(folder)
    if folder not in _memory.stores:
        device_limit = int(_STATE_SHARE * memory_of(device) / _memory.nodes) if device else 0
        _memory.stores[folder] = ClientStore(
            folder, _memory.limit, lasting=True, clients=clients, device_limit=device_limit
        )
    return _memory.stores[folder]


def flush() -> None:
    """Write all state that waits in memory."""
    for store in _memory.stores.values() if _memory else ():
        store.flush()
