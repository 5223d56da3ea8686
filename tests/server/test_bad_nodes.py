"""Whole runs with a node whose replies are wrong, false or missing: it is refused by name, and
the others train on. `test_replies` has every fault of a reply by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors import SafetensorError

from fedproto_app import server_app
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import LEAVING
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.wire import (
    ALIVE,
    MASKING,
    QUESTION,
    numpy_arrays,
    read_order,
    required_masking_order,
)
from fedproto_app.report.runs import flat, read_rounds, read_run
from fedproto_app.server import pipeline
from fedproto_app.server.checkpoint import newest_checkpoint
from tests.helpers.bad_replies import (
    change_arrays,
    fail,
    on_reply,
    put_nan,
    say,
    set_metric,
    set_row,
)
from tests.helpers.local_grid import (
    BAD_NODE,
    LocalGrid,
    Tamper,
    run_small,
    small_settings,
    synthetic_nodes,
)
from tests.helpers.reported import fields_of

SEQUENCES = "sequence-classification"
HEADS = {"encoder.rounds": 1, "encoder.steps": 1, "rounds": 2}
LOCAL_ACCURACY = Metric("accuracy", Model.LOCAL)


def enlarge(arrays: dict[str, Any]) -> None:
    arrays["prototypes"][1] *= 1e6


class Case(NamedTuple):
    """A fault of the second node, and what becomes of it.

    clients: how many trained, by round. refused: the node with all its clients, or single clients,
    in this round.
    """

    tamper: Tamper
    reason: str
    clients: list[int]
    refused: Literal["node", "client"]
    changes: Mapping[str, Any] = MappingProxyType({})
    task: str = "forecasting"
    server_round: int = 2


def in_round_3(row: str, value: Any) -> Tamper:
    """Another value of one client's row, once heads are trained."""
    return on_reply(set_row(row, 2, value), server_round=3)


