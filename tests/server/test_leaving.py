"""A site that drains leaves between rounds, and nobody calls that a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import LEAVING
from tests.local_grid import run_locally, small_settings, synthetic_nodes
from tests.reported import fields_of


def leaving(reply: Message, reason: str = LEAVING) -> Message:
    """Return the reply of a gate that starts no more work."""
    names = fields_of(reply)["names"]
    empty: dict[str, Any] = {"names": [], "samples": [], "losses": {}, "metrics": []}
    fields = {**empty, "kept_rounds": [], "classes": [], "failed": dict.fromkeys(names, reason)}
    record = ConfigRecord({"json": json.dumps(fields).encode(), "seconds": 0.0})
    reply.content = RecordDict({"told": record})
    return reply


def run(tmp_path: Path, nodes: tuple[int, ...], reason: str = LEAVING) -> list[dict[str, Any]]:
    def tamper(node_id: int, reply: Message) -> Message:
        training = reply.metadata.message_type == "train"
        if training and reply.metadata.group_id == "2" and node_id - 1000 in nodes:
            return leaving(reply, reason)
        return reply

    settings = small_settings(tmp_path, **{"nodes.maximum-failed-share": 0.1})
    folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / "state"), tamper=tamper)
    return [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]


def test_who_drains_is_not_counted_as_failed(tmp_path: Path) -> None:
    lines = run(tmp_path, (1,))
    assert [line["clients"] for line in lines] == [8, 4, 8]
    assert not any(line["refused"] for line in lines)


def test_any_other_reason_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="1 of 2 nodes gave no usable reply"):
        run(tmp_path, (1,), "no room")


def test_when_all_leave_the_run_stops(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="2 of 2 nodes gave no usable reply"):
        run(tmp_path, (0, 1))
