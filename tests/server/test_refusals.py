"""What of a reply is refused, and that the run goes on with the rest."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.wire import numpy_arrays, read_order
from tests.local_grid import (
    LocalGrid,
    digits_settings,
    regression_settings,
    run_locally,
    sequence_settings,
    small_settings,
    synthetic_nodes,
)
from tests.server.bad_replies import (
    FAULTS,
    NAMES,
    change_arrays,
    extra,
    missing,
    of_third,
    on_reply,
    put_nan,
    rounds,
    say,
    set_metric,
    wrong_dtype,
    wrong_shape,
)


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
    "samples": ("fed-react", say(samples=[9, 9, 20, 9]), "expected 1 … 16", True),
    "too-many": ("fed-react", say(samples=[9, 9, 10**6, 9]), "expected 1 … 28", True),
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
    trained_all_the_same = any(text in reason for text in ("chose clusters", "its head", "1 … 16"))
    expected = 8 if trained_all_the_same else 7 if alone else 4
    assert [line["clients"] for line in lines] == [8, 8, expected, 8]
    assert [0 <= line["accuracy"] <= 1 for line in lines[1:]] == [True] * 3
    records = [array for m in grid.sent for array in m.content.array_records.values()]
    assert all(np.isfinite(a).all() for record in records for a in numpy_arrays(record).values())
    if method != "fed-react":  # there a cluster's head goes to all of its clients
        assert len(guided_in_round_3(grid)) == (7 if alone else 4)
        assert refusal["client"] not in guided_in_round_3(grid)


@pytest.mark.parametrize("similarity", ["cosine", "centred-cosine"])
def test_a_huge_head_costs_its_own_client_alone(tmp_path: Path, similarity: str) -> None:
    """Finite as it is, in a mean it would make the errors of honest clients infinite."""
    changes = {"encoder.rounds": 1, "encoder.steps": 1, "rounds": 2, "fed-react.clusters": 1}
    settings = regression_settings(tmp_path, **changes, **{"fed-react.similarity": similarity})
    nodes = synthetic_nodes(2, tmp_path / "state", "synthetic-air-writing")
    bad_heads = [
        on_reply(of_third("head", 1e14), MessageType.TRAIN, server_round) for server_round in (2, 3)
    ]

    def tamper(node_id: int, reply: Message) -> Message | None:
        for change in bad_heads:
            reply = change(node_id, reply) or reply
        return reply

    folder, grid = run_locally(settings, nodes, tamper=tamper)
    _, *later_rounds = rounds(folder)
    refused = [line["refused"] for line in later_rounds]
    assert [len(refusals) for refusals in refused] == [1, 1]
    (bad,) = {refusals[0]["client"] for refusals in refused}
    assert bad
    assert all("its head holds ±1e+14" in refusals[0]["reason"] for refusals in refused)
    assert all(np.isfinite(line["rmse"]) for line in later_rounds)
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
        for name in read_order(message).guidance.clients
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


@pytest.mark.parametrize("method", ["fuels", "fedproto"])
def test_without_one_client_whose_arrays_are_huge_the_others_of_its_node_count(
    tmp_path: Path, method: str
) -> None:
    def enlarge(arrays: dict[str, Any]) -> None:
        arrays["prototypes"][1] *= 1e6

    settings = small_settings(tmp_path, method=method)
    nodes = synthetic_nodes(2, tmp_path / "state")
    folder, _ = run_locally(settings, nodes, tamper=on_reply(change_arrays(enlarge)))
    lines = rounds(folder)
    (refusal,) = lines[1]["refused"]
    assert refusal["client"]
    assert "far beyond the others'" in refusal["reason"]
    assert [line["clients"] for line in lines] == [8, 7, 8]
    assert [line["refused"] for line in lines[::2]] == [[], []]
