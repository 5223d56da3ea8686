"""Nodes that load for long, come back with other data, or wait for their own name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError
from fedproto_app.node import orders
from fedproto_app.server import membership
from fedproto_app.server.federation import Federation
from tests.local_grid import LocalGrid, small_settings, synthetic_nodes


def federation_of(
    tmp_path: Path, nodes: list[dict[str, Any]], **changes: Any
) -> tuple[Federation, LocalGrid]:
    settings = small_settings(tmp_path, **{"nodes.start-deadline": 0.3, **changes})
    return Federation(settings, "run", "token"), LocalGrid(settings, nodes)


def names(federation: Federation) -> set[str]:
    return {key.node for key in federation.members.clients()}


def wide_csv(folder: Path, *clients: str, hours: int = 400) -> Path:
    rows = [
        ",".join(clients),
        *(",".join(str((n * 7) % 24 + 1) for _ in clients) for n in range(hours)),
    ]
    file = folder / "site.csv"
    file.write_text("\n".join(rows) + "\n")
    return file


def csv_node(folder: Path, name: str = "north") -> dict[str, Any]:
    return {
        "data-source": "wide-csv",
        "data-path": str(folder / "site.csv"),
        "node-name": name,
        "state-dir": str(folder / "state"),
    }


def test_a_site_that_loads_for_long_holds_up_nobody(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, synthetic_nodes(2, tmp_path))
    withheld: list[Message] = []
    grid.tamper = lambda node, reply: withheld.append(reply) if node == 1001 else reply
    federation.members.await_nodes(grid)
    federation.members.await_clients(grid)
    assert names(federation) == {"0"}
    assert len(withheld) == 1  # it was asked once
    (loaded,) = withheld
    grid.replies[loaded.metadata.reply_to_message_id] = loaded
    federation.members.await_clients(grid)
    assert names(federation) == {"0", "1"}


def test_a_query_that_a_restart_lost_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, grid = federation_of(tmp_path, synthetic_nodes(2, tmp_path))
    grid.tamper = lambda node, reply: None if node == 1001 else reply
    federation.members.await_nodes(grid)
    grid.tamper = lambda node, reply: reply
    federation.members.await_clients(grid)
    assert names(federation) == {"0"}
    monkeypatch.setattr(membership, "LONGEST_QUERY", 0.0)
    federation.members.await_clients(grid)
    assert names(federation) == {"0", "1"}


def test_a_node_that_cannot_take_part_is_asked_again_and_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data volume is mounted late."""
    nodes = [*synthetic_nodes(1, tmp_path), csv_node(tmp_path)]
    federation, grid = federation_of(tmp_path, nodes)
    federation.members.await_nodes(grid)
    monkeypatch.setattr(membership, "ASK_AGAIN_AFTER", 0.0)
    for _ in range(2):
        federation.members.await_clients(grid)
    (refusal,) = federation.history.log.refused
    assert "no such file" in refusal.reason
    wide_csv(tmp_path, "a", "b")
    federation.members.await_clients(grid)
    assert names(federation) == {"0", "north"}


def test_a_node_without_its_key_takes_its_old_place_once_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "ASK_AGAIN_AFTER", 0.0)
    wide_csv(tmp_path, "a", "b")
    nodes = [csv_node(tmp_path), csv_node(tmp_path)]
    federation, grid = federation_of(tmp_path, nodes)
    grid.connected = {1000}
    federation.members.await_nodes(grid)
    grid.connected = {
        1000,
        1001,
    }  # the restarted one, and the old one that Flower still believes in
    for _ in range(3):
        federation.members.await_clients(grid)
    (refusal,) = federation.history.log.refused
    assert refusal.reason == "its name 'north' belongs to another connected node"
    assert federation.members.node_id("north") == 1000
    grid.connected = {1001}
    federation.members.await_clients(grid)
    assert federation.members.node_id("north") == 1001


