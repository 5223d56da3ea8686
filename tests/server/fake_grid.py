"""Grids without nodes: their answers are what a test says, when it says so, or never."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedproto_app.core.messages import NodeRoster
from fedproto_app.core.wire import write_roster
from fedproto_app.engine.flower_parts import FIRST_ID, number
from fedproto_app.settings import Settings
from tests.helpers.local_grid import LocalGrid


class RosterGrid(LocalGrid):
    """Deployed nodes 1000, 1001, …, which answer a roster query with these rosters.

    keys: their public keys. registered: the names that the operator registered them under.
    """

    def __init__(
        self,
        rosters: Iterable[NodeRoster],
        keys: Sequence[bytes] = (),
        registered: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(Settings(), [])
        self.rosters = dict(enumerate(rosters, FIRST_ID))
        self.keys = dict(enumerate(keys, FIRST_ID))
        self.registered = registered or {}
        self.connected = set(self.rosters)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=i, public_key=self.keys.get(i, b""), name=self.registered.get(i, ""))
            for i in self.connected
        ]

    def answer(self, message: Message) -> Message | None:
        self.sent.append(message)
        node_id = message.metadata.dst_node_id
        if node_id not in self.connected:
            return None
        return self.tamper(node_id, write_roster(self.rosters[node_id], reply_to=message))


class FakeGrid:
    """Nodes answer what `answers` says when the message has waited so many looks."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.looks: dict[str, int] = {}
        self.takes: bool = True
        self.fails_after = 0  # looks until an error comes
        self.away: dict[int, int] = {}  # nodes that are seen again after so many looks
        # By node and type: looks until the answer comes, of one message after the other.
        self.answers: dict[tuple[int, str], list[int | Error | None]] = {}

    def get_node_ids(self) -> list[int]:
        self.away = {node: looks - 1 for node, looks in self.away.items()}
        nodes = {message.metadata.dst_node_id for message in self.sent}
        return [node for node in nodes if self.away.get(node, 0) <= 0]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message_id = number(message)
            self.sent.append(message)
            ids.append(message_id if self.takes else "")
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        requested = set(message_ids)
        for message in self.sent:
            metadata = message.metadata
            if metadata.message_id not in requested:
                continue
            after = self._after(message)
            looked = self.looks[metadata.message_id] = self.looks.get(metadata.message_id, 0) + 1
            if isinstance(after, Error):
                if looked <= self.fails_after:
                    continue
                replies.append(Message(after, reply_to=message))
            elif after is not None and looked > after:
                replies.append(Message(RecordDict(), reply_to=message))
        return replies

    def _after(self, message: Message) -> int | Error | None:
        metadata = message.metadata
        plan = self.answers.get((metadata.dst_node_id, metadata.message_type), [0])
        like = [
            sent_message.metadata.message_id
            for sent_message in self.sent
            if (sent_message.metadata.dst_node_id, sent_message.metadata.message_type)
            == (metadata.dst_node_id, metadata.message_type)
        ]
        return plan[min(like.index(metadata.message_id), len(plan) - 1)]

    def count(self, node: int, kind: str = MessageType.TRAIN) -> int:
        keys = [
            (message.metadata.dst_node_id, message.metadata.message_type) for message in self.sent
        ]
        return keys.count((node, kind))


def order(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN, group_id="3")