NAN, LARGE = on_reply(change_arrays(put_nan)), on_reply(change_arrays(enlarge))
ACCURACY = on_reply(set_metric(LOCAL_ACCURACY, [1.0, 1.0, 1.5, 1.0]), MessageType.EVALUATE)
CHOICE = in_round_3("chosen", [2, -1, 0])
FEDAVG = {"method": "fedavg"}
IFCA = {**HEADS, "method": "ifca", "fed-react.clusters": 3}
TOGETHER = {**HEADS, "fed-react.clusters": 1}  # a huge head would make all errors infinite
REGRESSION = "sequence-regression"
CASES = {
    "prototype": Case(NAN, "holds NaN", [8, 7, 8], "client"),
    "model": Case(NAN, "holds NaN", [8, 4, 8], "node", FEDAVG),
    "error": Case(on_reply(fail), "no reply: it broke", [8, 4, 8], "node"),
    "silence": Case(on_reply(lambda _: None), "no reply within 0.2 s", [8, 4, 8], "node"),
    "large": Case(LARGE, "far beyond the others'", [8, 7, 8], "client"),
    # Those whose choice, size or metric is refused have trained all the same.
    "choice": Case(CHOICE, "chose clusters [2.0", [8, 8, 8], "client", IFCA, SEQUENCES, 3),
    "huge": Case(in_round_3("head", 1e14), "±1e+14", [8, 8, 8], "client", TOGETHER, REGRESSION, 3),
    "metric": Case(ACCURACY, "local-accuracy = 1.5", [8, 8, 8], "client", HEADS, SEQUENCES),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_reply_is_refused_and_the_run_goes_on(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    folder, grid = run_small(tmp_path, case.task, tamper=case.tamper, **case.changes)
    lines = read_rounds(folder.path)
    assert [line["clients"] for line in lines] == case.clients
    refused = [line["refused"] for line in lines]
    assert [bool(refusals) for refusals in refused] == [
        line["round"] == case.server_round for line in lines
    ]
    for refusal in refused[case.server_round - 1]:
        assert refusal["node"] == "1"
        assert (refusal["client"] != "") == (case.refused == "client")
        assert case.reason in refusal["reason"]
    figures = [value for line in lines for value in flat(line).values()]
    assert all(np.isfinite(value) for value in figures if isinstance(value, float))
    records = [record for m in grid.sent for record in m.content.array_records.values()]
    assert all(np.isfinite(a).all() for record in records for a in numpy_arrays(record).values())


@pytest.mark.parametrize("refuses", [True, False])
def test_opposed_steps_are_refused_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, refuses: bool
) -> None:
    """Steps that seem opposed can be honest, so nobody is refused by default."""
    monkeypatch.setattr(pipeline, "opposed_steps", lambda *_: {"1": "opposed to the others"})
    setting = {"aggregation.refuse-opposed": True} if refuses else {}
    folder, _ = run_small(tmp_path, **FEDAVG, rounds=1, **setting)
    (line,) = read_rounds(folder.path)
    assert line["clients"] == (4 if refuses else 8)
    assert [refusal["reason"] for refusal in line["refused"]] == ["opposed to the others"] * refuses


def attack(value: float) -> Tamper:
    """All that one node sends is this value, in every round."""

    def fill(arrays: dict[str, Any]) -> None:
        for array in arrays.values():
            array[...] = value

    change = change_arrays(fill)

    def tamper(node_id: int, reply: Message) -> Message | None:
        sends = "arrays" in reply.content.array_records
        return change(reply) if node_id == BAD_NODE and sends else reply

    return tamper


FIRST = [
    *[("fuels", 3e38, "mean"), ("fedavg", 1e14, "mean"), ("fedproto", -1e6, "mean")],
    *[("gldp", 1e14, "mean"), ("fedavg", 1e6, "median"), ("fedavg", 1e6, "krum")],
]
MORE = [
    (method, value, "mean")
    for method in ("fuels", "fedavg", "fedproto", "pfedme", "gldp")
    for value in (3e38, 1e14, 1e6, -1e6)
    if (method, value, "mean") not in FIRST
]


@pytest.mark.parametrize(
    ("method", "value", "rule"),
    [*FIRST, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in MORE)],
)
def test_one_node_of_finite_values_kills_no_run(
    tmp_path: Path, method: str, value: float, rule: str
) -> None:
    """The honest node's clients train on, none of them is blamed, no checkpoint is poisoned.

    Of two senders nobody tells which is out of line, but each of their models has grown too much.
    """
    task = "classification" if method == "gldp" else "forecasting"
    changes = {"method": method, "aggregation.rule": rule}
    folder, _ = run_small(tmp_path, task, tamper=attack(value), **changes)
    lines = read_rounds(folder.path)
    assert {line["clients"] for line in lines} == {4}
    assert {refusal["node"] for line in lines for refusal in line["refused"]} == {"1"}
    checkpoint, faults = newest_checkpoint(folder.path / "checkpoint")
    assert checkpoint is not None
    assert faults == []
    stored = [*checkpoint.model.values(), *checkpoint.strategy.values()]
    numbers = [array for array in stored if array.dtype.kind == "f" and array.size]
    assert numbers
    assert max(float(np.abs(array).max()) for array in numbers) < 1e3


def test_one_node_does_not_say_which_models_a_method_has(tmp_path: Path) -> None:
    def owns(node_id: int, reply: Message) -> Message:
        fields = fields_of(reply)
        if node_id == BAD_NODE and fields.get("metrics"):
            set_metric(LOCAL_ACCURACY, [1.0] * len(fields["names"]))(reply)
        return reply

    figures = []
    for name, tamper in (("honest", None), ("liar", owns)):
        changes = {"method": "solo", "rounds": 2, "output.name": name}
        folder, _ = run_small(tmp_path, "classification", nodes=4, tamper=tamper, **changes)
        names = [f"{kind}_{of}" for kind in ("accuracy", "balanced") for of in ("local", "global")]
        summary = read_run(folder.path).summary
        figures.append([summary[name] for name in names])
    assert figures[0] == figures[1]


# --- nodes that fail, leave or answer no question -------------------------------------------------


def leaving(reply: Message, reason: str = LEAVING) -> Message:
    """Return the reply of a gate that starts no more work."""
    reply.content.pop("arrays")
    failed = dict.fromkeys(fields_of(reply)["names"], reason)
    empty: dict[str, Any] = {"names": [], "samples": [], "losses": {}, "metrics": []}
    return say(**empty, kept_rounds=[], classes=[], failed=failed)(reply)


