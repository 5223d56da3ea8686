"""Who is asked and evaluated, what the history keeps, and runs whose nodes come and go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MessageType

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError
from fedproto_app.core.events import parse_event
from fedproto_app.core.messages import Refusal, Reply
from fedproto_app.core.metrics import Metric
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.server.federation import Federation, Selection
from fedproto_app.server.round_log import MOST_METRICS, MOST_REFUSALS, History, RoundLog
from fedproto_app.server_app import log_table
from fedproto_app.settings import settings_from
from tests.helpers.local_grid import (
    BAD_NODE,
    LocalGrid,
    run_on,
    run_small,
    small_settings,
    synthetic_nodes,
)
from tests.helpers.reported import fields_of
from tests.report.made_runs import make_run

KEYS = [ClientKey(f"c{i}", str(i % 2)) for i in range(10)]


# --- selection ------------------------------------------------------------------------------------


def select(
    keys: list[ClientKey], share: float, server_round: int, newcomers: Sequence[ClientKey] = ()
) -> list[ClientKey]:
    selection = Selection(settings_from({"participation": share}), lambda number: False)
    return selection.choose(keys, server_round, newcomers)


def test_everybody_or_a_seeded_share_is_asked() -> None:
    assert select(KEYS, 1.0, 1) == KEYS
    rounds = [select(KEYS, 0.3, number) for number in range(1, 30)]
    assert {len(chosen) for chosen in rounds} == {3}
    assert rounds[0] == select(KEYS, 0.3, 1) == sorted(rounds[0])
    assert {key for chosen in rounds for key in chosen} == set(KEYS)


def test_at_least_one_is_asked_and_newcomers_always() -> None:
    assert len(select(KEYS, 0.01, 1)) == 1
    chosen = select(KEYS, 0.1, 1, KEYS[:4])
    assert chosen == [key for key in KEYS if key in {*KEYS[:4], *select(KEYS, 0.1, 1)}]
    assert select([], 0.5, 1) == []


def test_selection_does_not_depend_on_how_clients_are_spread_over_nodes() -> None:
    elsewhere = [ClientKey(key.client, "all") for key in KEYS]
    ours = [key.client for key in select(KEYS, 0.5, 7)]
    assert ours == [key.client for key in select(elsewhere, 0.5, 7)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [3, 4, 5, 6, 7, 8, 9]),
        ({"evaluate-every": 3}, [5, 8, 9]),  # counted from the second phase's first round
        ({"evaluate-every": 7}, [9]),
        ({"evaluate-every": 100}, [9]),
        ({"evaluate-every": 3, "method": "fedavg"}, [3, 6, 7]),  # has no first phase
        ({"evaluate-every": 3, "encoder.path": "given"}, [3, 6, 7]),
    ],
)
def test_only_models_of_the_second_phase_are_evaluated(
    changes: dict[str, Any], expected: list[int]
) -> None:
    table = {"task": "sequence-classification", "method": "fed-react", "encoder.rounds": 2}
    settings = settings_from({**table, "rounds": 7, **changes})
    selection = Federation(settings, "run", "token").selection
    every_round = range(1, settings.all_rounds + 1)
    assert [number for number in every_round if selection.evaluates(number)] == expected


# --- the history ----------------------------------------------------------------------------------


def test_refusals_are_logged_with_their_round_and_a_flood_of_them_is_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = History()
    history.begin_round(2)
    for _ in range(MOST_REFUSALS + 5):
        history.refuse(Refusal("n\x1b[2J", "a", "why"))
    history.refuse(Refusal("m", "", "why"))
    assert r'event=refused round=2 node="n\\x1b[2J" client=a reason=why' in caplog.text
    refused = history.log.refused
    assert len(refused) == MOST_REFUSALS + 1
    assert refused[0] == Refusal(r"n\x1b[2J", "a", "why")
    assert refused[-2].reason == f"{MOST_REFUSALS} refusals in a round; no more are reported"
    assert refused[-1].node == "m"


def test_metrics_under_ever_other_names_are_not_kept() -> None:
    history = History()
    for start in (0, MOST_METRICS - 1):
        metrics = {Metric("accuracy", rule=f"r{start + n}"): [0.5] for n in range(MOST_METRICS - 1)}
        history.record(Reply(["a"], [1], metrics=metrics, node="n"))
    assert len(history.results[ClientKey("a", "n")].metrics) == MOST_METRICS - 1
    [refusal] = history.log.refused
    assert refusal.reason == "reports more than 5000 metrics; these are not kept"


# --- whole runs -----------------------------------------------------------------------------------


def test_a_late_joiner_first_reports_and_is_guided_from_then_on(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, rounds=4)
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state"))
    # The simulation's roster would wait for both. As a deployment it starts with one.
    grid.connected = {1000}

    def join(node_id: int, reply: Message) -> Message:
        if reply.metadata.group_id == "2":
            grid.connected = {1000, 1001}
        return reply

    grid.tamper = join
    folder, _ = run_on(grid, settings)
    assert [line["clients"] for line in read_rounds(folder.path)] == [4, 4, 8, 8]
    to_late = [m for m in grid.sent if m.metadata.dst_node_id == 1001][1:]
    guided = [fields_of(message)["guided"] for message in to_late]
    assert guided[0] == []
    assert len(guided[1]) == 4


def on_training(grid: LocalGrid, change: Callable[[], None]) -> None:
    """Call this when a node has trained, before its reply arrives."""

    def tamper(node_id: int, reply: Message) -> Message:
        if node_id == BAD_NODE and reply.metadata.message_type == MessageType.TRAIN:
            change()
        return reply

    grid.tamper = tamper


def test_when_all_nodes_are_gone_the_run_ends_with_an_error(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **{"nodes.start-deadline": 0.3})
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state"))
    on_training(grid, grid.connected.clear)
    with pytest.raises(FederationError, match="all nodes are gone"):
        run_on(grid, settings)
    assert (tmp_path / "runs/test/clients.csv").exists()  # what was found is kept
    assert not (tmp_path / "runs/test/summary.json").exists()


def test_a_restarted_node_may_bring_fewer_clients(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state"))

    def restart() -> None:
        if context := grid.contexts.pop(BAD_NODE, None):  # the same node under a new id
            half = {"num-partitions": 4, "node-name": "1"}
            context.node_config = {**context.node_config, **half}
            grid.contexts[2001] = context
            grid.connected = {1000, 2001}

    on_training(grid, restart)
    folder, _ = run_on(grid, settings)
    assert [line["clients"] for line in read_rounds(folder.path)] == [8, 6, 6]
    assert len(read_clients(folder.path).clients) == 8


@pytest.mark.parametrize("method", ["solo", "fuels"])
def test_an_evaluating_round_covers_those_who_trained_since(tmp_path: Path, method: str) -> None:
    changes = {"method": method, "participation": 0.3, "evaluate-every": 3}
    folder, _ = run_small(tmp_path, **changes)
    lines = read_rounds(folder.path)
    assert [line["clients"] for line in lines] == [8, 3, 3]  # newcomers first
    assert [line["test_mse"] is None for line in lines] == [True, True, False]
    assert len(read_clients(folder.path).clients) == 8


@pytest.mark.parametrize("method", ["fuels", "fedavg", "fedrep", "fedproto"])
def test_parameters_are_counted_per_client_however_they_share_nodes(
    tmp_path: Path, method: str
) -> None:
    def counts(nodes: int) -> list[tuple[int, int]]:
        changes = {"method": method, "output.name": f"on-{nodes}"}
        folder, _ = run_small(tmp_path, nodes=nodes, **changes)
        lines = read_rounds(folder.path)
        return [(line["parameters_up"], line["parameters_down"]) for line in lines]

    assert counts(1) == counts(8)


# --- the record of a round ------------------------------------------------------------------------


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


# --- the log's last lines -------------------------------------------------------------------------


def test_the_table_and_where_the_report_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path / "run")
    (run / "report.html").touch()
    with caplog.at_level(logging.INFO, "flwr"):
        log_table(run)
    *table, last = [record.getMessage() for record in caplog.records]
    assert any("test MSE (best validation)" in line and "0.3750" in line for line in table)
    assert max(map(len, table)) <= 80
    assert parse_event(last) == {
        "event": "finished",
        "folder": str(run),
        "report": str(run / "report.html"),
    }
