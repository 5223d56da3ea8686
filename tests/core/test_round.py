"""What a strategy receives: the latest of each client, this round's, or a total under masks."""

from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import ClientReply, Received, Total
from fedproto_app.core.sends import Sends

LATEST = [Sends("both", {"x": (1,), "y": (1, 2)}, combine="mean", remember="latest")]
THIS_ROUND = [Sends("x", {"x": (1,)}, combine="mean")]
BY_CLASS = [Sends("rows", {"rows": (2,)}, rows="class", combine="mean")]


def reply(client: str, x: float, node: str = "n") -> ClientReply:
    arrays = {"x": np.float32([x]), "y": np.float32([[x, -x]]), "else": np.float32([0])}
    return ClientReply(ClientKey(client, node), 4, arrays)


def test_the_latest_of_each_client_counts_in_the_order_of_names() -> None:
    received = Received(LATEST)
    assert (received.clients, received.state(), received.mean("x")) == ([], {}, None)
    received.take([reply("b", 1.0), reply("a", 2.0), reply("a", 3.0, "m")])
    received.take([reply("b", 4.0)])
    assert received.clients == [("a", "m"), ("a", "n"), ("b", "n")]
    assert received.senders == [("b", "n"), ("a", "n"), ("a", "m")]
    assert received.stacked("y").tolist() == [[[3, -3]], [[2, -2]], [[4, -4]]]
    mean = received.mean("x")
    assert mean.tolist() == [3]
    assert received.totals()["x"].tolist() == [9]
    assert [client_reply.key.client for client_reply in received.fresh] == ["b"]

    restored = Received(LATEST)
    restored.restore({})
    restored.restore(received.state())
    assert restored.senders == received.senders
    for name, array in received.state().items():
        np.testing.assert_array_equal(restored.state()[name], array)


def test_what_is_not_remembered_counts_in_its_round_alone() -> None:
    received = Received(THIS_ROUND)
    received.take([reply("b", 1.0), reply("a", 2.0)])
    assert received.mean("x").tolist() == [1.5]  # type: ignore[union-attr]
    received.take([reply("b", 5.0)])
    restored = Received(THIS_ROUND)
    restored.restore(received.state())  # the next round's guidance may be made of it
    for received_or_restored in (received, restored):
        assert received_or_restored.mean("x").tolist() == [5]  # type: ignore[union-attr]
        assert received_or_restored.clients == []


def test_a_rule_takes_the_place_of_the_mean() -> None:
    received = Received(LATEST, lambda rows: np.median(rows, axis=0).astype(np.float32))
    received.take([reply("a", 1.0), reply("b", 2.0), reply("c", 600.0)])
    assert received.mean("x").tolist() == [2]  # type: ignore[union-attr]


def test_under_masks_the_mean_is_of_those_who_took_part_and_lasts() -> None:
    received = Received(LATEST)
    received.take_total(Total({"x": np.array([6.0]), "y": np.zeros((1, 2))}, 3, np.zeros(0, int)))
    restored = Received(LATEST)
    restored.restore(received.state())
    for received_or_restored in (received, restored):
        assert received_or_restored.mean("x").tolist() == [2]  # type: ignore[union-attr]


@pytest.mark.parametrize("masked", [False, True])
def test_means_by_class_are_over_the_clients_that_have_the_class(masked: bool) -> None:
    received = Received(BY_CLASS)
    if masked:
        sums = np.array([[4.0, 6.0], [0, 0], [5, 5]])
        received.take_total(Total({"rows": sums}, 2, np.array([2, 0, 1])))
    else:
        a = ClientReply(ClientKey("a", "n"), 4, {"rows": np.float32([[5, 5], [1, 2]])}, [2, 0])
        b = ClientReply(ClientKey("b", "n"), 4, {"rows": np.float32([[3, 4]])}, [0])
        received.take([b, a])
    restored = Received(BY_CLASS)
    restored.restore(received.state())
    for received_or_restored in (received, restored):
        means = received_or_restored.class_means("rows", 3)
        assert means[0].tolist() == [[2, 3], [0, 0], [5, 5]]
        assert means[1].tolist() == [True, False, True]


A, B = (ClientKey(name, "n") for name in "ab")


def test_what_is_sent_only_where_a_round_is_evaluated_has_no_mean_in_the_others() -> None:
    releases = [
        Sends("errors", {"errors": (2,)}, combine="mean", when="evaluated"),
        Sends("rows", {"rows": (2,)}, rows="class", combine="mean", when="evaluated"),
    ]
    received = Received(releases)
    received.take([ClientReply(A, 4, {})])
    assert received.mean("errors") is None
    assert received.class_means("rows", 3) is None
    restored = Received(releases)
    restored.restore(received.state())
    received.take_total(Total({}, 2, np.zeros(3, np.int64)))
    assert received.mean("errors") is None
    assert received.class_means("rows", 3) is None
    assert received.state() == {}
    received = Received(releases)
    received.take([ClientReply(key, 4, {"errors": np.full(2, 3.0, np.float32)}) for key in (A, B)])
    assert np.array_equal(received.mean("errors"), [3.0, 3.0])
