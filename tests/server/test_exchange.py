"""Nodes that lose orders, hang and come back, played by a grid that answers as the test says."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, cast
from uuid import uuid4

import pytest
from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.server import exchange, probes
from fedproto_app.server.exchange import ORDER_TRIES, Exchange
from fedproto_app.wire import ALIVE

SOON = 0.02  # seconds


class FakeGrid:
    """Nodes answer what `answers` says when the message has waited so many looks."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.sent: list[Message] = []
        self.looks: dict[str, int] = {}
        self.takes: bool = True
        self.fails_after = 0  # looks until an error comes
        self.away: dict[int, int] = {}  # nodes that are seen again after so many looks
        # By node and type: looks until the answer comes, of one message after the other.
        self.answers: dict[tuple[int, str], list[int | Error | None]] = {}

    def get_node_ids(self) -> list[int]:
        self.away = {node: looks - 1 for node, looks in self.away.items()}
        nodes = {one.metadata.dst_node_id for one in self.sent}
        return [node for node in nodes if self.away.get(node, 0) <= 0]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.sent.append(message)
            ids.append(message.metadata.message_id if self.takes else "")
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        wanted = set(message_ids)
        for message in self.sent:
            of = message.metadata
            if of.message_id not in wanted:
                continue
            after = self._after(message)
            looked = self.looks[of.message_id] = self.looks.get(of.message_id, 0) + 1
            if isinstance(after, Error):
                if looked <= self.fails_after:
                    continue
                replies.append(Message(after, reply_to=message))
            elif after is not None and looked > after:
                replies.append(Message(RecordDict(), reply_to=message))
        return replies

    def _after(self, message: Message) -> int | Error | None:
        of = message.metadata
        plan = self.answers.get((of.dst_node_id, of.message_type), [0])
        like = [
            one.metadata.message_id
            for one in self.sent
            if (one.metadata.dst_node_id, one.metadata.message_type)
            == (of.dst_node_id, of.message_type)
        ]
        return plan[min(like.index(of.message_id), len(plan) - 1)]

    def count(self, node: int, kind: str = MessageType.TRAIN) -> int:
        keys = [(one.metadata.dst_node_id, one.metadata.message_type) for one in self.sent]
        return keys.count((node, kind))


def order(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN, group_id="3")


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
    assert [one.metadata.dst_node_id for one in grid.sent] == [1, 2]  # nobody was probed


def test_an_order_that_was_lost_is_sent_again_and_counts_as_the_first() -> None:
    grid = FakeGrid()
    grid.answers = {(1, "train"): [None, 0], (1, ALIVE): [0]}
    exchanged = Exchange()
    (reply,) = exchanged.ask(cast(Grid, grid), [order(1)], 5.0)
    assert grid.count(1) == 2
    first, second = (one for one in grid.sent if one.metadata.message_type == "train")
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
    ],
)
def test_who_lets_deadlines_pass_holds_up_fewer_and_fewer_rounds(
    trains: str, asked_of_100: int
) -> None:
    """However it goes about it: probes it answers, and says that all is well again."""
    grid, exchanged, now, asked = FakeGrid(), Exchange(), 0.0, 0
    while_asked: list[int | Error | None] = [0 if trains == "loses its orders" else None]
    grid.fails_after = 30  # of seconds and more
    killed = Error(ErrorCode.CLIENT_APP_CRASHED, "killed") if trains == "is killed" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange.time, "monotonic", lambda: now)
        patch.setattr(exchange, "pause_on", lambda grid, seconds: wait(seconds))
        patch.setattr(exchange, "PROBE_AFTER", 1.0)

        def wait(seconds: float) -> None:
            nonlocal now
            now += seconds

        for _ in range(100):
            start = now
            if 1 not in exchanged.overdue | exchanged.resting:
                replies = trains == "replies to every other" and asked % 2
                grid.answers = {(1, "train"): [0 if replies else killed], (1, ALIVE): while_asked}
                ask(exchanged, grid, 1, deadline=10.0)
                asked += 1
            grid.answers = {(1, ALIVE): [0]}
            look(exchanged, grid, 1)
            now = max(now, start + 10.0)
    assert asked == asked_of_100


def waited_for(
    grid: FakeGrid,
    enough: float,
    *,
    simulated: bool = False,
    least: int = 0,
    failed: Collection[int] = (),
) -> tuple[set[int], float]:
    """Who of five nodes was heard, and how long that took on the clock of the looks."""

    def is_answer(reply: Message) -> bool:
        return not reply.has_error() and reply.metadata.src_node_id not in failed

    exchanged = Exchange(enough=enough, is_answer=is_answer)
    now = 100.0
    if simulated:
        exchanged.trust_nodes()

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange.time, "monotonic", lambda: now)
        patch.setattr(exchange, "pause_on", lambda grid, seconds: wait(seconds))
        patch.setattr(exchange, "PROBE_AFTER", 1e9)
        orders = [order(node) for node in range(1, 6)]
        replies = exchanged.ask(cast(Grid, grid), orders, 1000.0, least=least)
    assert exchanged.waited == pytest.approx(now - 100, abs=0.06)
    heard = {one.metadata.src_node_id for one in replies if not one.has_error()}
    assert exchanged.overdue == {1, 2, 3, 4, 5} - {one.metadata.src_node_id for one in replies}
    return heard, exchanged.waited


def test_when_enough_have_answered_the_others_have_as_long_again() -> None:
    grid = FakeGrid()
    slow = {(1, "train"): [0], (2, "train"): [15], (3, "train"): [70]}  # looks: 0, 1 and 24 s
    grid.answers = {**slow, (4, "train"): [90], (5, "train"): [None]}
    heard, seconds = waited_for(grid, 0.6)
    assert heard == {1, 2, 3, 4}  # the fourth came within as long again
    assert 45 < seconds < 55
    grid = FakeGrid()
    grid.answers = {**slow, (4, "train"): [90], (5, "train"): [None]}
    heard, seconds = waited_for(grid, 0.2)
    assert heard == {1, 2}  # ten seconds at least
    assert 10 <= seconds < 11


def test_errors_are_not_enough_and_in_a_simulation_nothing_is() -> None:
    grid = FakeGrid()
    failed = Error(code=0, reason="its disk is full")
    grid.answers = {(node, "train"): [failed] for node in (1, 2, 3)}
    grid.answers |= {(4, "train"): [0], (5, "train"): [None]}
    assert waited_for(grid, 0.6) == ({4}, 1000.0)
    grid = FakeGrid()
    grid.answers = {(5, "train"): [100]}
    heard, seconds = waited_for(grid, 0.6, failed={1, 2, 3})  # ordinary replies that give nothing
    assert (heard, seconds > 20) == ({1, 2, 3, 4, 5}, True)
    grid = FakeGrid()
    grid.answers = {(5, "train"): [100]}
    heard, seconds = waited_for(grid, 0.6, least=5)  # as a masked sum needs them
    assert (heard, seconds > 20) == ({1, 2, 3, 4, 5}, True)
    grid = FakeGrid()
    grid.answers = {(5, "train"): [100]}
    heard, seconds = waited_for(grid, 0.6, simulated=True)
    assert (heard, seconds > 20) == ({1, 2, 3, 4, 5}, True)


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
    monkeypatch.setattr(probes, "PROBE_LIFE", 0.0)
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
