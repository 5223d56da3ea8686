"""The ClientApp's work around a node's orders."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import MessageType, RecordDict

from fedproto_app import __version__
from fedproto_app.core.messages import Order
from fedproto_app.core.wire import alive_query, roster_query, write_order
from fedproto_app.data.shard import Shard
from fedproto_app.node import orders
from fedproto_app.node.state_file import StateFile
from fedproto_app.strategies.fed_react import encoder as module
from fedproto_app.strategies.fed_react.encoder import represented
from tests.helpers.local_grid import (
    LocalGrid,
    run_locally,
    sequence_settings,
    small_settings,
    synthetic_nodes,
)
from tests.helpers.reported import Fields, fields_of


def flushes_denormals() -> bool:
    return not (torch.tensor([1e-40]) * torch.ones(1)).any()


def test_making_vectors_is_working_time_and_without_denormals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []

    def watched(*arguments: Any) -> Shard:
        flushed.append(flushes_denormals())
        clock.perf_counter()  # it takes its time
        return represented(*arguments)

    clock = SimpleNamespace(
        perf_counter=itertools.count(0, 1000).__next__, monotonic=time.monotonic
    )
    monkeypatch.setattr(module, "represented", watched)
    monkeypatch.setattr(orders, "time", clock)  # the node's own clock goes on as ever
    settings = sequence_settings(tmp_path, rounds=2, **{"encoder.rounds": 1})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    folder, _ = run_locally(settings, nodes)
    rounds = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    thousands = [int(line["node_seconds"] // 1000) for line in rounds]
    assert thousands == [2, 8, 8]  # two nodes; training and evaluation, with vectors
    assert flushed == [True] * 8
    assert not flushes_denormals()


NODE = 1000


def ask(
    grid: LocalGrid, phase: str = MessageType.TRAIN, number: int = 1, run: str = "run"
) -> Fields:
    """Return the node's reply to an order for two clients."""
    order = Order(run, "token", number, ["office-00", "residential-00"], evaluate=True)
    message = write_order(order, NODE, phase)
    (reply,) = grid.send_and_receive([message])
    assert not reply.has_error(), reply.error.reason
    return fields_of(reply)


def solo_node(tmp_path: Path, **config: Any) -> LocalGrid:
    """Return a node with two clients that train alone."""
    settings = small_settings(tmp_path, method="solo", **{"data.synthetic.clients": 2})
    common = {"data-source": "synthetic-traffic", "state-dir": str(tmp_path / "state")}
    more = {"node-name": "harbour", "least-periods": 0, **config}
    return LocalGrid(settings, [{**common, **more}])


def test_a_node_that_is_alive_says_so_without_loading_anything(tmp_path: Path) -> None:
    grid = solo_node(tmp_path, **{"data-source": "no-such-source"})
    (reply,) = grid.send_and_receive([alive_query(NODE)])
    assert not reply.has_error()
    assert dict(reply.content) == {}
    assert not (tmp_path / "state").exists()


def test_a_node_tells_a_server_of_an_earlier_version_that_they_do_not_fit(tmp_path: Path) -> None:
    query = roster_query(NODE)
    query.content = RecordDict()  # it says nothing of a protocol
    (reply,) = solo_node(tmp_path).send_and_receive([query])
    told = f"the server runs fedproto-app of an unknown version, this node {__version__}: "
    assert fields_of(reply)["error"].startswith(told)


def test_a_full_disk_fails_the_clients_of_one_order_with_one_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = solo_node(tmp_path)
    ask(grid)
    [file] = (tmp_path / "state").rglob("state.sqlite")
    before = file.read_bytes()
    connect = StateFile._connect

    def without_space(self: StateFile, mode: str) -> sqlite3.Connection:
        database = connect(self, mode)
        database.execute("PRAGMA max_page_count = 1")  # SQLite takes the pages there are
        return database

    with monkeypatch.context() as full:
        full.setattr(StateFile, "_connect", without_space)
        assert ask(grid, MessageType.EVALUATE, 2)["failed"] == {}  # nothing to write
        reply = ask(grid, MessageType.TRAIN, 2)
    reason = "cannot write its state: No space left on device"
    assert reply["failed"] == {"office-00": reason, "residential-00": reason}
    assert reply["names"] == []
    assert file.read_bytes() == before  # nothing torn, nothing lost
    reply = ask(grid, MessageType.TRAIN, 2)  # there is space again
    assert reply["names"] == ["office-00", "residential-00"]
    assert reply["failed"] == {}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"data-source": "wide-csv", "data-path": "/no/a.csv"}, "/no/a.csv: no such file"),
        ({"data-rot": "/data"}, "node config: data-rot: unknown key"),
        ({"node-name": "a/b"}, "node config: node-name = 'a/b'"),
        ({"device": "cuda:99"}, "device = 'cuda:99': this machine has"),
    ],
)
def test_the_clients_reason_names_what_the_operator_can_mend(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    failed = ask(solo_node(tmp_path, **config))["failed"]
    assert list(failed) == ["office-00", "residential-00"]
    assert all(failure.startswith(reason) for failure in failed.values())


def test_state_that_cannot_be_written_at_all_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    reason = ask(solo_node(tmp_path))["failed"]["office-00"]
    assert reason.startswith(f"cannot write its state: Not a directory: {tmp_path}")


def test_state_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "state" / "run-token")
    reason = ask(solo_node(tmp_path))["failed"]["office-00"]
    assert f"outside state-dir = {tmp_path / 'state'}" in reason
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_server_cannot_choose_where_a_node_writes(tmp_path: Path) -> None:
    reason = ask(solo_node(tmp_path), run="../../elsewhere")["failed"]["office-00"]
    assert reason.startswith("run = '../../elsewhere': must consist of letters")
    assert not (tmp_path / "state").exists()


def test_data_that_break_while_they_are_read_are_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Shard:
        raise OSError(5, os.strerror(5), "/data/a.csv")

    monkeypatch.setattr(orders, "load_shard", broken)
    orders._cached_shard.cache_clear()
    reason = ask(solo_node(tmp_path))["failed"]["office-00"]
    assert reason == "cannot read its data: Input/output error: /data/a.csv"


def test_a_node_tells_of_its_orders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="flwr")
    ask(solo_node(tmp_path))
    ask(solo_node(tmp_path, device="cuda:99"), MessageType.EVALUATE, 3)
    lines = [line for line in caplog.messages if line.startswith("event=")]
    about = "round={} node=harbour phase={}"
    first, third = about.format(1, "train"), about.format(3, "evaluate")
    assert lines[0] == f"event=order {first} clients=2"
    assert re.fullmatch(rf"event=done {first} trained=2 failed=0 seconds=\S+", lines[1])
    assert lines[2] == f"event=order {third} clients=2"
    done = rf"event=done {third} trained=0 failed=2 seconds=\S+ error=\"device = 'cuda:99'.*\""
    assert re.fullmatch(done, lines[3])
