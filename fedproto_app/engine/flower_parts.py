"""The parts of Flower that the engine's grids and workers share: identity, ids, serialisation.

In Flower's own runs, its processes set the identity before an app runs, and its SuperLink numbers
the messages. Here the engine does both.
"""

from __future__ import annotations

from typing import NoReturn
from uuid import uuid4

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1
FIRST_ID = 1000  # Flower's id of the first node
RAISED = 6  # the code of Flower's error if a ClientApp raised an exception


class EngineGrid(Grid):
    """A grid that has no Flower run. The app never asks for the run."""

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> NoReturn:
        raise AssertionError("the app asks for no run")

    def create_message(self, *args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("deprecated in Flower")


def take_identity() -> None:
    """Allow this process, which Flower did not start, to create messages."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = RUN_ID, 1, 1


def number(message: Message) -> str:
    """Give the message an id, as a SuperLink does."""
    message_id = uuid4().hex
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


def to_bytes(message: Message) -> bytes:
    """Return the message serialised as for the network."""
    data: bytes = message_to_proto(message).SerializeToString()
    return data


def from_bytes(data: bytes) -> Message:
    """Return the message that `to_bytes` serialised."""
    return message_from_proto(ProtoMessage.FromString(data))