def test_a_node_that_was_away_is_asked_for_its_clients_anew(tmp_path: Path) -> None:
    wide_csv(tmp_path, "a", "b")
    nodes = [csv_node(tmp_path), *synthetic_nodes(1, tmp_path)]
    federation, grid = federation_of(tmp_path, nodes)
    federation.members.await_nodes(grid)
    grid.connected = {1001}
    federation.members.await_clients(grid)
    assert names(federation) == {"0"}
    wide_csv(tmp_path, "b", "c", hours=500)
    grid.contexts[1000].node_config["data-path"] = str((tmp_path / "site.csv").resolve())
    orders._cached_shard.cache_clear()  # a real node is a new process
    grid.connected = {1000, 1001}
    federation.members.await_clients(grid)
    keys = set(federation.members.clients())
    assert ClientKey("c", "north") in keys
    assert ClientKey("a", "north") not in keys


def test_why_nobody_can_take_part_is_told(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, [csv_node(tmp_path)])
    with pytest.raises(FederationError, match=r"no node has a client that can train: .*no such"):
        federation.members.await_nodes(grid)


def test_too_few_nodes_are_told_with_those_that_cannot(tmp_path: Path) -> None:
    federation, grid = federation_of(tmp_path, [csv_node(tmp_path)], **{"nodes.minimum": 2})
    with pytest.raises(FederationError, match=r"1 of 2 nodes came within .* = 0\.3 s: .*no such"):
        federation.members.await_nodes(grid)


def test_who_rests_is_asked_where_the_others_have_no_clients_and_stays_known(
    tmp_path: Path,
) -> None:
    nodes = [*synthetic_nodes(1, tmp_path), csv_node(tmp_path)]  # north has no data
    federation, grid = federation_of(tmp_path, nodes)
    federation.members.await_nodes(grid)
    federation.pipeline.exchange._rests[1000] = time.monotonic() + 3600
    federation.members.await_clients(grid)
    assert names(federation) == {"0"}
    assert federation.memory()["nodes"] == ["0"]


def test_the_name_of_a_node_that_rests_is_not_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "ASK_AGAIN_AFTER", 0.0)
    (tmp_path / "other").mkdir()
    wide_csv(tmp_path, "a", "b")
    wide_csv(tmp_path / "other", "q")
    nodes = [csv_node(tmp_path), csv_node(tmp_path / "other"), csv_node(tmp_path / "other", "x")]
    federation, grid = federation_of(tmp_path, nodes, **{"nodes.bind-names": False})
    grid.connected = {1000, 1002}
    federation.members.await_nodes(grid)
    federation.pipeline.exchange._rests[1000] = time.monotonic() + 3600
    grid.connected = {1000, 1001, 1002}
    for _ in range(3):
        federation.members.await_clients(grid)
    assert federation.members.node_id("north") == 1000
    assert names(federation) == {"x"}


@pytest.mark.parametrize("how", ["rests", "overdue"])
def test_a_node_that_was_quiet_and_comes_back_with_other_data_is_asked_for_it(
    tmp_path: Path, how: str
) -> None:
    wide_csv(tmp_path, "a", "b")
    federation, grid = federation_of(tmp_path, [csv_node(tmp_path), *synthetic_nodes(1, tmp_path)])
    federation.members.await_nodes(grid)
    if how == "rests":
        federation.pipeline.exchange._rests[1000] = time.monotonic() + 0.2
    else:
        federation.pipeline.exchange._overdue["an order"] = 1000
    federation.members.await_clients(grid)
    grid.connected = {1001}
    federation.members.await_clients(grid)
    wide_csv(tmp_path, "b", "c", hours=500)
    orders._cached_shard.cache_clear()
    grid.connected = {1000, 1001}
    time.sleep(0.3)
    for _ in range(3):
        federation.members.await_clients(grid)
    assert {key.client for key in federation.members.clients() if key.node == "north"} == {"b", "c"}