def test_a_site_that_drains_is_not_counted_as_failed(tmp_path: Path) -> None:
    changes = {"nodes.maximum-failed-share": 0.1}
    folder, _ = run_small(tmp_path, tamper=on_reply(leaving), **changes)
    lines = read_rounds(folder.path)
    assert [line["clients"] for line in lines] == [8, 4, 8]
    assert not any(line["refused"] for line in lines)


@pytest.mark.parametrize(
    ("nodes", "change", "message"),
    [
        ([1001], fail, "1 of 2 nodes gave no usable reply, .*: 1: no reply: it broke"),
        ([1001], lambda reply: leaving(reply, "no room"), "1 of 2 nodes .*: no room"),
        ([1000, 1001], leaving, "2 of 2 nodes gave no usable reply"),
    ],
)
def test_when_too_many_nodes_fail_or_all_leave_the_run_stops_with_the_reason(
    tmp_path: Path, nodes: list[int], change: Any, message: str
) -> None:
    def tamper(node_id: int, reply: Message) -> Message | None:
        return on_reply(change, node=node_id)(node_id, reply) if node_id in nodes else reply

    with pytest.raises(FederationError, match=message):
        run_small(tmp_path, tamper=tamper, **{"nodes.maximum-failed-share": 0.1})


def brings_steps(message: Message) -> bool:
    """Whether this question learns the graph, in CNFGNN."""
    is_question = message.metadata.message_type == QUESTION
    return is_question and "steps" in read_order(message).guidance.arrays


def is_last_step(message: Message) -> bool:
    is_step = message.metadata.message_type == MASKING
    return is_step and required_masking_order(message).step == "unmask"


class HungGrid(LocalGrid):
    """The second node answers nothing any more from the first message of a kind on.

    owed: the types of the messages since, without the probes.
    """

    def __init__(self, *arguments: Any, hangs: Callable[[Message], bool], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._hangs = hangs
        self.owed: list[str] = []

    def answer(self, message: Message) -> Message | None:
        mine = message.metadata.dst_node_id == BAD_NODE
        if not mine or not (self.owed or self._hangs(message)):
            return super().answer(message)
        if message.metadata.message_type != ALIVE:
            self.owed.append(message.metadata.message_type)
        return None


@pytest.mark.parametrize(
    ("changes", "hangs", "kind"),
    [
        (
            {"method": "fedavg"},
            lambda message: message.metadata.message_type == MessageType.TRAIN,
            MessageType.TRAIN,
        ),
        (
            {"method": "fedavg", "aggregation.secure": True, "aggregation.secure-share": 0.5},
            is_last_step,
            MASKING,
        ),
        ({"method": "cnfgnn"}, brings_steps, QUESTION),
    ],
)
def test_a_node_that_hangs_is_asked_for_nothing_more_in_the_round(
    tmp_path: Path, changes: dict[str, Any], hangs: Callable[[Message], bool], kind: str
) -> None:
    """Neither in further steps, nor in training or evaluation: that would cost a deadline more."""
    grid = partial(HungGrid, hangs=hangs)
    _, hung = run_small(tmp_path, nodes=4, grid=grid, rounds=1, **changes)
    assert isinstance(hung, HungGrid)
    assert hung.owed == [kind]


@pytest.mark.parametrize("method", ["fedgru", "fedda"])
def test_a_node_that_answers_no_question_ends_no_run(tmp_path: Path, method: str) -> None:
    """From round 2 on it is the only one that is asked, as the others have answered."""

    def silent(node_id: int, reply: Message) -> Message | None:
        is_silent = reply.metadata.message_type == QUESTION and node_id == BAD_NODE
        return None if is_silent else reply

    folder, _ = run_small(tmp_path, nodes=3, tamper=silent, method=method)
    lines = read_rounds(folder.path)
    assert {refusal["node"] for line in lines for refusal in line["refused"]} == {"1"}
    assert all(line["clients"] >= 5 for line in lines)


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
    grid = LocalGrid(small_settings(tmp_path), synthetic_nodes(1, tmp_path / "state"))
    with pytest.raises(type(fault)):
        server_app.main(grid, next(iter(grid.contexts.values())))
    error_text = (tmp_path / "runs" / "test" / "error.txt").read_text()
    assert error_text.startswith("the server cannot write its artefacts: ")
    assert f'event=stopped reason="{error_text.strip()}"' in caplog.text
