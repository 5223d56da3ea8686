"""The encoder travels once, heads every round: who gets what, and what it costs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MessageType

from fedproto_app.core.messages import Guidance, Order
from fedproto_app.core.wire import read_order
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.server_app import conduct
from tests.helpers.local_grid import LocalGrid, sequence_settings, synthetic_nodes
from tests.strategies.fed_react.by_hand import APART, Played, at, play, server
from tests.strategies.server_half import admit

HEAD = 10 * (10 + 1)  # values of a head of `sequence_settings`: classes x (output-dim + 1)
FIRST = 3  # the first round of phase 2
BAD_NODE = 1001

Tamper = Callable[[int, Message], Message | None]


def has_encoder(guidance: Guidance) -> bool:
    return any(name.startswith("encoder") for name in guidance.arrays)


def got_encoder(played: Played) -> list[int]:
    """The nodes to which the encoder went with the order to train."""
    return [node for node, guidance in played.train.items() if has_encoder(guidance)]


# --- by hand ----------------------------------------------------------------------------------


def test_a_node_gets_the_encoder_once() -> None:
    strategy = server("ab", "cd")
    assert got_encoder(play(strategy, 1, APART)) == [1, 2]
    second = play(strategy, 2, APART)
    assert [guidance.arrays for guidance in second.train.values()] == [{}, {}]
    assert not any(map(has_encoder, second.evaluate.values()))


def test_a_node_that_did_not_answer_gets_the_encoder_again() -> None:
    strategy = server("ab", "cd")
    played = play(strategy, 1, {"a": APART["a"], "b": APART["b"]})
    assert list(played.evaluate) == [1]  # the other node has nothing to evaluate with
    assert got_encoder(play(strategy, 2, APART)) == [2]
    play(strategy, 3, {"c": APART["c"], "d": APART["d"]})
    assert got_encoder(play(strategy, 4, APART)) == [1]


def test_a_node_that_joins_late_gets_the_encoder_and_then_a_head() -> None:
    strategy = server("ab")
    for number in (1, 2):
        play(strategy, number, APART)
    admit(strategy.federation, "cd")
    joined = play(strategy, 3, APART)
    assert got_encoder(joined) == [2]
    assert list(joined.evaluate) == [1, 2]
    play(strategy, 4, APART)
    last = play(strategy, 5, APART)
    assert got_encoder(last) == []
    assert set(last.sent) == set("abcd")


def test_a_node_that_fails_to_evaluate_gets_the_encoder_again() -> None:
    strategy = server("ab", "cd")
    play(strategy, 1, APART, unevaluated=[2])
    assert got_encoder(play(strategy, 2, APART)) == [2]


def test_a_head_whose_evaluation_was_not_answered_is_sent_again() -> None:
    strategy = server("ab", "cd")
    play(strategy, 1, APART)
    first = play(strategy, 2, APART, unevaluated=[2])
    assert set(first.sent) == set("abcd")
    moved = {**APART, "b": at(80)[0]}  # both clusters change, so there is nothing new to send
    third = play(strategy, 3, moved)
    assert third.sent == {name: first.sent[name] for name in "cd"}
    assert not third.evaluate[1].clients


def test_a_newer_head_takes_the_place_of_one_that_did_not_arrive() -> None:
    strategy = server("ab", "cd")
    play(strategy, 1, APART)
    play(strategy, 2, APART, unevaluated=[2])
    longer = {name: (2 * x, 2 * y) for name, (x, y) in APART.items()}
    heads_sent = play(strategy, 3, longer).sent
    assert heads_sent["c"] == pytest.approx(
        [longer["c"][0] / 2 + longer["d"][0] / 2, heads_sent["c"][1]]
    )


def test_more_samples_than_a_round_has_are_refused() -> None:
    """|M_t| weighs the head in its cluster's mean."""
    strategy = server("ab", "cd", **{"fed-react.samples": 4})
    used = dict.fromkeys("abcd", 4)
    play(strategy, 1, APART, used)
    heads_sent = play(strategy, 2, APART, {**used, "b": 8}).sent
    (refusal,) = strategy.federation.history.log.refused
    assert (refusal.node, refusal.client) == ("node-1", "b")
    assert refusal.reason == "reports 8 train samples, expected 1 … 4"
    assert heads_sent["a"] == pytest.approx(APART["a"])  # of a alone


@pytest.mark.parametrize("value", [1.1e6, -1e15])
def test_a_head_that_is_too_large_is_refused_and_not_clustered(value: float) -> None:
    strategy = server("ab", "cd", **{"fed-react.similarity": "centred-cosine"})
    play(strategy, 1, {**APART, "b": (1.0, value)})
    (refusal,) = strategy.federation.history.log.refused
    assert (refusal.node, refusal.client) == ("node-1", "b")
    assert refusal.reason.startswith(f"its head holds ±{abs(value):g}, more than 1e+06")
    assert strategy.state()["names"].tolist() == ["a", "c", "d"]
    play(strategy, 2, {**APART, "b": (1.0, 1e6)})
    assert strategy.federation.history.log.refused == []
    assert strategy.state()["names"].tolist() == ["a", "c", "d", "b"]


