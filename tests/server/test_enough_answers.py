"""How long the others are waited for when enough nodes have answered."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import pytest
from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedproto_app.server import exchange
from fedproto_app.server.exchange import Exchange
from tests.server.fake_grid import FakeGrid, order


def waited_for(
    grid: FakeGrid,
    enough: float,
    *,
    simulated: bool = False,
    least: int = 0,
    failed: Collection[int] = (),
    slow_to_read: Collection[int] = (),
) -> tuple[set[int], float]:
    """Return which of five nodes answered in time, and the seconds waited on the fake clock."""

    def is_answer(reply: Message, order: Message) -> bool:
        if reply.metadata.src_node_id in slow_to_read:
            wait(500.0)
        return not reply.has_error() and reply.metadata.src_node_id not in failed

    exchanged = Exchange(enough=enough, is_answer=is_answer)
    clock = 100.0
    if simulated:
        exchanged.trust_nodes()

    def wait(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange.time, "monotonic", lambda: clock)
        patch.setattr(exchange, "pause_on", lambda grid, seconds: wait(seconds))
        patch.setattr(exchange, "PROBE_AFTER", 1e9)
        patch.setattr(exchange, "SHORTEST_PAUSE", 0.005)
        orders = [order(node) for node in range(1, 6)]
        replies = exchanged.ask(cast(Grid, grid), orders, 1000.0, least=least)
    assert exchanged.waited == pytest.approx(clock - 100 - 500 * len(slow_to_read), abs=0.06)
    answered = {reply.metadata.src_node_id for reply in replies if not reply.has_error()}
    assert exchanged.overdue == {1, 2, 3, 4, 5} - {reply.metadata.src_node_id for reply in replies}
    return answered, exchanged.waited


def test_when_enough_have_answered_the_others_have_as_long_again() -> None:
    grid = FakeGrid()
    slow = {(1, "train"): [0], (2, "train"): [15], (3, "train"): [70]}  # looks: 0, 1 and 24 s
    grid.answers = {**slow, (4, "train"): [90], (5, "train"): [None]}
    answered, seconds = waited_for(grid, 0.6)
    assert answered == {1, 2, 3, 4}  # the fourth came within as long again
    assert 45 < seconds < 55
    grid = FakeGrid()
    grid.answers = {**slow, (4, "train"): [90], (5, "train"): [None]}
    answered, seconds = waited_for(grid, 0.2)
    assert answered == {1, 2}  # ten seconds at least
    assert 10 <= seconds < 11


def test_what_takes_long_to_read_is_taken_from_nobodys_time() -> None:
    grid = FakeGrid()
    grid.answers = {(node, "train"): [15 * node] for node in range(2, 6)}
    answered, _ = waited_for(grid, 0.2, slow_to_read={1})
    assert 2 in answered
    grid = FakeGrid()
    grid.answers = {(node, "train"): [15 * node] for node in range(2, 6)}
    assert waited_for(grid, 1.0, slow_to_read={1, 2, 3})[0] == {1, 2, 3, 4, 5}


def test_errors_are_not_enough_and_in_a_simulation_nothing_is() -> None:
    grid = FakeGrid()
    failed = Error(code=0, reason="its disk is full")
    grid.answers = {(node, "train"): [failed] for node in (1, 2, 3)}
    grid.answers |= {(4, "train"): [0], (5, "train"): [None]}
    assert waited_for(grid, 0.6) == ({4}, 1000.0)
    grid = FakeGrid()
    grid.answers = {(5, "train"): [100]}
    # Ordinary replies without a usable part.
    answered, seconds = waited_for(grid, 0.6, failed={1, 2, 3})
    assert (answered, seconds > 20) == ({1, 2, 3, 4, 5}, True)
    grid = FakeGrid()
    grid.answers = {(5, "train"): [100]}
    answered, seconds = waited_for(grid, 0.6, least=5)  # as a masked sum needs them
    assert (answered, seconds > 20) == ({1, 2, 3, 4, 5}, True)
    grid = FakeGrid()
    grid.answers = {(5, "train"): [100]}
    answered, seconds = waited_for(grid, 0.6, simulated=True)
    assert (answered, seconds > 20) == ({1, 2, 3, 4, 5}, True)
