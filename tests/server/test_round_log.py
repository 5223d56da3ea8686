"""The record of a round by hand."""

from __future__ import annotations

from fedproto_app.core.messages import Reply
from fedproto_app.server.round_log import History, RoundLog


def train(history: History, server_round: int, *steps: float) -> None:
    history.begin_round(server_round)
    names = [f"c{row}" for row in range(len(steps))]
    history.record(Reply(names, [1] * len(names), steps=list(steps), node="n"))


def test_a_step_limit_follows_the_latest_median_of_five_clients() -> None:
    history = History()
    train(history, 1, 1.0, 2.0, 3.0, 1e9)  # too few
    assert history.usual_step == 0
    train(history, 2, 1.0, 2.0, 3.0, 4.0, 1e9, 1e9)
    assert history.usual_step == 3  # of six, the lower median
    train(history, 3, 1.0)
    assert history.usual_step == 3
    resumed = History()
    resumed.recall(history.memory())
    assert resumed.usual_step == 3


def test_steps_as_long_as_allowed_were_shortened() -> None:
    steps = [1.0, 3.0, 2.9]
    assert RoundLog(steps=steps, longest_step=3.0).shortened == 1
    assert RoundLog(steps=steps).shortened == 0  # any length
