"""Bad replies, silent nodes and odd shards: refused by name, counted, and nothing else lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors import SafetensorError

from fedproto_app import server_app
from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.messages import Order
from fedproto_app.core.wire import QUESTION, numpy_arrays, write_order
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server.federation import Federation
from fedproto_app.server_app import conduct
from fedproto_app.settings import settings_from
from tests.local_grid import (
    LocalGrid,
    digits_settings,
    run_locally,
    sequence_settings,
    small_settings,
    synthetic_nodes,
)
from tests.reported import fields_of
from tests.server.bad_replies import (
    BAD_NODE,
    change_arrays,
    count_nothing,
    fail,
    on_reply,
    put_nan,
    rounds,
    say_nothing,
)


def test_more_clusters_than_clients_stop_a_simulation_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedproto_app.node.process.in_simulation", lambda: True)
    settings = sequence_settings(tmp_path, **{"fed-react.clusters": 9})
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing"))
    with pytest.raises(FederationError, match=r"fed-react\.clusters = 9: more than the 8 clients"):
        conduct(grid, settings, RunFolder(settings))
    assert {message.metadata.message_type for message in grid.sent} == {"query.roster"}


def test_a_node_whose_clients_are_too_many_is_turned_away(tmp_path: Path) -> None:
    """What the server keeps of clients grows with their number, in clusters with its square."""
    settings = small_settings(tmp_path, **{"nodes.maximum-clients": 7})
    folder, grid = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    lines = rounds(folder)
    assert [line["clients"] for line in lines] == [4, 4, 4]
    (refusal,) = lines[0]["refused"]
    assert refusal["reason"] == (
        "with its 4 clients there would be 8, more than nodes.maximum-clients = 7"
    )
    message_types = [message.metadata.message_type for message in grid.sent]
    assert message_types.count("query.roster") == 2  # it is not asked again
    just_enough = small_settings(tmp_path, **{"nodes.maximum-clients": 8, "output.name": "8"})
    folder, _ = run_locally(just_enough, synthetic_nodes(2, tmp_path / "state"))
    assert rounds(folder)[0]["clients"] == 8


def in_phases(
    encoder_rounds: int, evaluate_every: int = 1, task_rounds: int = 7, **changes: Any
) -> Federation:
    """A federation whose run has a first phase of so many rounds."""
    settings = settings_from(
        {
            "task": "sequence-classification",
            "method": "fed-react",
            "encoder.rounds": encoder_rounds,
            "rounds": task_rounds,
            "evaluate-every": evaluate_every,
            **changes,
        }
    )
    return Federation(settings, "run", "token")


@pytest.mark.parametrize(
    ("federation", "expected"),
    [
        (in_phases(2), [3, 4, 5, 6, 7, 8, 9]),
        (in_phases(2, evaluate_every=3), [5, 8, 9]),  # counted from the second phase's first round
        (in_phases(2, evaluate_every=7), [9]),
        (in_phases(2, evaluate_every=100), [9]),
        (in_phases(2, evaluate_every=3, method="fedavg"), [3, 6, 7]),  # has no first phase
        (in_phases(2, evaluate_every=3, **{"encoder.path": "given"}), [3, 6, 7]),
    ],
)
def test_only_models_of_the_second_phase_are_evaluated(
    federation: Federation, expected: list[int]
) -> None:
    every_round = range(1, federation.settings.all_rounds + 1)
    assert [number for number in every_round if federation.selection.evaluates(number)] == expected


def test_a_share_is_chosen_and_all_the_newcomers() -> None:
    federation = in_phases(1, participation=0.2)
    clients = [ClientKey(f"c{number}", "n") for number in range(10)]
    rounds_of = [federation.selection.choose(clients, number) for number in range(1, 20)]
    assert {len(chosen) for chosen in rounds_of} == {2}
    assert {key for chosen in rounds_of for key in chosen} == set(clients)
    assert rounds_of[0] == in_phases(5, participation=0.2).selection.choose(clients, 1)
    new = clients[7:]
    chosen = federation.selection.choose(clients, 1, new)
    assert chosen == [key for key in clients if key in {*rounds_of[0], *new}]
    assert federation.selection.choose(clients, 1, clients) == clients
    assert federation.selection.choose([], 1) == []


def test_figures_of_a_method_stand_in_the_rounds_line(tmp_path: Path) -> None:
    settings = sequence_settings(tmp_path, **{"encoder.rounds": 1, "encoder.steps": 1, "rounds": 1})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    folder, _ = run_locally(settings, nodes)
    first, second = rounds(folder)
    assert (first["figures"], first["rand_index"]) == ({}, None)
    assert second["figures"]["rand_index"] == second["rand_index"]
    assert second["figures"]["clients_sent_a_head"] == 8  # in the last round


def test_nodes_whose_images_are_others_are_turned_away(tmp_path: Path) -> None:
    """A site with photographs of cats joins a federation on digits, whose nodes are more."""
    pixels = np.zeros((8, 8, 8), dtype=np.uint8)
    labels = np.array(["cat", "dog"] * 4)
    cats_file = tmp_path / "cats.npz"
    np.savez(cats_file, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    nodes = [
        {
            "data-source": "image-npz",
            "data-path": str(cats_file),
            "state-dir": str(tmp_path / "cats"),
        },
        *synthetic_nodes(2, tmp_path / "state", "digits"),
    ]
    folder, _ = run_locally(digits_settings(tmp_path, method="fedavg", rounds=2), nodes)
    refusal = rounds(folder)[0]["refused"][-1]
    assert "with classes cat, dog; the run's are (1, 8, 8) with classes 0, 1," in refusal["reason"]
    assert rounds(folder)[0]["clients"] == 8


def test_a_bad_prototype_leaves_the_clients_last_good_one(tmp_path: Path) -> None:
    """Round 3 must guide everyone from finite prototypes, the refused client's of round 1."""
    settings = small_settings(tmp_path)
    nodes = synthetic_nodes(2, tmp_path / "state")
    _, grid = run_locally(settings, nodes, tamper=on_reply(change_arrays(put_nan)))
    last = [m for m in grid.sent if m.metadata.group_id == "3"]
    assert len(last) == 2
    for message in last:
        for array in numpy_arrays(message.content.array_records["arrays"]).values():
            assert np.isfinite(array).all()


