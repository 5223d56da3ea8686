"""Bad replies, silent nodes and odd shards: refused by name, counted, and nothing else lost."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Error, Message, MessageType
from safetensors import SafetensorError

from fedproto_app import server_app
from fedproto_app.errors import FederationError, SettingsError
from fedproto_app.messages import Order
from fedproto_app.metrics import Metric, Model
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
from fedproto_app.server_app import conduct
from fedproto_app.settings import settings_from
from fedproto_app.wire import array_record, numpy_arrays, read_order, write_order
from tests.local_grid import (
    LocalGrid,
    digits_settings,
    regression_settings,
    run_locally,
    sequence_settings,
    small_settings,
    synthetic_nodes,
)
from tests.told import tell, told, with_metric

BAD_NODE = 1001


def rounds(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]


def on_reply(
    change: Callable[[Message], Message | None],
    kind: str = MessageType.TRAIN,
    server_round: int = 2,
) -> Callable[[int, Message], Message | None]:
    """Change the bad node's reply to the messages of this kind in a round."""

    def tamper(node_id: int, reply: Message) -> Message | None:
        of = reply.metadata
        if (node_id, of.message_type, of.group_id) == (BAD_NODE, kind, str(server_round)):
            return change(reply)
        return reply

    return tamper


def change_arrays(change: Callable[[dict[str, Any]], None]) -> Callable[[Message], Message]:
    def tamper(reply: Message) -> Message:
        arrays = {
            n: a.copy() for n, a in numpy_arrays(reply.content.array_records["arrays"]).items()
        }
        change(arrays)
        reply.content["arrays"] = array_record(arrays)
        return reply

    return tamper


def first(arrays: dict[str, Any]) -> str:
    return sorted(arrays)[0]


def put_nan(arrays: dict[str, Any]) -> None:
    arrays[first(arrays)].reshape(-1)[0] = np.nan


def wrong_shape(arrays: dict[str, Any]) -> None:
    arrays[first(arrays)] = arrays[first(arrays)][..., :-1]


def wrong_dtype(arrays: dict[str, Any]) -> None:
    arrays[first(arrays)] = arrays[first(arrays)].astype(np.float64)


def missing(arrays: dict[str, Any]) -> None:
    del arrays[first(arrays)]


def extra(arrays: dict[str, Any]) -> None:
    arrays["one more"] = arrays[first(arrays)]


def of_third(name: str, value: Any) -> Callable[[Message], Message]:
    """What the third client of the node sends in this array."""

    def change(arrays: dict[str, Any]) -> None:
        arrays[name][2] = value

    return change_arrays(change)


def say(**changes: Any) -> Callable[[Message], Message]:
    """Other values of these fields."""
    return lambda reply: tell(reply, told(reply) | changes)


def set_metric(metric: Metric, values: Any) -> Callable[[Message], Message]:
    """Other values of a metric; None: it is left out."""
    return lambda reply: tell(reply, with_metric(told(reply), metric, values))


def set_seconds(value: Any) -> Callable[[Message], Message]:
    def tamper(reply: Message) -> Message:
        reply.content["told"]["seconds"] = value
        return reply

    return tamper


def say_nothing(reply: Message) -> Message:
    del reply.content["told"]
    return reply


def broken_array(data: bytes) -> Callable[[Message], Message]:
    """One array's bytes replaced; its record still claims the right dtype and shape."""

    def tamper(reply: Message) -> Message:
        record = reply.content.array_records["arrays"]
        name = sorted(record)[0]
        good = record[name]
        record[name] = Array(good.dtype, good.shape, good.stype, data)
        return reply

    return tamper


