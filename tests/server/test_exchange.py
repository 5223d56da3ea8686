"""Nodes that lose orders, hang and come back, played by a grid that answers as the test says."""

from __future__ import annotations

from typing import Any, cast

import pytest
from flwr.app import Error
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedproto_app.core.wire import ALIVE
from fedproto_app.server import exchange
from fedproto_app.server.exchange import ORDER_TRIES, Exchange
from tests.server.fake_grid import FakeGrid, order

SOON = 0.02  # seconds


def ask(exchanged: Exchange, grid: FakeGrid, *nodes: int, deadline: float = 0.5) -> set[int]:
    """The nodes whose replies came."""
    replies = exchanged.ask(cast(Grid, grid), [order(node) for node in nodes], deadline)
    return {reply.metadata.src_node_id for reply in replies}


def look(exchanged: Exchange, grid: FakeGrid, *connected: int) -> None:
    exchanged.look_for_overdue(cast(Grid, grid), set(connected))


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PROBE_AFTER", SOON)
    monkeypatch.setattr(exchange, "SHORTEST_PAUSE", 0.005)


def test_replies_come_in_whenever_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PROBE_AFTER", 60.0)
    grid = FakeGrid()
    grid.answers = {(1, "train"): [2], (2, "train"): [0]}
    assert ask(Exchange(), grid, 1, 2) == {1, 2}
    assert [message.metadata.dst_node_id for message in grid.sent] == [1, 2]  # nobody was probed


def test_an_order_that_was_lost_is_sent_again_and_counts_as_the_first() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None, 0], (1, ALIVE): [0]}
    exchanged = Exchange()
    (reply,) = exchanged.ask(cast(Grid, grid), [order(1)], 5.0)
    assert grid.count(1) == 2
    first, second = (message for message in grid.sent if message.metadata.message_type == "train")
    assert reply.metadata.reply_to_message_id == second.metadata.message_id
    assert exchanged.original(second.metadata.message_id) == first.metadata.message_id
    assert second.metadata.group_id == "3"
    assert exchanged.overdue == set()


def test_an_order_is_not_sent_for_ever() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None]}
    exchanged = Exchange()
    (reply,) = exchanged.ask(cast(Grid, grid), [order(1)], 60.0)  # nor is it waited for so long
    assert reply.error.reason == "the node lost its order 3 times"
    assert grid.count(1) == ORDER_TRIES
    assert exchanged.overdue == set()


@pytest.mark.parametrize(
    ("trains", "asked_of_100"),
    [
        ("loses its orders", 16),
        ("is killed", 10),
        ("never replies", 10),
        ("replies to every other", 19),
        ("leaves just before the deadline", 10),
    ],
)
def test_who_lets_deadlines_pass_holds_up_fewer_and_fewer_rounds(
    trains: str, asked_of_100: int
) -> None:
    """However it goes about it: probes it answers, and says that all is well again."""
    grid, exchanged, clock, orders = FakeGrid(), Exchange(), 0.0, 0
    while_asked: list[int | Error | None] = [0 if trains == "loses its orders" else None]
    grid.fails_after = 30  # looks, of seconds and more
    if trains == "leaves just before the deadline":
        grid.fails_after, grid.away = 22, {1: 10**6}
    killed = {
        "is killed": Error(ErrorCode.CLIENT_APP_CRASHED, "killed"),
        "leaves just before the deadline": Error(ErrorCode.NODE_UNAVAILABLE, "gone"),
    }.get(trains)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange.time, "monotonic", lambda: clock)
        patch.setattr(exchange, "pause_on", lambda grid, seconds: wait(seconds))
        patch.setattr(exchange, "PROBE_AFTER", 1.0)

        def wait(seconds: float) -> None:
            nonlocal clock
            clock += seconds

        for _ in range(100):
            start = clock
            if 1 not in exchanged.overdue | exchanged.resting:
                replies = trains == "replies to every other" and orders % 2
                grid.answers = {(1, "train"): [0 if replies else killed], (1, ALIVE): while_asked}
                ask(exchanged, grid, 1, deadline=10.0)
                orders += 1
            grid.answers = {(1, ALIVE): [0]}
            look(exchanged, grid, 1)
            clock = max(clock, start + 10.0)
    assert orders == asked_of_100


def test_one_miss_is_no_reason_to_rest_and_answers_make_good_for_those_before() -> None:
    grid, exchanged = FakeGrid(), Exchange()
    for _ in range(3):
        grid.answers = {(1, "train"): [None], (1, ALIVE): [None]}
        assert ask(exchanged, grid, 1, deadline=0.05) == set()
        grid.answers = {}
        look(exchanged, grid, 1)
        assert exchanged.overdue | exchanged.resting == set()
        for _ in range(8):
            assert ask(exchanged, grid, 1) == {1}


def test_a_node_at_work_is_probed_once_and_not_asked_again() -> None:
    """It answers the probe after the order, as it does one thing after the other."""
    grid = FakeGrid()
    grid.answers = {(1, "train"): [20], (1, ALIVE): [None]}
    assert ask(Exchange(), grid, 1, deadline=5.0) == {1}
    assert grid.count(1) == 1
    assert grid.count(1, ALIVE) == 1


