"""A grid whose nodes answer when a test says, or never."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity


class FakeGrid:
    """Nodes answer what `answers` says when the message has waited so many looks."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
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
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.sent.append(message)
            ids.append(message.metadata.message_id if self.takes else "")
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
