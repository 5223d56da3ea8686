"""A node's state on a Ray cluster of several machines.

Flower gives an order to any idle actor, on any machine of the cluster. State stays where the run
was started: in the run's folder on the cluster's head. An actor on another machine borrows the
node's folder from there, works with the copy, and gives changed files back when its order is done.
An actor at the head uses the folder itself, and so do all actors of a Ray on one machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.events import tell
from fedproto_app.core.whole_file import make_private, write_whole
from fedproto_app.node.folder import name_of, state_dir
from fedproto_app.node.process import RAY_HEAD
from fedproto_app.node.site import read_site
from fedproto_app.settings import settings_from

Files = dict[str, bytes]  # contents by name, relative to the node's folder
Version = dict[str, tuple[int, int]]  # time of the last change in ns and size of each file


@contextmanager
def state_at_hand(context: Context, run: str, token: str) -> Iterator[Context]:
    """Return the context to carry out an order of the run with.

    On another machine than the head its state directory holds a copy of the node's state.

    run, token: the run's name and its random mark.

    The copy's changes reach the head when the block ends without an exception. Raises
    `FedProtoError` if the state has changed there meanwhile.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or (keeper := _keeper()) is None:
        yield context
        return
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedproto-state-") as root:
        at_hand = replace(context, node_config={**context.node_config, "state-dir": root})
        node, home = _name_and_folder(context, run, token)
        _, copy = _name_and_folder(at_hand, run, token)
        version, files = ray.get(keeper.lend.remote(home))
        _write(copy, files)
        seconds = time.monotonic() - start
        yield at_hand
        start = time.monotonic()
        changed = {
            name: content for name, content in _read(copy).items() if files.get(name) != content
        }
        if changed and not ray.get(keeper.take_back.remote(home, version, changed)):
            raise FedProtoError(
                f"{home}: another order has changed the state of node {node!r} while it was "
                "borrowed; what this order changed is lost"
            )
    seconds += time.monotonic() - start
    borrowed, returned = (sum(map(len, f.values())) for f in (files, changed))
    tell("borrowed", node=node, bytes=borrowed, returned=returned, seconds=seconds)


class StateKeeper:
    """An actor at the head that lends the folders of nodes, one call after the other."""

    def lend(self, folder: Path) -> tuple[Version, Files]:
        """Return the node's files, and their version to give them back with."""
        from fedproto_app.node.state_file import StateFile  # imports torch

        with StateFile(folder).reading():  # rolls a killed process's transaction back
            return _version(folder), _read(folder)

    def take_back(self, folder: Path, version: Version, changed: Files) -> bool:
        """Write changed files and return True, or return False if the version is another."""
        if _version(folder) != version:
            return False
        _write(folder, changed, durable=True)
        return True


@lru_cache(maxsize=1)
def _keeper() -> Any:
    """Return a handle of the run's state keeper, None if this process works at the head."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    head = next(node["NodeID"] for node in ray.nodes() if RAY_HEAD in node["Resources"])
    if head == ray.get_runtime_context().get_node_id():
        return None
    options = {
        "name": StateKeeper.__name__,  # among the actors of this run
        "get_if_exists": True,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(head, soft=False),
    }
    return ray.remote(StateKeeper).options(**options).remote()


def _name_and_folder(context: Context, run: str, token: str) -> tuple[str, Path]:
    site = read_site(context.node_config, deployed=False)
    settings = settings_from(context.run_config)
    folder = state_dir(context, settings, site, run, token, simulated=True)
    return name_of(context, site), folder


def _version(folder: Path) -> Version:
    stats = {name: (folder / name).stat() for name in _names(folder)}
    return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}


def _read(folder: Path) -> Files:
    return {name: (folder / name).read_bytes() for name in _names(folder)}


def _write(folder: Path, files: Files, *, durable: bool = False) -> None:
    for name, content in files.items():
        make_private((folder / name).parent)
        write_whole(folder / name, content, durable=durable, private=True)


def _names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
