"""Nodes that lose orders, hang and come back, played by a grid that answers as the test says.

The clock goes on only while the exchange waits: 0.1 s, 0.2 s, … and at last 1 s between two looks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedproto_app.core.wire import ALIVE
from fedproto_app.server import exchange
from fedproto_app.server.exchange import ORDER_TRIES, Exchange
from tests.server.fake_grid import FakeGrid, order

GONE = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
KILLED = Error(ErrorCode.CLIENT_APP_CRASHED, "killed")
RAISED = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "a fault")
FOR_EVER = 10**6  # looks


class Clock:
    """The exchange's time, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(exchange.time, "monotonic", lambda: fake.now)
    monkeypatch.setattr(exchange, "pause_on", lambda grid, seconds: fake.wait(seconds))
    monkeypatch.setattr(exchange, "PROBE_AFTER", 1.0)
    return fake


def ask(exchanged: Exchange, grid: FakeGrid, *nodes: int, deadline: float = 50.0) -> set[int]:
    """The nodes whose replies came."""
    replies = exchanged.ask(cast(Grid, grid), [order(node) for node in nodes], deadline)
    return {reply.metadata.src_node_id for reply in replies}


def look(exchanged: Exchange, grid: FakeGrid, *connected: int) -> None:
    exchanged.look_for_overdue(cast(Grid, grid), set(connected))


def test_replies_come_in_whenever_they_do() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [5], (2, "train"): [0]}
    assert ask(Exchange(), grid, 1, 2) == {1, 2}
    assert [message.metadata.dst_node_id for message in grid.sent] == [1, 2]  # nobody was probed


def test_an_order_that_was_lost_is_sent_again_and_counts_as_the_first() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None, 0], (1, ALIVE): [0]}
    exchanged = Exchange()
    (reply,) = exchanged.ask(cast(Grid, grid), [order(1)], 50.0)
    assert grid.count(1) == 2
    first, second = (message for message in grid.sent if message.metadata.message_type == "train")
    assert reply.metadata.reply_to_message_id == second.metadata.message_id
    assert exchanged.original(second.metadata.message_id) == first.metadata.message_id
    assert second.metadata.group_id == "3"
    assert exchanged.overdue == set()


@pytest.mark.parametrize(
    ("answer", "away", "deadline", "reason", "sent", "waited"),
    [
        (None, 0, 600.0, "the node lost its order 3 times", ORDER_TRIES, 60),  # and probes say so
        (GONE, FOR_EVER, 600.0, "gone", 1, 35),  # it stays away for RETURN_AFTER
        (GONE, FOR_EVER, 5.0, "gone", 1, 5),  # the deadline comes first
        (KILLED, 0, 600.0, "killed", ORDER_TRIES, 5),
        (RAISED, 0, 600.0, "a fault", 1, 0),  # it would raise it again
    ],
)
def test_an_order_is_not_sent_for_ever_nor_waited_for(
    answer: Error | None, away: int, deadline: float, reason: str, sent: int, waited: float
) -> None:
    grid, exchanged = FakeGrid(), Exchange()
    grid.answers, grid.away = {(1, "train"): [answer]}, {1: away}
    (reply,) = exchanged.ask(cast(Grid, grid), [order(1)], deadline)
    assert (reply.error.reason, grid.count(1)) == (reason, sent)
    assert exchanged.waited <= waited
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
    clock: Clock, trains: str, asked_of_100: int
) -> None:
    """However it goes about it: probes it answers, and says that all is well again."""
    grid, exchanged, orders = FakeGrid(), Exchange(), 0
    while_asked: list[int | Error | None] = [0 if trains == "loses its orders" else None]
    grid.fails_after = 30  # looks, of seconds and more
    if trains == "leaves just before the deadline":
        grid.fails_after, grid.away = 22, {1: FOR_EVER}
    error = {"is killed": KILLED, "leaves just before the deadline": GONE}.get(trains)
    for _ in range(100):
        start = clock.now
        if 1 not in exchanged.overdue | exchanged.resting:
            replies = trains == "replies to every other" and orders % 2
            grid.answers = {(1, "train"): [0 if replies else error], (1, ALIVE): while_asked}
            ask(exchanged, grid, 1, deadline=10.0)
            orders += 1
        grid.answers = {(1, ALIVE): [0]}
        look(exchanged, grid, 1)
        clock.now = max(clock.now, start + 10.0)
    assert orders == asked_of_100