def test_a_node_that_never_answers_does_not_stop_the_round(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    folder, _ = run_locally(
        settings, synthetic_nodes(2, tmp_path / "state"), tamper=on_reply(lambda reply: None)
    )
    lines = rounds(folder)
    assert [line["clients"] for line in lines] == [8, 4, 8]
    assert [line["answered"] for line in lines] == [2, 1, 2]


def test_when_too_many_nodes_fail_the_run_stops_with_the_reason(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **{"nodes.maximum-failed-share": 0.4})
    with pytest.raises(FederationError, match=r"1 of 2 nodes.*it broke"):
        run_locally(settings, synthetic_nodes(2, tmp_path / "state"), tamper=on_reply(fail))


def test_without_any_node_there_is_a_deadline_and_an_error(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **{"nodes.start-deadline": 0.3})
    with pytest.raises(FederationError, match=r"0 of 1 nodes came within nodes\.start-deadline"):
        run_locally(settings, [])


def test_a_node_whose_data_is_missing_says_so(tmp_path: Path) -> None:
    node = {"data-source": "wide-csv", "data-path": str(tmp_path / "none.csv")}
    with pytest.raises(FederationError, match=r"none\.csv"):
        run_locally(small_settings(tmp_path), [node])


def test_a_deployed_node_reads_nothing_that_the_run_names(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **{"data.path": "/etc/passwd", "data.source": "wide-csv"})
    with pytest.raises(FederationError, match="data-source is not set"):
        run_locally(settings, [{"partition-id": 0, "num-partitions": 1}])


def test_two_nodes_with_one_name_are_not_confused(tmp_path: Path) -> None:
    nodes = [{**node, "node-name": "twin"} for node in synthetic_nodes(2, tmp_path / "state")]
    folder, _ = run_locally(small_settings(tmp_path), nodes)
    lines = rounds(folder)
    assert all(line["clients"] == 4 for line in lines)
    assert "belongs to another connected node" in lines[0]["refused"][0]["reason"]


def test_unusable_clients_are_refused_by_name_and_the_others_train(tmp_path: Path) -> None:
    hours = np.arange(24 * 14)
    table = {
        "good": np.sin(hours * np.pi / 12),
        "constant": np.full(len(hours), 3.0),
        "empty": np.full(len(hours), np.nan),
        "three": np.where(hours < 3, 1.0, np.nan),
    }
    data = tmp_path / "odd.csv"
    rows = zip(*table.values(), strict=True)
    text = "\n".join(",".join("" if np.isnan(v) else str(v) for v in row) for row in rows)
    data.write_text(",".join(table) + "\n" + text + "\n")
    node = {"data-source": "wide-csv", "data-path": str(data), "state-dir": str(tmp_path / "s")}
    folder, _ = run_locally(small_settings(tmp_path), [node])
    lines = rounds(folder)
    assert all(line["clients"] == 2 for line in lines)
    refused = {r["client"]: r["reason"] for r in lines[0]["refused"]}
    assert set(refused) == {"empty", "three"}
    assert "3 steps" in refused["three"]


def test_a_period_longer_than_the_series_is_named(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **{"data.period": 5000, "data.max-steps": 336})
    with pytest.raises(FederationError, match="no node has a client that can train"):
        run_locally(settings, synthetic_nodes(1, tmp_path / "state"))


def test_a_late_joiner_first_reports_and_is_guided_from_then_on(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, rounds=4)
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state"))
    # The simulation's roster would wait for both; as a deployment it starts with one.
    grid.connected = {1000}
    push = grid.push_messages

    def joining(messages: Any) -> Any:
        messages = list(messages)
        if any(m.metadata.group_id == "2" for m in messages):
            grid.connected = {1000, 1001}
        return push(messages)

    grid.push_messages = joining  # type: ignore[method-assign]
    folder = RunFolder(settings)
    conduct(grid, settings, folder)
    assert [line["clients"] for line in rounds(folder)] == [4, 4, 8, 8]
    to_late = [m for m in grid.sent if m.metadata.dst_node_id == 1001][1:]
    guided = [fields_of(message)["guided"] for message in to_late]
    assert guided[0] == []
    assert len(guided[1]) == 4


def test_a_record_that_flower_cannot_count_breaks_nothing(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    nodes = synthetic_nodes(2, tmp_path / "state")
    folder, _ = run_locally(settings, nodes, tamper=on_reply(count_nothing))
    assert [line["refused"] for line in rounds(folder)] == [[], [], []]


def test_when_all_nodes_are_gone_the_run_ends_with_an_error(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, **{"nodes.start-deadline": 0.3})
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state"))

    def leave(node_id: int, reply: Message) -> Message:
        if node_id == BAD_NODE and reply.metadata.message_type == MessageType.TRAIN:
            grid.connected.clear()
        return reply

    grid.tamper = leave
    folder = RunFolder(settings)
    with pytest.raises(FederationError, match="all nodes are gone"):
        conduct(grid, settings, folder)
    assert (folder.path / "clients.csv").exists()  # what was found is kept
    assert not (folder.path / "summary.json").exists()


def test_a_restarted_node_may_bring_fewer_clients(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    grid = LocalGrid(settings, synthetic_nodes(2, tmp_path / "state"))

    def restart(node_id: int, reply: Message) -> Message:
        metadata = reply.metadata
        if node_id == BAD_NODE and metadata.message_type == MessageType.TRAIN:
            context = grid.contexts.pop(BAD_NODE, None)
            if context is not None:  # once: the same node under a new id, with half its clients
                context.node_config = {**context.node_config, "num-partitions": 4}
                context.node_config["node-name"] = "1"
                grid.contexts[2001] = context
                grid.connected = {1000, 2001}
        return reply

    grid.tamper = restart
    folder = RunFolder(settings)
    conduct(grid, settings, folder)
    assert [line["clients"] for line in rounds(folder)] == [8, 6, 6]
    assert len((folder.path / "clients.csv").read_text().splitlines()) == 1 + 8


@pytest.mark.parametrize("method", ["solo", "fuels"])
def test_an_evaluating_round_covers_those_who_trained_since(tmp_path: Path, method: str) -> None:
    changes = {"method": method, "participation": 0.3, "evaluate-every": 3}
    settings = small_settings(tmp_path, **changes)
    folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / "state"))
    lines = rounds(folder)
    assert [line["clients"] for line in lines] == [8, 3, 3]  # newcomers first
    assert [line["test_mse"] is None for line in lines] == [True, True, False]
    assert len((folder.path / "clients.csv").read_text().splitlines()) == 1 + 8


@pytest.mark.parametrize("method", ["fuels", "fedavg", "fedrep", "fedproto"])
def test_parameters_are_counted_per_client_however_they_share_nodes(
    tmp_path: Path, method: str
) -> None:
    def counts(nodes: int) -> list[tuple[int, int]]:
        settings = small_settings(tmp_path, method=method, **{"output.name": f"on-{nodes}"})
        folder, _ = run_locally(settings, synthetic_nodes(nodes, tmp_path / "state"))
        return [(line["parameters_up"], line["parameters_down"]) for line in rounds(folder)]

    assert counts(1) == counts(8)


def test_a_server_cannot_choose_where_a_node_writes(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    grid = LocalGrid(settings, synthetic_nodes(1, tmp_path / "state"))
    order = Order("../../elsewhere", "t", 1, ["office-00"])
    (reply,) = grid.send_and_receive([write_order(order, 1000, MessageType.TRAIN)])
    (reason,) = fields_of(reply)["failed"].values()
    assert "must consist of letters" in reason
    assert not (tmp_path.parent / "elsewhere").exists()


def test_a_run_folder_is_never_overwritten(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with RunFolder(settings), pytest.raises(SettingsError, match="is being written by process"):
        RunFolder(settings)
    with pytest.raises(SettingsError, match=r"output\.name = 'test'.*already holds a run"):
        RunFolder(settings)


@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), SafetensorError("os error 28")]
)
def test_a_full_disk_at_the_server_ends_the_run_with_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
) -> None:
    def full(*_: object) -> None:
        raise fault

    monkeypatch.setattr("fedproto_app.report.artefacts.write_checkpoint", full)
    settings = small_settings(tmp_path)
    grid = LocalGrid(settings, synthetic_nodes(1, tmp_path / "state"))
    context = next(iter(grid.contexts.values()))
    with pytest.raises(type(fault)):
        server_app.main(grid, context)
    error_text = (tmp_path / "runs" / "test" / "error.txt").read_text()
    assert error_text.startswith("the server cannot write its artefacts: ")
    assert f'event=stopped reason="{error_text.strip()}"' in caplog.text


def test_what_is_refused_is_told_with_its_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = synthetic_nodes(2, tmp_path / "state")
    run_locally(small_settings(tmp_path), nodes, tamper=on_reply(say_nothing))
    assert "event=refused round=2 node=1 reason=" in caplog.text


@pytest.mark.parametrize("method", ["fedgru", "fedda"])
def test_a_node_that_answers_no_question_ends_no_run(tmp_path: Path, method: str) -> None:
    """From round 2 on it is the only one that is asked, as the others have answered."""
    settings = small_settings(tmp_path, method=method)

    def silent(node_id: int, reply: Message) -> Message | None:
        is_silent = reply.metadata.message_type == QUESTION and node_id == BAD_NODE
        return None if is_silent else reply

    folder, _ = run_locally(settings, synthetic_nodes(3, tmp_path / "state"), tamper=silent)
    lines = rounds(folder)
    assert len(lines) == settings.rounds
    assert {refusal["node"] for line in lines for refusal in line["refused"]} == {"1"}
    assert all(line["clients"] >= 5 for line in lines)
