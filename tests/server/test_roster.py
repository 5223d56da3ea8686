"""Selection and membership."""

from __future__ import annotations

import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import NodeRoster
from fedproto_app.server.federation import select
from fedproto_app.server.membership import Roster

KEYS = [ClientKey(f"c{i}", str(i % 2)) for i in range(10)]


def answer(label: str, *clients: str) -> NodeRoster:
    return NodeRoster(
        label,
        0,
        dict.fromkeys(clients, 48),
        dict.fromkeys(clients, ""),
        dict.fromkeys(clients, 0.0),
        {},
    )


def test_everybody_or_a_seeded_share() -> None:
    assert select(KEYS, 1.0, set(), 0, 1) == KEYS
    chosen = select(KEYS, 0.3, set(), 0, 1)
    assert len(chosen) == 3
    assert chosen == select(KEYS, 0.3, set(), 0, 1)
    assert chosen == sorted(chosen)
    assert any(select(KEYS, 0.3, set(), 0, r) != chosen for r in range(2, 6))


def test_at_least_one_is_asked_and_newcomers_always() -> None:
    assert len(select(KEYS, 0.01, set(), 0, 1)) == 1
    assert set(select(KEYS, 0.1, set(KEYS[:4]), 0, 1)) >= set(KEYS[:4])
    assert select([], 0.5, set(), 0, 1) == []


def test_selection_does_not_depend_on_how_clients_are_spread_over_nodes() -> None:
    elsewhere = [ClientKey(key.client, "all") for key in KEYS]
    ours = [key.client for key in select(KEYS, 0.5, set(), 3, 7)]
    assert ours == [key.client for key in select(elsewhere, 0.5, set(), 3, 7)]


def test_a_restarted_node_takes_its_old_place() -> None:
    roster = Roster(connected={1})
    roster.admit(1, answer("a", "x"))
    roster.connected = {2}
    assert roster.clients() == []
    roster.admit(2, answer("a", "x"))
    assert roster.clients() == [ClientKey("x", "a")]
    assert roster.label_of(2) == "a"


def test_clients_are_counted_once_however_often_a_node_comes_and_goes() -> None:
    roster = Roster(connected={1, 2})
    assert roster.clients_with(1, answer("a", "x", "y")) == 2
    roster.admit(1, answer("a", "x", "y"))
    assert roster.clients_with(3, answer("a", "y", "z")) == 3  # the same node, restarted
    assert roster.clients_with(2, answer("", "x")) == 3  # a node without a name has its own x
    assert len(roster.facts) == 2  # only looked at


def test_a_clients_name_is_free_when_its_first_node_is_expelled() -> None:
    roster = Roster(connected={1, 2})
    roster.admit(1, answer("a", "x", "y"))
    roster.admit(2, answer("b", "x"))
    assert roster.first_with == {"x": "a", "y": "a"}
    roster.expel("a")
    assert roster.first_with == {"x": "b"}
    assert ClientKey("y", "a") in roster.facts
    roster.forget("a")
    assert set(roster.facts) == {ClientKey("x", "b")}


def test_a_name_in_use_is_refused() -> None:
    roster = Roster(connected={1, 2})
    roster.admit(1, answer("a", "x"))
    with pytest.raises(ValueError, match="'a' belongs to another connected node"):
        roster.admit(2, answer("a", "y"))


def test_a_node_without_a_name_goes_by_its_id() -> None:
    roster = Roster(connected={7})
    assert roster.admit(7, answer("", "x")) == "7"