def test_one_miss_is_no_reason_to_rest_and_answers_make_good_for_those_before() -> None:
    grid, exchanged = FakeGrid(), Exchange()
    for _ in range(3):
        grid.answers = {(1, "train"): [None], (1, ALIVE): [None]}
        assert ask(exchanged, grid, 1) == set()
        grid.answers = {}
        look(exchanged, grid, 1)
        assert exchanged.overdue | exchanged.resting == set()
        for _ in range(8):
            assert ask(exchanged, grid, 1) == {1}


def test_a_node_at_work_is_probed_once_and_not_asked_again() -> None:
    """It answers the probe after the order, as it does one thing after the other."""
    grid = FakeGrid()
    grid.answers = {(1, "train"): [20], (1, ALIVE): [None]}
    assert ask(Exchange(), grid, 1) == {1}
    assert grid.count(1) == 1
    assert grid.count(1, ALIVE) == 1


def test_the_answer_to_an_old_probe_says_nothing_of_a_new_order() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [12, 12], (1, ALIVE): [10]}  # it comes during the second order
    exchanged = Exchange()
    assert ask(exchanged, grid, 1) == {1}
    assert grid.count(1, ALIVE) == 1
    grid.answers[1, ALIVE] = [0, None]
    assert ask(exchanged, grid, 1) == {1}
    assert grid.count(1) == 2


def test_a_node_that_is_restarted_gets_its_order_again() -> None:
    """Flower gives the order up at once. The node is back three looks later."""
    grid = FakeGrid()
    grid.answers, grid.away = {(1, "train"): [GONE, 0]}, {1: 3}
    assert ask(Exchange(), grid, 1, 2) == {1, 2}
    assert (grid.count(1), grid.count(2)) == (2, 1)


@pytest.mark.parametrize("other_node", ["have answered", "are still at work"])
def test_who_leaves_when_all_others_have_answered_holds_up_no_second_phase(other_node: str) -> None:
    exchanged = Exchange()
    for _ in range(2):
        grid = FakeGrid()
        looks = 0 if other_node == "have answered" else 60
        grid.answers = {(1, "train"): [GONE], (2, "train"): [looks], (2, ALIVE): [None]}
        grid.away = {1: FOR_EVER}
        ask(exchanged, grid, 1, 2, deadline=600.0)
    assert exchanged.resting == ({1} if other_node == "have answered" else set())


def test_a_probe_may_be_lost_too(clock: Clock) -> None:
    grid, exchanged = FakeGrid(), Exchange()
    grid.answers = {(1, "train"): [None, 0], (1, ALIVE): [None, 0]}
    assert ask(exchanged, grid, 1) == set()
    for waited, probes in ((0.0, 1), (exchange.PROBE_LIFE, 2)):
        clock.wait(waited)
        look(exchanged, grid, 1)
        assert grid.count(1, ALIVE) == probes
    look(exchanged, grid, 1)
    assert exchanged.overdue == set()


def test_a_simulation_probes_nobody() -> None:
    grid, exchanged = FakeGrid(), Exchange()
    grid.answers = {(1, "train"): [None]}
    exchanged.trust_nodes()
    assert ask(exchanged, grid, 1) == set()
    assert grid.count(1, ALIVE) == 0


