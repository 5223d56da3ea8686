"""A run that is killed and resumed ends as if nothing had happened, whenever it was killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MessageType

from fedproto_app.core.metrics import Metric
from fedproto_app.engine.local import nodes_sharing
from fedproto_app.experiments.invariants import apart, everything
from fedproto_app.report.artefacts import RunFolder, settings_digest
from fedproto_app.report.runs import read_clients, read_rounds
from fedproto_app.server.checkpoint import stored_settings
from fedproto_app.server_app import conduct
from fedproto_app.settings import settings_from
from tests.helpers.local_grid import BAD_NODE, LocalGrid, small_settings
from tests.helpers.reported import fields_of, reported_metrics, with_fields, with_metric

ERRORS = [3.0, 1.0, 2.0, 2.0, 0.5, 0.4]  # of validation, by round: the least of four is in round 2


class Killed(BaseException):
    """The server is killed here."""


def play(
    tmp_path: Path,
    label: str = "test",
    *,
    kill: int = 0,
    validation: Sequence[float] = (),
    change: Callable[[LocalGrid], None] = lambda grid: None,
    **changes: Any,
) -> Path:
    """Make a run with two nodes, or resume the run in the folder, and return the folder.

    kill: the message whose reply the server does not live to see. validation: the validation
    errors of the rounds as the clients report them. change: alters the grid before the run.
    """
    resume = (tmp_path / "runs" / label / "settings.toml").exists()
    table = {"method": "fuels", "participation": 0.6, "rounds": 4, **changes}
    settings = small_settings(tmp_path, **table, **{"output.name": label, "output.resume": resume})
    answered = 0

    def count(node_id: int, reply: Message) -> Message:
        nonlocal answered
        answered += reply.metadata.message_type != "query.roster"
        if 0 < kill == answered:
            raise Killed
        fields, metric = fields_of(reply), Metric("validation-mse")
        if validation and metric in reported_metrics(fields):
            error = validation[int(reply.metadata.group_id) - 1]
            with_fields(reply, with_metric(fields, metric, [error] * len(fields["names"])))
        return reply

    grid = LocalGrid(settings, nodes_sharing(settings.data, 2, tmp_path / "state"), tamper=count)
    change(grid)
    with RunFolder(settings) as folder, pytest.raises(Killed) if kill else nullcontext():
        conduct(grid, folder)
    return folder.path


def assert_same(actual: Path, expected: Path) -> None:
    deviation = apart(everything(actual), everything(expected), 0.0)
    assert deviation.held, deviation
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (actual, expected)]
    for summary in summaries:
        del summary["seconds"], summary["bytes_down"], summary["settings_digest"]
    assert summaries[0] == summaries[1]


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedproto_app.core.run_lock._DYING", 0.1)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a method's run that nobody killed."""
    return cache(lambda method: play(tmp_path_factory.mktemp(method), method=method))


def cut_newest(run: Path) -> None:
    [file] = (run / "checkpoint" / "round-000003").glob("*.[ns][pa][zf]*")
    file.write_bytes(file.read_bytes()[:-3])


def unlink_all(run: Path) -> None:
    for place in (run / "checkpoint").glob("round-*"):
        (place / "server.json").unlink()


def write_half_a_line(run: Path) -> None:
    with (run / "rounds.jsonl").open("a") as rounds:
        rounds.write('{"round": 3, "loss": {"to')  # the round's checkpoint was still to come


@pytest.mark.parametrize(
    ("method", "kill", "spoil", "goes_on_from"),
    [
        ("fuels", 1, lambda run: None, 0),  # in the first round
        ("fedavg", 1, lambda run: None, 0),
        ("fuels", 7, cut_newest, 2),  # in round 4
        ("fedavg", 13, cut_newest, 2),
        ("fuels", 7, unlink_all, 0),
        ("fuels", 5, write_half_a_line, 2),
    ],
)
def test_whatever_a_killed_run_leaves_it_goes_on_from_what_is_whole(
    tmp_path: Path,
    uninterrupted: Callable[[str], Path],
    caplog: pytest.LogCaptureFixture,
    method: str,
    kill: int,
    spoil: Callable[[Path], None],
    goes_on_from: int,
) -> None:
    spoil(play(tmp_path, method=method, kill=kill))
    run = play(tmp_path, method=method)
    assert f"event=resumed run=test round={goes_on_from}" in caplog.text
    assert ("event=checkpoint-refused" in caplog.text) == (spoil in (cut_newest, unlink_all))
    assert_same(run, uninterrupted(method))