def test_the_answer_to_an_old_probe_says_nothing_of_a_new_order() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [12, 12], (1, ALIVE): [30]}  # it comes during the second order
    exchanged = Exchange()
    assert ask(exchanged, grid, 1, deadline=5.0) == {1}
    assert grid.count(1, ALIVE) == 1
    grid.answers[1, ALIVE] = [0, None]
    assert ask(exchanged, grid, 1, deadline=5.0) == {1}
    assert grid.count(1) == 2


def test_a_node_that_is_restarted_gets_its_order_again() -> None:
    """Flower gives the order up at once; the node is back three looks later."""
    grid = FakeGrid()
    grid.answers = {(1, "train"): [Error(ErrorCode.NODE_UNAVAILABLE, "gone"), 0]}
    grid.away = {1: 3}
    assert ask(Exchange(), grid, 1, 2, deadline=5.0) == {1, 2}
    assert grid.count(1) == 2
    assert grid.count(2) == 1


def test_a_node_that_stays_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RETURN_AFTER", 0.05)
    grid = FakeGrid()
    grid.answers = {(1, "train"): [Error(ErrorCode.NODE_UNAVAILABLE, "gone")]}
    grid.away = {1: 10**6}
    exchanged = Exchange()
    (reply,) = exchanged.ask(cast(Grid, grid), [order(1)], 60.0)
    assert reply.error.reason == "gone"
    assert grid.count(1) == 1
    assert exchanged.overdue == set()


@pytest.mark.parametrize("other_node", ["have answered", "are still at work"])
def test_who_leaves_when_all_others_have_answered_holds_up_no_second_phase(
    other_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "RETURN_AFTER", 0.2)
    exchanged = Exchange()
    for _ in range(2):
        grid = FakeGrid()
        grid.answers = {(1, "train"): [Error(ErrorCode.NODE_UNAVAILABLE, "gone")]}
        grid.answers[2, "train"] = [0 if other_node == "have answered" else 30]
        grid.answers[2, ALIVE] = [None]
        grid.away = {1: 10**6}
        ask(exchanged, grid, 1, 2, deadline=60.0)
    assert exchanged.resting == ({1} if other_node == "have answered" else set())


def test_its_answer_counts_when_the_deadline_comes_first() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [Error(ErrorCode.NODE_UNAVAILABLE, "gone")]}
    grid.away = {1: 10**6}
    (reply,) = Exchange().ask(cast(Grid, grid), [order(1)], 0.05)
    assert reply.error.reason == "gone"


def test_a_client_app_that_is_killed_again_and_again_is_given_up() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [Error(ErrorCode.CLIENT_APP_CRASHED, "killed")]}
    (reply,) = Exchange().ask(cast(Grid, grid), [order(1)], 5.0)
    assert reply.error.reason == "killed"
    assert grid.count(1) == ORDER_TRIES


def test_what_a_client_app_raised_it_would_raise_again() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "a fault")]}
    (reply,) = Exchange().ask(cast(Grid, grid), [order(1)], 5.0)
    assert reply.error.reason == "a fault"
    assert grid.count(1) == 1


def test_a_probe_may_be_lost_too(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None, 0], (1, ALIVE): [None, 0]}
    exchanged = Exchange()
    assert ask(exchanged, grid, 1, deadline=0.1) == set()
    look(exchanged, grid, 1)
    assert grid.count(1, ALIVE) == 1
    monkeypatch.setattr(exchange, "PROBE_LIFE", 0.0)
    look(exchanged, grid, 1)
    assert grid.count(1, ALIVE) == 2
    monkeypatch.undo()
    look(exchanged, grid, 1)
    assert exchanged.overdue == set()


def test_a_simulation_probes_nobody() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None]}
    exchanged = Exchange()
    exchanged.trust_nodes()
    assert ask(exchanged, grid, 1, deadline=0.1) == set()
    assert grid.count(1, ALIVE) == 0


@pytest.mark.parametrize("sign", ["late reply", "probe", "error"])
def test_a_hung_node_is_overdue_until_it_gives_a_sign(sign: str) -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None], (1, ALIVE): [None]}
    exchanged = Exchange()
    assert ask(exchanged, grid, 1, 2, deadline=0.1) == {2}
    for _ in range(3):
        look(exchanged, grid, 1, 2)
        assert exchanged.overdue == {1}
    assert grid.count(1, ALIVE) == 1
    signs: dict[str, Any] = {
        "late reply": ("train", [0]),
        "probe": (ALIVE, [0]),
        "error": ("train", [Error(5, "gone")]),
    }
    kind, plan = signs[sign]
    grid.answers[1, kind] = plan
    look(exchanged, grid, 1, 2)
    assert exchanged.overdue == set()
    grid.answers = {}
    assert ask(exchanged, grid, 1, 2) == {1, 2}


def test_an_overdue_node_that_has_left_is_forgotten() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None], (1, ALIVE): [None]}
    exchanged = Exchange()
    ask(exchanged, grid, 1, deadline=0.05)
    look(exchanged, grid)
    assert exchanged.overdue == set()


def test_what_flower_does_not_take_is_an_error_at_once() -> None:
    grid = FakeGrid()
    grid.takes = False
    (reply,) = Exchange().ask(cast(Grid, grid), [order(1)], 60.0)
    assert reply.has_error()
    assert "did not take" in reply.error.reason
