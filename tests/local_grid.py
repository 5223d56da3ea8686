"""A Grid in this process: nodes are calls of the ClientApp, so logic is tested without Flower's
processes. Records pass through Flower's own serialisation, as they do on a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.client_app import app as client_app
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server_app import conduct
from fedproto_app.settings import Settings, flat_settings, settings_from


class LocalGrid(Grid):
    """Nodes with the given configs; `tamper` may change or drop (None) a node's reply."""

    def __init__(
        self,
        settings: Settings,
        node_configs: list[dict[str, Any]],
        tamper: Callable[[int, Message], Message | None] | None = None,
    ) -> None:
        # Flower's processes set this before an app runs; Message needs it.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.contexts = {
            1000 + index: Context(
                run_id=1,
                node_id=1000 + index,
                node_config=config,
                state=RecordDict(),
                run_config=flat_settings(settings),
            )
            for index, config in enumerate(node_configs)
        }
        self.connected = set(self.contexts)
        self.tamper = tamper or (lambda node_id, reply: reply)
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}  # not yet pulled, by the order's id

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise AssertionError("not needed")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated in Flower")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.connected)

    def get_nodes(self) -> Iterable[Any]:
        raise AssertionError("not needed")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Nodes answer at once, and their replies wait to be pulled."""
        ids = []
        for message in messages:
            self.sent.append(message)
            node_id, message_id = message.metadata.dst_node_id, str(uuid4())
            message.metadata.__dict__["_message_id"] = message_id
            ids.append(message_id)
            if node_id not in self.connected:
                continue
            reply = self.tamper(node_id, self._answer(message, node_id))
            if reply is not None:
                self._replies[message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in list(message_ids) if one in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message, node_id: int) -> Message:
        message.content = _over_the_wire(message.content)
        try:
            reply = client_app(message, self.contexts[node_id])
        except Exception as error:
            return Message(Error(code=6, reason=repr(error)), reply_to=message)
        reply.content = _over_the_wire(reply.content)
        return reply


def _over_the_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


def synthetic_nodes(
    count: int, state_dir: Path, source: str = "synthetic-traffic"
) -> list[dict[str, Any]]:
    """Node configs that share an embedded source's clients among so many nodes."""
    return [
        {
            "partition-id": index,
            "num-partitions": count,
            "data-source": source,
            "state-dir": str(state_dir),
        }
        for index in range(count)
    ]


def small_settings(tmp_path: Path, **changes: Any) -> Settings:
    """A run of seconds: 8 synthetic clients, a small encoder, 3 rounds."""
    config: dict[str, Any] = {
        "method": "fuels",
        "rounds": 3,
        "model.representation-dim": 16,
        "data.synthetic.clients": 8,
        "data.synthetic.days": 14,
        "fuels.prototype-dim": 4,
        "nodes.start-deadline": 5.0,
        "nodes.round-deadline": 0.2,  # nodes here have answered when they are first asked for it
        "output.dir": str(tmp_path / "runs"),
        "output.name": "test",
        "output.pictures": False,
        **changes,
    }
    return settings_from(config)


def digits_settings(tmp_path: Path, **changes: Any) -> Settings:
    """A run of seconds on images: 8 clients at two stages, a small CNN, 4 rounds."""
    return small_settings(
        tmp_path,
        **{
            "task": "classification",
            "method": "gldp",
            "keep": "last",
            "rounds": 4,
            "local-epochs": 2,
            "data.source": "digits",
            "data.partition.clients": 8,
            "data.partition.classes": 3,
            "data.partition.stages": 2,
            "data.partition.imbalance-factor": 4.0,
            "data.partition.samples": 12,
            "model.width": 4,
            "optimizer.name": "sgd",
            "optimizer.learning-rate": 0.05,
            "classification.batch-size": 5,
            "classification.flip": False,
            "gldp.encoder-epochs": 2,
            "gldp.head-epochs": 2,
            **changes,
        },
    )


def sequence_settings(tmp_path: Path, **changes: Any) -> Settings:
    """A run of seconds on sequences: 8 clients in 2 clusters, small encoders, 4 task rounds."""
    return small_settings(
        tmp_path,
        **{
            "task": "sequence-classification",
            "method": "fed-react",
            "rounds": 4,
            "data.source": "synthetic-air-writing",
            "data.synthetic.sequences": 320,
            "data.sequences.steps": 16,
            "data.clusters.clients": 8,
            "data.clusters.clusters": 2,
            "model.embedding-dim": 6,
            "model.hidden-dim": 8,
            "sequence.batch-size": 10,
            "encoder.rounds": 2,
            "encoder.steps": 3,
            "encoder.blocks": 3,
            "encoder.channels": 6,
            "encoder.reduced-dim": 8,
            "encoder.output-dim": 10,
            "fed-react.clusters": 2,
            "fed-react.samples": 16,
            **changes,
        },
    )


def regression_settings(tmp_path: Path, **changes: Any) -> Settings:
    """As `sequence_settings`, with vehicles whose battery is predicted."""
    return sequence_settings(
        tmp_path,
        **{
            "task": "sequence-regression",
            "data.source": "synthetic-ev",
            "data.sequences.window": 20,
            "data.sequences.steps": 0,
            "data.sequences.scaling": "client",
            "data.sequences.target-scale": 100.0,
            "data.clusters.scheme": "given",
            "data.synthetic.clients": 8,
            **changes,
        },
    )


def run_locally(
    settings: Settings, node_configs: list[dict[str, Any]], **grid_options: Any
) -> tuple[RunFolder, LocalGrid]:
    """A whole run in this process."""
    grid = LocalGrid(settings, node_configs, **grid_options)
    with RunFolder(settings) as folder:
        conduct(grid, settings, folder)
    return folder, grid