@pytest.mark.parametrize("complete", [0, 1, 2])
def test_power_that_fails_may_cost_lines_but_not_the_run(tmp_path: Path, complete: int) -> None:
    """All checkpoints are on the disk, and of rounds.jsonl some lines and a piece of one."""
    file = play(tmp_path, method="solo", rounds=3) / "rounds.jsonl"
    all_lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(all_lines[:complete]) + all_lines[complete][:100])
    lines = read_rounds(play(tmp_path, method="solo", rounds=4))
    assert [line["round"] for line in lines] == [*range(1, complete + 1), 4]


def lose_a_nodes_sums(grid: LocalGrid) -> None:
    """Let one node's reply to the training order get lost."""

    def is_lost(node: int, reply: Message) -> bool:
        return node == BAD_NODE and reply.metadata.message_type == MessageType.TRAIN

    grid.tamper = lambda node, reply: None if is_lost(node, reply) else reply


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "kindred"},
        {"method": "kindred", "kindred.sharing": "common"},
        {"method": "analytic"},
    ],
)
def test_a_finished_closed_form_takes_in_a_late_site_in_one_further_round(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """All clients end as if the site had been there in time, whatever `rounds` says."""
    changes |= {"keep": "last", "rounds": 20}
    expected = read_clients(play(tmp_path, "whole", **changes))
    run = play(tmp_path, change=lose_a_nodes_sums, **changes)
    assert read_clients(run).by_client("mse") != expected.by_client("mse")
    added = play(tmp_path, kill=3, **changes)  # in the further round, before it is evaluated
    assert not (added / "summary.json").exists()
    added = play(tmp_path, **changes)
    assert [line["round"] for line in read_rounds(added)] == [1, 2]
    assert read_clients(added).by_client("mse") == expected.by_client("mse")
    assert len(read_rounds(play(tmp_path, **changes))) == 3


def test_a_further_round_of_noised_sums_costs_epsilon(tmp_path: Path) -> None:
    changes = {"method": "analytic", "privacy.mechanism": "gaussian", "privacy.noise-multiplier": 5}
    first = read_rounds(play(tmp_path, **changes))[-1]["privacy"]
    second = read_rounds(play(tmp_path, **changes))[-1]["privacy"]
    assert (first["releases"], second["releases"]) == (1, 2)
    assert second["epsilon"] > first["epsilon"]


def test_patience_is_remembered_and_a_run_that_lost_it_goes_on_with_more(tmp_path: Path) -> None:
    changes = {"method": "solo", "rounds": 6, "participation": 1.0, "validation": ERRORS}
    expected = play(tmp_path, "whole", patience=2, **changes)
    play(tmp_path, patience=2, kill=7, **changes)
    run = play(tmp_path, patience=2, **changes)
    assert len(read_rounds(run)) == 4
    assert_same(run, expected)
    assert len(read_rounds(play(tmp_path, patience=3, **changes))) == 6


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_resumed_run_waits_for_the_nodes_it_had_but_not_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, comes_back: bool
) -> None:
    play(tmp_path, kill=5)

    def leave(grid: LocalGrid) -> None:
        grid.connected = {1000}
        looks, connected_nodes = iter(range(10**6)), grid.get_node_ids

        def get_node_ids() -> Any:
            if next(looks) == 2 and comes_back:
                grid.connected = {1000, 1001}
            return connected_nodes()

        grid.get_node_ids = get_node_ids  # type: ignore[method-assign]

    run = play(tmp_path, change=leave, **{"nodes.start-deadline": 0.5})
    asked = [line["asked"] for line in read_rounds(run)]
    assert asked == ([2, 2, 2, 2] if comes_back else [2, 2, 1, 1])
    assert ("event=missing node=1" in caplog.text) != comes_back


@pytest.mark.parametrize("method", ["solo", "fuels"])
def test_a_finished_run_that_gets_more_rounds_is_one_that_had_them_from_the_start(
    tmp_path: Path, method: str, uninterrupted: Callable[[str], Path]
) -> None:
    play(tmp_path, method=method, rounds=3)
    run = play(tmp_path, method=method)
    assert_same(run, uninterrupted(method))
    stored, from_start = stored_settings(run), stored_settings(uninterrupted(method))
    assert (stored.rounds, stored.output.resume) == (4, False)
    assert settings_digest(stored) == settings_digest(from_start)


def test_an_extended_run_that_is_killed_is_an_unfinished_one(tmp_path: Path) -> None:
    play(tmp_path, method="solo", rounds=2)
    run = play(tmp_path, method="solo", kill=1)
    assert not (run / "summary.json").exists()
    settings = stored_settings(run).model_dump(by_alias=True)
    settings["output"]["resume"] = True
    RunFolder(settings_from(settings)).close()
    assert len(read_rounds(play(tmp_path, method="solo"))) == 4
