"""A Grid without processes. To ask a node is to call its ClientApp, which answers at once.

It serves checks of logic, small runs and tests. Records pass through Flower's own serialisation,
as on a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict, UserConfig

from fedproto_app.client_app import app as client_app
from fedproto_app.engine.flower_parts import (
    FIRST_ID,
    RAISED,
    RUN_ID,
    EngineGrid,
    from_bytes,
    number,
    take_identity,
    to_bytes,
)
from fedproto_app.settings import DataSettings, Settings, flat_settings

# Settings for local runs. A node that does not answer at once will never answer.
AT_ONCE: Mapping[str, object] = {"nodes.start-deadline": 5.0, "nodes.round-deadline": 0.2}


def nodes_sharing(data: DataSettings, count: int, state_dir: Path) -> list[UserConfig]:
    """Return the configs of `count` nodes that divide a source's clients among them."""
    return [
        {
            "partition-id": index,
            "num-partitions": count,
            "data-source": data.source,
            "data-path": data.path,
            "data-known": data.known,
            "data-covariates": data.covariates,
            "state-dir": str(state_dir),
        }
        for index in range(count)
    ]


class LocalGrid(EngineGrid):
    """A grid of nodes. Their configs are what they would get by `--node-config`."""

    def __init__(self, settings: Settings, node_configs: Sequence[UserConfig]) -> None:
        take_identity()
        self.contexts = {
            FIRST_ID + index: Context(
                run_id=RUN_ID,
                node_id=FIRST_ID + index,
                node_config=config,
                state=RecordDict(),
                run_config=flat_settings(settings),
            )
            for index, config in enumerate(node_configs)
        }
        self.replies: dict[str, Message] = {}  # not yet pulled; keys: the orders' ids

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(number(message))
            if (reply := self.answer(message)) is not None:
                self.replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [
            self.replies.pop(message_id)
            for message_id in list(message_ids)
            if message_id in self.replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def answer(self, message: Message) -> Message | None:
        """Return the node's reply to a message, or None if there is none."""
        try:
            context = self.contexts[message.metadata.dst_node_id]
            reply = client_app(from_bytes(to_bytes(message)), context)
        except Exception as error:
            return Message(Error(code=RAISED, reason=repr(error)), reply_to=message)
        return from_bytes(to_bytes(reply))