def test_a_node_under_a_new_id_gets_the_encoder_again() -> None:
    strategy = server("ab", "cd")
    play(strategy, 1, APART)
    roster = strategy.federation.members.roster
    roster.connected = {1, 7}
    roster.admit(7, roster.members["node-2"].clients)
    assert got_encoder(play(strategy, 2, APART)) == [7]


def test_who_was_never_heard_is_asked_whatever_the_share() -> None:
    strategy = server("a", "b", "c", "d", participation=0.25)
    assert len(play(strategy, 1, {"a": APART["a"], "b": APART["b"]}).train) == 4
    orders_sent = play(strategy, 2, APART).train
    assert {3, 4} <= set(orders_sent)  # c and d did not answer
    assert len(play(strategy, 3, APART).train) == 1


# --- whole runs -------------------------------------------------------------------------------


def run(
    tmp_path: Path, tamper: Tamper | None = None, **changes: Any
) -> tuple[RunFolder, LocalGrid]:
    settings = sequence_settings(tmp_path, **{"encoder.rounds": FIRST - 1, **changes})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    grid = LocalGrid(settings, nodes, tamper)
    folder = RunFolder(settings)
    conduct(grid, folder)
    return folder, grid


def orders(grid: LocalGrid, kind: str, server_round: int) -> dict[int, Order]:
    return {
        message.metadata.dst_node_id: read_order(message)
        for message in grid.sent
        if message.metadata.message_type == kind and message.metadata.group_id == str(server_round)
    }


def with_encoder(grid: LocalGrid, server_round: int) -> list[int]:
    orders_sent = orders(grid, MessageType.TRAIN, server_round)
    return sorted(node for node, order in orders_sent.items() if has_encoder(order.guidance))


@pytest.mark.parametrize("method", ["fed-react", "ifca", "flsc"])
def test_a_run_sends_the_encoder_in_its_first_round_and_then_heads_alone(
    tmp_path: Path, method: str
) -> None:
    folder, grid = run(tmp_path, method=method)
    encoder = sum(a.size for a in orders(grid, MessageType.TRAIN, 1)[1000].guidance.arrays.values())
    shown = 0 if method == "fed-react" else 2 * HEAD  # both clusters' heads, to each client
    values_up = HEAD if method == "fed-react" else HEAD + 2  # with what it chose
    round_lines = read_rounds(folder.path)
    assert len(round_lines) == FIRST - 1 + 4
    for line in round_lines[: FIRST - 1]:
        assert line["parameters_up"] == line["parameters_down"] == 8 * encoder
    for number, line in enumerate(round_lines[FIRST - 1 :], start=FIRST):
        guided = [
            order.guidance.clients for order in orders(grid, MessageType.EVALUATE, number).values()
        ]
        heads = sum(map(len, guided))
        encoder_values = encoder if number == FIRST else 0
        assert with_encoder(grid, number) == ([1000, 1001] if encoder_values else [])
        assert line["parameters_up"] == 8 * values_up
        assert line["parameters_down"] == 8 * (encoder_values + shown) + heads * HEAD
        if method == "fed-react":
            assert line["figures"]["clients_sent_a_head"] == heads
            assert line["figures"]["rand_index"] == line["rand_index"]
        assert 4 * line["parameters_up"] < line["bytes_up"] < 8 * line["parameters_up"]
    assert round_lines[FIRST]["bytes_down"] < round_lines[FIRST - 1]["bytes_down"]
    assert heads == 8  # in the last round


@pytest.mark.parametrize("phase", [MessageType.TRAIN, MessageType.EVALUATE])
def test_a_node_that_lost_its_disk_recovers(tmp_path: Path, phase: str) -> None:
    """Lost after training, it cannot evaluate. After that, it cannot train. Then it can again."""

    def tamper(node_id: int, reply: Message) -> Message:
        metadata = reply.metadata
        if node_id == BAD_NODE and metadata.group_id == "3" and metadata.message_type == phase:
            for folder in (tmp_path / "state").glob("test-*"):
                shutil.rmtree(folder / "1")
        return reply

    folder, grid = run(tmp_path, tamper)
    round_lines = read_rounds(folder.path)
    if phase == MessageType.TRAIN:
        assert [line["clients"] for line in round_lines[2:]] == [8, 8, 8, 8]
        assert with_encoder(grid, 4) == [1001]
        failed = round_lines[2]["refused"]
    else:
        assert [line["clients"] for line in round_lines[2:]] == [8, 4, 8, 8]
        assert [with_encoder(grid, number) for number in (4, 5, 6)] == [[], [1001], []]
        failed = round_lines[3]["refused"]
    assert [refusal["node"] for refusal in failed] == ["1"]
    assert "this node has no encoder yet" in failed[0]["reason"]
    assert round_lines[-1]["refused"] == []
    assert 0 <= round_lines[-1]["accuracy"] <= 1
