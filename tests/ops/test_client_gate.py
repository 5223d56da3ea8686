"""The gate: accepted orders, refusals, and the audit log."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Context, Error, Message, MessageType, RecordDict

from fedproto_app.core.messages import LEAVING, Guidance, NodeRoster, Order, Reply
from fedproto_app.core.wire import (
    ReplyFields,
    alive_query,
    array_record,
    read_record,
    roster_query,
    write_order,
    write_reply,
)
from fedproto_app.engine.flower_parts import from_bytes, number, take_identity, to_bytes
from fedproto_app.ops.gate.client_gate import App, Gate
from fedproto_app.ops.gate.confinement import Ended, parts_of

APP = App("me/mine", "1.0", b"a program")


class FakeApart:
    """A separate process with a fixed answer. jobs: the jobs that it received."""

    def __init__(self, answer: bytes | Ended = b"", leftover: int = 0) -> None:
        self.answer, self.leftover, self.ended = answer, leftover, 0
        self.jobs: list[bytes] = []

    def do(self, job: bytes, seconds: float, byte_limit: int) -> bytes:
        self.jobs.append(job)
        if isinstance(self.answer, Ended):
            raise self.answer
        return self.answer

    def end(self) -> int:
        self.ended += 1
        return self.leftover


STATE_DIR = 'state-dir = "state"\n'


def site_of(folder: Path, table: str = "", state_dir: str = STATE_DIR) -> dict[str, Any]:
    file = folder / "site.toml"
    text = f'name = "harbour"\naudit = "audit.jsonl"\n{state_dir}'
    file.write_text(f'{text}[data]\nsource = "synthetic-traffic"\n{table}')
    return {"site": str(file)}


def carried_out(
    folder: Path,
    message: Message,
    table: str = "",
    apart: FakeApart | None = None,
    config: dict[str, Any] | None = None,
    state_dir: str = STATE_DIR,
) -> tuple[Message, FakeApart]:
    take_identity()
    number(message)
    context = Context(
        run_id=7,
        node_id=1,
        node_config=site_of(folder, table, state_dir),
        state=RecordDict(),
        run_config={"method": "fuels", "local-epochs": 3, **(config or {})},
    )
    if apart is None:
        apart = FakeApart(to_bytes(good_reply(message)))
    gate = Gate(apart)  # type: ignore[arg-type]
    gate.receive(APP.content, skip_prompt=True)
    client_app = gate.loader(default_app_ref="", app_path=None, multi_app=True)
    reply = client_app(APP.name, APP.version, APP.digest)(message=message, context=context)
    assert apart.ended == 1
    return reply, apart


def order(arrays: int = 0) -> Message:
    take_identity()
    arrays_sent = {"head": np.zeros(arrays, np.float32)} if arrays else {}
    return write_order(
        Order("run", "0a", 2, ["c1", "c2"], guidance=Guidance(arrays_sent)), 1, MessageType.TRAIN
    )


def good_reply(message: Message) -> Message:
    arrays = {"prototypes": np.ones((2, 3), np.float32)}
    return write_reply(Reply(["c1", "c2"], [5, 6], arrays=arrays), reply_to=message)


def audit_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "audit.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def reason(reply: Message) -> str:
    failed = read_record(reply.content, ReplyFields).failed
    assert failed.keys() == {"c1", "c2"}
    (why,) = set(failed.values())
    return why


def test_an_order_is_handed_on_and_written_down(tmp_path: Path) -> None:
    reply, apart = carried_out(tmp_path, order(arrays=10))
    assert read_record(reply.content, ReplyFields).names == ["c1", "c2"]
    header, _, handed, content = parts_of(apart.jobs[0])
    assert json.loads(header)["app"] == "installed"
    assert content == b""  # the run's app is not passed on
    assert from_bytes(handed).metadata.message_type == "train"
    first, last = audit_of(tmp_path)
    assert (first["event"], last["event"]) == ("order", "reply")
    assert (first["node"], first["run"], first["app"]) == ("harbour", 7, "me/mine")
    assert first["digest"] == APP.digest
    assert first["settings"] == {"method": "fuels", "local-epochs": 3}
    assert first["received_bytes"] > 40
    assert last["arrays"] == {"prototypes": ["float32", 2, 3]}
    assert (last["clients"], last["failed"]) == (2, 0)
    assert last["sent_bytes"] > last["array_bytes"] >= 24


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[code]\nrun = 'listed'", f"SHA-256 {APP.digest}, which this site's code"),
        ("[limits]\nmessage-mb = 1", "limits.message-mb = 1"),
        ("[limits]\norders-an-hour = 0", "limits.orders-an-hour = 0"),
        ("[code]\nrun = 'listed'\ndigests = ['x']", "code.digests"),
    ],
)
def test_what_is_refused_reaches_nobody(tmp_path: Path, table: str, message: str) -> None:
    apart = FakeApart()
    reply, _ = carried_out(tmp_path, order(arrays=300_000), table, apart)
    assert message in reason(reply)
    assert apart.jobs == []


def test_what_is_listed_is_handed_on(tmp_path: Path) -> None:
    table = f"[code]\nrun = 'listed'\ndigests = ['{APP.digest}']"
    _, apart = carried_out(tmp_path, order(), table)
    header, _, _, content = parts_of(apart.jobs[0])
    assert json.loads(header)["app"] == "brought"
    assert content == APP.content


def test_code_in_settings_is_refused(tmp_path: Path) -> None:
    config = {"data.source": "shutil:rmtree"}
    reply, apart = carried_out(tmp_path, order(), apart=FakeApart(), config=config)
    assert "data.source = 'shutil:rmtree'" in reason(reply)
    assert apart.jobs == []
    assert audit_of(tmp_path)[0]["event"] == "refused"


def test_orders_are_counted(tmp_path: Path) -> None:
    table = "[limits]\norders-an-hour = 2"
    replies = [carried_out(tmp_path, order(), table)[0] for _ in range(3)]
    assert [len(read_record(reply.content, ReplyFields).names) for reply in replies] == [2, 2, 0]
    assert reason(replies[2]) == "this site carries out only limits.orders-an-hour = 2 orders"


def test_refused_orders_count_and_flood_no_log(tmp_path: Path) -> None:
    """Ten refusals a minute are written, so that older lines stay in the log."""
    table = "[limits]\norders-an-hour = 11\nmessage-mb = 1"
    large = order(arrays=300_000)
    replies = [carried_out(tmp_path, large, table, FakeApart())[0] for _ in range(12)]
    assert all("limits.message-mb = 1" in reason(reply) for reply in replies)
    assert [line["event"] for line in audit_of(tmp_path)] == ["refused"] * 10

    file = tmp_path / "audit.jsonl"
    minutes_ago = (datetime.now(UTC) - timedelta(minutes=2)).isoformat(timespec="seconds")
    lines = [{**line, "time": minutes_ago} for line in audit_of(tmp_path)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replies = [carried_out(tmp_path, order(), table)[0] for _ in range(2)]
    assert [len(read_record(reply.content, ReplyFields).names) for reply in replies] == [2, 0]
    assert reason(replies[1]) == "this site carries out only limits.orders-an-hour = 11 orders"
    assert [line["event"] for line in audit_of(tmp_path)[10:]] == ["order", "reply", "refused"]


def test_a_site_that_drains_begins_nothing(tmp_path: Path) -> None:
    (tmp_path / "drain").touch()
    apart = FakeApart()
    assert reason(carried_out(tmp_path, order(), "", apart)[0]) == LEAVING
    roster = carried_out(tmp_path, roster_query(1), "", FakeApart())[0]
    assert read_record(roster.content, NodeRoster).error == LEAVING
    alive = carried_out(tmp_path, alive_query(1), "", FakeApart())[0]
    assert not alive.has_error()
    assert apart.jobs == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Ended("was ended by signal 9"), "the site's gate ended the order: was ended by signal 9"),
        (b"\xff\x00 no message", "its answer is not a message"),
        (b"", "its answer is not a message"),
    ],
)
def test_a_process_that_fails_is_told(tmp_path: Path, answer: bytes | Ended, message: str) -> None:
    reply, _ = carried_out(tmp_path, order(), "", FakeApart(answer, leftover=3))
    assert message in reason(reply)
    events = [line["event"] for line in audit_of(tmp_path)]
    assert events == ["order", "ended", "left-behind", "reply"]


def test_processes_that_cannot_be_ended_are_told_before_the_gate_gives_up(tmp_path: Path) -> None:
    apart = FakeApart(Ended("was ended by signal 9"))
    apart.end = Mock(side_effect=Ended("processes that cannot be ended: [7]"))  # type: ignore[method-assign]
    with pytest.raises(Ended, match="cannot be ended"):
        carried_out(tmp_path, order(), "", apart)
    *_, last = audit_of(tmp_path)
    assert last["event"] == "ended"
    assert last["reason"] == "was ended by signal 9; processes that cannot be ended: [7]"


def test_an_app_that_raised_says_why(tmp_path: Path) -> None:
    message = order()
    number(message)
    raised = Message(Error(code=0, reason="ValueError: \x1b[31m"), reply_to=message)
    reply, _ = carried_out(tmp_path, message, "", FakeApart(to_bytes(raised)))
    assert reason(reply) == "the app failed: ValueError: \\x1b[31m"


def test_a_reply_goes_to_who_asked_whatever_it_says(tmp_path: Path) -> None:
    """An accepted app could address its answer to another run or node."""
    message, other_message = order(), order()
    number(other_message)
    crafted = good_reply(other_message)
    crafted.content["more"] = array_record({"file": np.zeros(100, np.float32)})
    reply, _ = carried_out(tmp_path, message, "", FakeApart(to_bytes(crafted)))
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert audit_of(tmp_path)[-1]["arrays"]["more/file"] == ["float32", 100]


def test_a_site_without_a_place_for_state_carries_out_nothing(tmp_path: Path) -> None:
    """Without it the clients would start anew in each round, and no budget would be kept."""
    reply, apart = carried_out(tmp_path, order(), state_dir="")
    assert "the site's file names no state-dir" in reason(reply)
    assert apart.jobs == []
