"""Orders at another machine of a Ray cluster: they work with a copy of the node's state.

A stand-in for Ray calls the actor at the head directly; tests/integration/test_ray_cluster.py has a
real cluster.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Context, MessageType, RecordDict

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.messages import Order
from fedproto_app.core.wire import MASKING, QUESTION
from fedproto_app.node import ray_state
from fedproto_app.node.ray_state import StateKeeper, state_at_hand
from fedproto_app.node.state_file import FILE_NAME, StateFile
from fedproto_app.settings import flat_settings
from tests.helpers.local_grid import run_locally, small_settings, synthetic_nodes

ORDER = Order("test", "ab12", 1, [])


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Make this process one of a Ray cluster, at another machine than the head.

    Return a handle of the actor at the head.
    """
    actor = StateKeeper()
    handle = SimpleNamespace(
        lend=SimpleNamespace(remote=actor.lend), take_back=SimpleNamespace(remote=actor.take_back)
    )
    ray = SimpleNamespace(is_initialized=lambda: True, get=lambda answer: answer)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_state, "_keeper", lambda: handle)
    return handle


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Node 0 of a simulation."""
    run_config = flat_settings(small_settings(tmp_path))
    return Context(1, 77, {"partition-id": 0}, RecordDict(), run_config)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The node's folder at the head."""
    return tmp_path / "runs" / "test" / "state" / "0"


def put_shared(folder: Path, value: float) -> None:
    with StateFile(folder).writing() as tables:
        tables.put_shared(1, {"w": torch.tensor([value])})


def shared_in(folder: Path) -> float:
    with StateFile(folder).reading() as tables:
        return tables.shared(1)["w"].item()


def copy_of(at_hand: Context) -> Path:
    return Path(str(at_hand.node_config["state-dir"])) / "test-ab12" / "0"


@pytest.mark.usefixtures("keeper")
def test_an_order_works_with_a_copy_and_gives_its_changes_back(
    context: Context, home: Path
) -> None:
    for value in (1.0, 2.0):
        with state_at_hand(context, ORDER.run, ORDER.token) as at_hand:
            copy = copy_of(at_hand)
            if value == 2.0:
                assert shared_in(copy) == 1.0
            put_shared(copy, value)
            (copy / "c-a").mkdir(exist_ok=True)
            (copy / "c-a" / "vectors").write_bytes(b"v")
        assert not copy.exists()
        assert shared_in(home) == value
    assert (home / "c-a" / "vectors").read_bytes() == b"v"
    assert (home / FILE_NAME).stat().st_mode & 0o077 == 0


def carry_out(context: Context, meanwhile: Callable[[], object]) -> None:
    with state_at_hand(context, ORDER.run, ORDER.token) as at_hand:
        put_shared(copy_of(at_hand), 2.0)
        meanwhile()


@pytest.mark.usefixtures("keeper")
def test_an_order_that_fails_changes_nothing(context: Context, home: Path) -> None:
    put_shared(home, 1.0)
    with pytest.raises(ZeroDivisionError):
        carry_out(context, lambda: divmod(1, 0))
    assert shared_in(home) == 1.0


@pytest.mark.usefixtures("keeper")
def test_changes_over_those_of_another_order_are_refused(context: Context, home: Path) -> None:
    message = f"{home}: another order has changed the state of node '0' while it was borrowed"
    with pytest.raises(FedProtoError, match=message):
        carry_out(context, lambda: put_shared(home, 3.0))
    assert shared_in(home) == 3.0


def test_at_the_head_and_without_ray_state_is_used_in_place(
    context: Context, keeper: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_state, "_keeper", lambda: None)
    with state_at_hand(context, ORDER.run, ORDER.token) as at_hand:
        assert at_hand is context
    monkeypatch.delitem(sys.modules, "ray")
    monkeypatch.setattr(ray_state, "_keeper", lambda: keeper)
    with state_at_hand(context, ORDER.run, ORDER.token) as at_hand:
        assert at_hand is context


def test_a_killed_process_s_transaction_is_rolled_back_before_the_folder_is_lent(
    tmp_path: Path,
) -> None:
    put_shared(tmp_path / "killed", 1.0)
    with closing(sqlite3.connect(tmp_path / "killed" / FILE_NAME)) as database:
        database.execute("PRAGMA cache_size = 1")  # changes reach the file before the commit
        for server_round in range(2, 50):
            database.execute("INSERT INTO shared VALUES (?, zeroblob(50000))", (server_round,))
        shutil.copytree(tmp_path / "killed", tmp_path / "home")  # as a killed process leaves it
    assert (tmp_path / "home" / f"{FILE_NAME}-journal").exists()
    _, files = StateKeeper().lend(tmp_path / "home")
    assert files.keys() == {FILE_NAME}
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / FILE_NAME).write_bytes(files[FILE_NAME])
    with StateFile(tmp_path / "copy").reading() as tables:
        assert tables.shared_rounds() == {1}


@pytest.mark.parametrize(
    ("task", "changes", "kind"),
    [
        ("forecasting", {"method": "fedda"}, QUESTION),
        ("forecasting", {"method": "fedavg-ft", "aggregation.secure": True}, MASKING),
        ("sequence-classification", {"method": "fed-react"}, MessageType.EVALUATE),  # more files
    ],
)
def test_orders_of_every_kind_have_the_same_results_with_borrowed_state(
    tmp_path: Path, request: pytest.FixtureRequest, task: str, changes: dict[str, Any], kind: str
) -> None:
    tables = []
    for place in ("in-place", "borrowed"):
        if place == "borrowed":
            request.getfixturevalue("keeper")
        settings = small_settings(tmp_path, task, **{**changes, "output.name": place})
        nodes = synthetic_nodes(3, tmp_path / place, settings.data.source)
        folder, grid = run_locally(settings, nodes)
        assert {MessageType.TRAIN, kind} <= {m.metadata.message_type for m in grid.sent}
        tables.append((folder.path / "clients.csv").read_bytes())
    assert tables[0] == tables[1]