def npy_header(shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def count_nothing(reply: Message) -> Message:
    reply.content["told"]["empty"] = []
    return reply


def fail(reply: Message) -> Message:
    failed = Message(Error(code=6, reason="it broke"), reply_to=reply)
    order = reply.metadata.reply_to_message_id
    failed.metadata.__dict__["_reply_to_message_id"] = order  # Flower answers the order itself
    return failed


# what the bad node does, the reason in the log, clients refused by name under FUELS ("" = node)
FAULTS = [
    (change_arrays(put_nan), "NaN", 1),
    (change_arrays(wrong_shape), "shape", 0),
    (change_arrays(wrong_dtype), "dtype float64", 0),
    (change_arrays(missing), "arrays missing", 0),
    (say(names=["office-00", "x", "y", "z"]), "not a client of this node", 4),
    (say(names=["x"]), "4 sample counts for 1", 0),
    (say(samples=[-1] * 4), "expected 1 … ", 4),
    (say(samples=[10**9] * 4), "expected 1 … ", 4),
    (say(samples=[1]), "1 sample counts for 4", 0),
    (say(losses={"total": [float("nan")] * 4}), "not finite", 4),
    (say_nothing, "malformed", 0),
    (fail, "it broke", 0),
    (broken_array(b""), "cannot be read", 0),
    (broken_array(b"PK\x03\x04 no zip"), "cannot be read", 0),
    (broken_array(b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4', "), "cannot be read", 0),
    (broken_array(npy_header((10**12,))), "shape", 0),
    (set_metric(Metric("mse"), [float("nan")] * 4), "not finite", 4),
    (set_metric(Metric("mse"), [-1.0] * 4), "not finite", 4),
    (say(kept_rounds=[-1] * 4), "kept round", 4),
    (say(kept_rounds=["x"] * 4), "kept_rounds.0: Input should be a valid integer", 0),
    (set_metric(Metric("mse", Model.KEPT), None), "all of its kept metrics", 0),
    (set_seconds(-1.0), "seconds = -1.0", 0),
    (say(names=[1, 2, 3, 4]), "names.0: Input should be a valid string", 0),
    (say(names=["x" * 1000] * 4), "at most 256 characters", 0),
]
NAMES = ["nan", "shape", "dtype", "missing", "foreign", "few", "negative", "absurd", "count"]
NAMES += ["loss", "nothing", "error", "empty-array", "zip", "cut-header", "huge-header"]
NAMES += ["nan-metric", "negative-metric", "kept-round", "text-round"]
NAMES += ["half-evaluated", "seconds", "number-names", "long-names"]


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
@pytest.mark.parametrize(("change", "reason", "by_name"), FAULTS, ids=NAMES)
def test_a_bad_reply_is_refused_and_the_run_goes_on(
    tmp_path: Path, method: str, change: Any, reason: str, by_name: int
) -> None:
    # FedAvg's clients are evaluated with the averaged model, in a message of its own.
    kind = MessageType.EVALUATE if method == "fedavg" and "kept" in reason else MessageType.TRAIN
    settings = small_settings(tmp_path, method=method)
    nodes = synthetic_nodes(2, tmp_path / "state")
    folder, _ = run_locally(settings, nodes, tamper=on_reply(change, kind))
    lines = rounds(folder)
    assert len(lines) == settings.rounds
    refused = lines[1]["refused"]
    assert refused
    assert all(r["node"] == "1" for r in refused)
    assert any(reason in r["reason"] for r in refused)
    if method == "fuels":
        assert sum(r["client"] != "" for r in refused) == by_name
    assert lines[0]["refused"] == lines[2]["refused"] == []
    assert lines[2]["clients"] == 8
    for line in lines:
        assert np.isfinite(line["test_mse"])


# Two nodes of four clients with three classes each: 12 rows of prototypes from each node.
CLASS_FAULTS = {
    "another-class": (say(classes=[[0, 1, 2]] * 3 + [[0, 1, 10]]), "classes"),
    "negative-class": (say(classes=[[-1, 1, 2]] * 4), "classes"),
    "class-twice": (say(classes=[[1, 1, 2]] * 4), "classes [1, 1, 2]"),
    "too-few-classes": (say(classes=[[0, 1, 2]]), "classes of 1 clients"),
    "fewer-rows": (
        say(classes=[[0, 1, 2]] * 3 + [[0, 1]]),
        "'prototypes' has shape (12, 16), expected (11, 16)",
    ),
    "nan": (change_arrays(put_nan), "NaN"),
    "accuracy": (set_metric(Metric("accuracy", Model.LOCAL), [float("inf")] * 4), "metrics"),
}


@pytest.mark.parametrize(("change", "reason"), CLASS_FAULTS.values(), ids=CLASS_FAULTS)
def test_bad_prototypes_are_refused_and_the_run_goes_on(
    tmp_path: Path, change: Any, reason: str
) -> None:
    settings = digits_settings(tmp_path)
    nodes = synthetic_nodes(2, tmp_path / "state", "digits")
    folder, _ = run_locally(settings, nodes, tamper=on_reply(change, MessageType.TRAIN))
    lines = rounds(folder)
    assert len(lines) == settings.rounds
    assert [r["node"] for r in lines[1]["refused"]] == ["1"]
    assert reason in lines[1]["refused"][0]["reason"]
    assert lines[1]["clients"] == 4  # the other node's


# In the second round of heads: method, fault, reason, whether only the client is refused.
HEAD_FAULTS = {
    "nan": ("fed-react", of_third("head", np.nan), "its 'head' holds NaN", True),
    "infinite": ("ifca", of_third("head", np.inf), "its 'head' holds NaN", True),
    "large": ("ifca", of_third("head", -2e6), "its head holds ±2e+06, more than 1e+06", True),
    "shape": ("fed-react", change_arrays(wrong_shape), "expected (4, ", False),
    "dtype": ("fed-react", change_arrays(wrong_dtype), "dtype float64", False),
    "missing": ("fed-react", change_arrays(missing), "arrays missing", False),
    "no-choice": ("ifca", change_arrays(missing), "arrays missing: ['chosen']", False),
    "extra": ("fed-react", change_arrays(extra), "not expected: ['one more']", False),
    "samples": ("fed-react", say(samples=[9, 9, 10**6, 9]), "expected 1 … 16", True),
    "no-samples": ("fed-react", say(samples=[9, 9, 0, 9]), "reports 0", True),
    "chooses-nothing": ("ifca", of_third("chosen", 0), "chose clusters [0.0, 0.0", True),
    "chooses-all": ("flsc", of_third("chosen", 1), "chose clusters [1.0, 1.0, 1.0]", True),
    "chooses-halves": ("flsc", of_third("chosen", 0.5), "chose clusters [0.5, 0.5", True),
    "chooses-less": ("ifca", of_third("chosen", [2, -1, 0]), "chose clusters [2.0, -1", True),
    "chooses-nan": ("ifca", of_third("chosen", np.nan), "its 'chosen' holds NaN", True),
}


@pytest.mark.parametrize("fault", HEAD_FAULTS)
def test_bad_heads_are_refused_and_the_run_goes_on(tmp_path: Path, fault: str) -> None:
    method, change, reason, alone = HEAD_FAULTS[fault]
    changes = {"encoder.rounds": 1, "encoder.steps": 1, "rounds": 3, "fed-react.clusters": 3}
    settings = sequence_settings(tmp_path, method=method, **changes)
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    tamper = on_reply(change, MessageType.TRAIN, 3)
    folder, grid = run_locally(settings, nodes, tamper=tamper)
    lines = rounds(folder)
    assert len(lines) == settings.all_rounds
    (refusal,) = lines[2]["refused"]
    assert refusal["node"] == "1"
    assert reason in refusal["reason"]
    assert (refusal["client"] != "") == alone
    assert [line["refused"] for line in lines[:2] + lines[3:]] == [[], [], []]
    # A client whose choice or size is refused has trained all the same.
    expected = 8 if "chose clusters" in reason or "its head" in reason else 7 if alone else 4
    assert [line["clients"] for line in lines] == [8, 8, expected, 8]
    assert [0 <= line["accuracy"] <= 1 for line in lines[1:]] == [True] * 3
    sent = [array for m in grid.sent for array in m.content.array_records.values()]
    assert all(np.isfinite(a).all() for record in sent for a in numpy_arrays(record).values())
    if method != "fed-react":  # there a cluster's head goes to all of its clients
        assert len(guided_in_round_3(grid)) == (7 if alone else 4)
        assert refusal["client"] not in guided_in_round_3(grid)


@pytest.mark.parametrize("similarity", ["cosine", "centred-cosine"])
def test_a_huge_head_costs_its_own_client_alone(tmp_path: Path, similarity: str) -> None:
    """Finite as it is, in a mean it would make the errors of honest clients infinite."""
    changes = {"encoder.rounds": 1, "encoder.steps": 1, "rounds": 2, "fed-react.clusters": 1}
    settings = regression_settings(tmp_path, **changes, **{"fed-react.similarity": similarity})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-ev")
    bad_heads = [
        on_reply(of_third("head", 1e36), MessageType.TRAIN, server_round) for server_round in (2, 3)
    ]

    def tamper(node_id: int, reply: Message) -> Message | None:
        for change in bad_heads:
            reply = change(node_id, reply) or reply
        return reply

    folder, grid = run_locally(settings, nodes, tamper=tamper)
    _, *found = rounds(folder)
    refused = [line["refused"] for line in found]
    assert [len(its) for its in refused] == [1, 1]
    (bad,) = {its[0]["client"] for its in refused}
    assert bad
    assert all("its head holds ±1e+36" in its[0]["reason"] for its in refused)
    assert all(np.isfinite(line["rmse"]) for line in found)
    with (folder.path / "clients.csv").open() as file:
        rows = {row["client"]: row for row in csv.DictReader(file)}
    assert {name for name, row in rows.items() if not row["rmse"]} <= {bad}
    assert len(guided_in_round_3(grid)) == 7


def guided_in_round_3(grid: LocalGrid) -> list[str]:
    """The clients that were sent a head."""
    evaluated = [m for m in grid.sent if m.metadata.message_type == MessageType.EVALUATE]
    return [
        name
        for message in evaluated
        if message.metadata.group_id == "3"
        for name in read_order(message).guided
    ]


def test_metrics_of_heads_that_cannot_be_true_are_refused(tmp_path: Path) -> None:
    settings = sequence_settings(tmp_path, **{"encoder.rounds": 1, "encoder.steps": 1, "rounds": 2})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    change = set_metric(Metric("accuracy", Model.LOCAL), [1.0, 1.0, 1.5, 1.0])
    tamper = on_reply(change, MessageType.EVALUATE)
    folder, _ = run_locally(settings, nodes, tamper=tamper)
    (refusal,) = rounds(folder)[1]["refused"]
    assert "local-accuracy = 1.5" in refusal["reason"]
    assert rounds(folder)[1]["accuracy"] <= 1


def test_an_encoder_with_nan_is_refused_with_its_node(tmp_path: Path) -> None:
    settings = sequence_settings(tmp_path, **{"encoder.steps": 1, "rounds": 1})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    folder, _ = run_locally(settings, nodes, tamper=on_reply(change_arrays(put_nan)))
    lines = rounds(folder)
    assert [line["clients"] for line in lines] == [8, 4, 8]
    assert "holds NaN" in lines[1]["refused"][0]["reason"]


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
    asked = [message.metadata.message_type for message in grid.sent]
    assert asked.count("query.roster") == 2  # it is not asked again
    just_enough = small_settings(tmp_path, **{"nodes.maximum-clients": 8, "output.name": "8"})
    folder, _ = run_locally(just_enough, synthetic_nodes(2, tmp_path / "state"))
    assert rounds(folder)[0]["clients"] == 8


def in_phases(encoder_rounds: int, every: int = 1, task_rounds: int = 7, **of: Any) -> Federation:
    """A federation whose run has a first phase of so many rounds."""
    settings = settings_from(
        {
            "task": "sequence-classification",
            "method": "fed-react",
            "encoder.rounds": encoder_rounds,
            "rounds": task_rounds,
            "evaluate-every": every,
            **of,
        }
    )
    return Federation(settings, "run", "token")


@pytest.mark.parametrize(
    ("federation", "expected"),
    [
        (in_phases(2), [3, 4, 5, 6, 7, 8, 9]),
        (in_phases(2, every=3), [5, 8, 9]),  # counted from the second phase's first round
        (in_phases(2, every=7), [9]),
        (in_phases(2, every=100), [9]),
        (in_phases(2, every=3, method="fedavg"), [3, 6, 7]),  # has no first phase
        (in_phases(2, every=3, **{"encoder.path": "given"}), [3, 6, 7]),
    ],
)
def test_only_models_of_the_second_phase_are_evaluated(
    federation: Federation, expected: list[int]
) -> None:
    every_round = range(1, federation.settings.all_rounds + 1)
    assert [number for number in every_round if federation.evaluates(number)] == expected


def test_a_share_is_chosen_and_all_the_newcomers() -> None:
    federation = in_phases(1, participation=0.2)
    clients = [ClientKey(f"c{number}", "n") for number in range(10)]
    rounds_of = [federation.choose(clients, number) for number in range(1, 20)]
    assert {len(chosen) for chosen in rounds_of} == {2}
    assert {key for chosen in rounds_of for key in chosen} == set(clients)
    assert rounds_of[0] == in_phases(5, participation=0.2).choose(clients, 1)
    new = clients[7:]
    chosen = federation.choose(clients, 1, new)
    assert chosen == [key for key in clients if key in {*rounds_of[0], *new}]
    assert federation.choose(clients, 1, clients) == clients
    assert federation.choose([], 1) == []


def test_figures_of_a_method_stand_in_the_rounds_line(tmp_path: Path) -> None:
    settings = sequence_settings(tmp_path, **{"encoder.rounds": 1, "encoder.steps": 1, "rounds": 1})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    folder, _ = run_locally(settings, nodes)
    first, second = rounds(folder)
    assert (first["figures"], first["rand_index"]) == ({}, None)
    assert second["figures"]["rand_index"] == second["rand_index"]
    assert second["figures"]["clients_sent_a_head"] == 8  # in the last round


def test_nodes_whose_images_are_others_are_turned_away(tmp_path: Path) -> None:
    """A site with photographs of cats joins a federation on digits."""
    pixels = np.zeros((8, 8, 8), dtype=np.uint8)
    labels = np.array(["cat", "dog"] * 4)
    other = tmp_path / "cats.npz"
    np.savez(other, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    nodes = synthetic_nodes(1, tmp_path / "state", "digits")
    nodes.append(
        {"data-source": "image-npz", "data-path": str(other), "state-dir": str(tmp_path / "cats")}
    )
    folder, _ = run_locally(digits_settings(tmp_path, rounds=2), nodes)
    (refusal,) = rounds(folder)[0]["refused"]
    assert "with classes cat, dog; the federation's are (1, 8, 8) with 0, 1," in refusal["reason"]
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
    guided = [told(message)["guided"] for message in to_late]
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
    (reason,) = told(reply)["failed"].values()
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
    said = (tmp_path / "runs" / "test" / "error.txt").read_text()
    assert said.startswith("the server cannot write its artefacts: ")
    assert f'event=stopped reason="{said.strip()}"' in caplog.text


def test_what_is_refused_is_told_with_its_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = synthetic_nodes(2, tmp_path / "state")
    run_locally(small_settings(tmp_path), nodes, tamper=on_reply(say_nothing))
    assert "event=refused round=2 node=1 reason=" in caplog.text