@pytest.mark.parametrize(
    ("kind", "sign"), [("train", 0), (ALIVE, 0), ("train", GONE)], ids=["late", "probe", "error"]
)
def test_a_hung_node_is_overdue_until_it_gives_a_sign(kind: str, sign: Any) -> None:
    grid, exchanged = FakeGrid(), Exchange()
    grid.answers = {(1, "train"): [None], (1, ALIVE): [None]}
    assert ask(exchanged, grid, 1, 2) == {2}
    for _ in range(3):
        look(exchanged, grid, 1, 2)
        assert exchanged.overdue == {1}
    assert grid.count(1, ALIVE) == 1
    grid.answers[1, kind] = [sign]
    look(exchanged, grid, 1, 2)
    assert exchanged.overdue == set()
    grid.answers = {}
    assert ask(exchanged, grid, 1, 2) == {1, 2}


def test_an_overdue_node_that_has_left_is_forgotten() -> None:
    grid, exchanged = FakeGrid(), Exchange()
    grid.answers = {(1, "train"): [None], (1, ALIVE): [None]}
    ask(exchanged, grid, 1)
    look(exchanged, grid)
    assert exchanged.overdue == set()


def test_what_flower_does_not_take_is_an_error_at_once() -> None:
    grid = FakeGrid()
    grid.takes = False
    (reply,) = Exchange().ask(cast(Grid, grid), [order(1)], 60.0)
    assert "did not take" in reply.error.reason


# --- how long the others are waited for when enough have answered ---------------------------------

ALL = {1, 2, 3, 4, 5}
BROKEN = Error(code=0, reason="its disk is full")
SLOW = {1: 0, 2: 15, 3: 28, 4: 38, 5: None}  # looks: at once, after 3, 13 and 23 s, never
ONE_SLOW = {5: 100}


@pytest.mark.parametrize(
    ("looks", "options", "expected", "seconds"),
    [
        (SLOW, {"enough": 0.6}, {1, 2, 3, 4}, (25, 26)),  # the fourth comes within as long again
        (SLOW, {"enough": 0.2}, {1, 2}, (10, 11)),  # ten seconds at least
        ({1: BROKEN, 2: BROKEN, 3: BROKEN, 5: None}, {"enough": 0.6}, {4}, (1000, 1000)),
        (ONE_SLOW, {"enough": 0.6, "unusable": {1, 2, 3}}, ALL, (80, 100)),  # ordinary replies
        (ONE_SLOW, {"enough": 0.6, "least": 5}, ALL, (80, 100)),  # as a masked sum needs them
        (ONE_SLOW, {"enough": 0.6, "simulated": True}, ALL, (80, 100)),
        # What takes long to read is taken from nobody's time.
        ({2: 20, 3: 30, 4: 60, 5: 75}, {"enough": 0.2, "slow": {1}}, {1, 2}, (10, 11)),
        ({2: 20, 3: 30, 4: 60, 5: 75}, {"enough": 1.0, "slow": {1, 2, 3}}, ALL, (59, 61)),
    ],
)
def test_when_enough_have_answered_the_others_have_as_long_again(
    clock: Clock,
    looks: dict[int, int | Error | None],
    options: dict[str, Any],
    expected: set[int],
    seconds: tuple[float, float],
) -> None:
    """Errors and replies without a usable part are not enough, and in a simulation nothing is."""
    slow: Collection[int] = options.get("slow", ())

    def is_answer(reply: Message, order: Message) -> bool:
        node = reply.metadata.src_node_id
        if node in slow:
            clock.wait(500.0)
        return not reply.has_error() and node not in options.get("unusable", ())

    grid, exchanged = FakeGrid(), Exchange(enough=options["enough"], is_answer=is_answer)
    grid.answers = {(node, "train"): [after] for node, after in looks.items()}
    grid.answers |= {(node, ALIVE): [None] for node in ALL}
    if options.get("simulated"):
        exchanged.trust_nodes()
    start, orders = clock.now, [order(node) for node in sorted(ALL)]
    replies = exchanged.ask(cast(Grid, grid), orders, 1000.0, least=options.get("least", 0))
    assert {r.metadata.src_node_id for r in replies if not r.has_error()} == expected
    assert exchanged.overdue == ALL - {reply.metadata.src_node_id for reply in replies}
    assert seconds[0] <= exchanged.waited <= seconds[1]
    assert exchanged.waited == pytest.approx(clock.now - start - 500 * len(slow), abs=0.06)
