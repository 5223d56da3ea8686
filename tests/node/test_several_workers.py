"""Several processes work for one node at once, and what one tidies up another still finds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.node import records, state_log
from fedproto_app.node.blocks import Block, write_block
from fedproto_app.node.records import ClientRecord
from fedproto_app.node.store import ClientStore
from tests.node.stored import state, state_of


def train(folder: Path, writer: int, clients: str, server_round: int) -> None:
    store = ClientStore(folder, writer)
    store.begin(server_round)
    store.write_states([*clients], server_round, state(server_round, len(clients)))


def keep(folder: Path, writer: int, client: str, server_round: int) -> None:
    store = ClientStore(folder, writer)
    store.begin(server_round)
    store.keep(client, ClientRecord(server_round, {"mae": 1.0}))
    store.settle()


def kept_rounds(folder: Path, clients: Iterable[str]) -> list[int]:
    store = ClientStore(folder)
    return [store.record(client).kept_round for client in clients]


def test_a_copy_that_is_seen_beside_its_rows_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One joins sparse blocks; another looks when the copy is there and the rows not yet gone."""
    monkeypatch.setattr(state_log, "_SPARSE_BLOCKS", 99)
    train(tmp_path, 0, "abcd", 1)
    train(tmp_path, 1, "efgh", 1)  # d and h do not take part again
    for server_round in (2, 3, 4, 5):
        train(tmp_path, 0, "abc", server_round)
        train(tmp_path, 1, "efg", server_round)
    monkeypatch.setattr(state_log, "_SPARSE_BLOCKS", 2)
    joins, looks = ClientStore(tmp_path, 0), ClientStore(tmp_path, 1)
    for store in (joins, looks):
        store.begin(6)

    def seen_when_written(*arguments: Any, **options: Any) -> Block:
        block = write_block(*arguments, **options)
        if options.get("durable"):
            looks.read_states([*"efg"], 5)
        return block

    monkeypatch.setattr(state_log, "write_block", seen_when_written)
    joins.write_states([*"abc"], 6, state(6, 3))
    looks.write_states([*"efg"], 6, state(6, 3))
    again = ClientStore(tmp_path, 9)
    assert [state_of(again, client, upto=9) for client in "abcdefgh"] == [6, 6, 6, 1, 6, 6, 6, 1]


def test_who_is_slow_does_not_delete_its_own_records(tmp_path: Path) -> None:
    slow = ClientStore(tmp_path, 0)
    slow.begin(1)
    slow.record("a", before=1)  # after its first of two cohorts
    for writer, client in enumerate("bcd", start=1):
        keep(tmp_path, writer, client, 1)
    slow.keep("a", ClientRecord(1, {"mae": 1.0}))
    slow.settle()
    assert kept_rounds(tmp_path, "abcd") == [1, 1, 1, 1]


def test_records_that_others_write_anew_while_one_looks_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in "abc":
        keep(tmp_path, 0, client, 1)
    listed, files = [0], records._files

    def then_written_anew(folder: Path) -> list[Path]:
        found = files(folder)
        listed[0] += 1
        if listed[0] == 1:
            keep(tmp_path, 1, "a", 2)
            keep(tmp_path, 2, "b", 2)
        return found

    monkeypatch.setattr(records, "_files", then_written_anew)
    assert kept_rounds(tmp_path, "abc") == [2, 2, 1]
