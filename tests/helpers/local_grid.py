"""Small runs in this process: the engine's grid without processes, with nodes that tests can
alter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Message

from fedproto_app.core.methods import METHODS
from fedproto_app.engine.local import AT_ONCE, nodes_sharing
from fedproto_app.engine.local import LocalGrid as EngineGrid
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server_app import conduct
from fedproto_app.settings import DataSettings, Settings, settings_from
from fedproto_app.tasks.table import small_run

BAD_NODE = 1001  # Flower's id of the second node

Tamper = Callable[[int, Message], Message | None]  # of a node's id and its reply

GridT = TypeVar("GridT", bound="LocalGrid")


class LocalGrid(EngineGrid):
    """Nodes with the given configs, where `tamper` may change or drop (None) a node's reply.

    connected: ids of the connected nodes. sent: the messages to nodes so far.
    """

    def __init__(
        self,
        settings: Settings,
        node_configs: list[dict[str, Any]],
        tamper: Tamper | None = None,
    ) -> None:
        super().__init__(settings, node_configs)
        self.connected = set(self.contexts)
        self.tamper = tamper or (lambda node_id, reply: reply)
        self.sent: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.connected)

    def answer(self, message: Message) -> Message | None:
        self.sent.append(message)
        node_id = message.metadata.dst_node_id
        reply = super().answer(message) if node_id in self.connected else None
        return None if reply is None else self.tamper(node_id, reply)


def synthetic_nodes(
    count: int, state_dir: Path, source: str = "synthetic-traffic"
) -> list[dict[str, Any]]:
    """Return configs of so many nodes that share an embedded source's clients."""
    return nodes_sharing(DataSettings(source=source), count, state_dir)


FIRST = {
    "forecasting": "fuels",
    "classification": "gldp",
    "sequence-classification": "fed-react",
    "sequence-regression": "fed-react",
}


def small_settings(tmp_path: Path, task: str = "forecasting", **changes: Any) -> Settings:
    """Return settings of a short run of the task's first method: 8 clients, small models."""
    output = {"output.dir": str(tmp_path / "runs"), "output.name": "test"}
    method = changes.get("method", FIRST[task])
    small = METHODS[method].small if method in METHODS else {}
    config = {**small_run(task), **AT_ONCE, "method": method, **small, **output, **changes}
    return settings_from(config)


def digits_settings(tmp_path: Path, **changes: Any) -> Settings:
    """Return settings of a short run on images: 8 clients at two stages, a small CNN, 4 rounds."""
    return small_settings(tmp_path, "classification", **changes)


def sequence_settings(tmp_path: Path, **changes: Any) -> Settings:
    """Return settings of a short run on sequences: 8 clients, 2 clusters, small encoders, 4
    rounds."""
    return small_settings(tmp_path, "sequence-classification", **changes)


def regression_settings(tmp_path: Path, **changes: Any) -> Settings:
    """Return `sequence_settings` with the duration of a writing as the target."""
    return small_settings(tmp_path, "sequence-regression", **changes)


def run_locally(
    settings: Settings, node_configs: list[dict[str, Any]], **grid_options: Any
) -> tuple[RunFolder, LocalGrid]:
    """Make a whole run in this process."""
    return run_on(LocalGrid(settings, node_configs, **grid_options), settings)


def run_on(grid: GridT, settings: Settings) -> tuple[RunFolder, GridT]:
    """Make a whole run on this grid."""
    with RunFolder(settings) as folder:
        conduct(grid, folder)
    return folder, grid


def run_small(
    tmp_path: Path,
    task: str = "forecasting",
    *,
    nodes: int = 2,
    grid: Callable[..., LocalGrid] = LocalGrid,
    tamper: Tamper | None = None,
    **changes: Any,
) -> tuple[RunFolder, LocalGrid]:
    """Make a short run of nodes that share the clients of the task's embedded source."""
    settings = small_settings(tmp_path, task, **changes)
    configs = nodes_sharing(settings.data, nodes, tmp_path / "state")
    return run_on(grid(settings, configs, tamper=tamper), settings)
