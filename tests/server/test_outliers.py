"""Finite values of a size that no training has: by hand, and done to whole runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType

from fedproto_app.core.messages import Reply
from fedproto_app.core.metrics import Metric, metric_row
from fedproto_app.core.sends import Expected
from fedproto_app.maths.sizes import growth_fault, root_mean_square, value_fault
from fedproto_app.server.checkpoint import newest_checkpoint
from fedproto_app.trust.outliers import SizeOfSame, out_of_line
from tests.local_grid import digits_settings, run_locally, small_settings, synthetic_nodes
from tests.reported import fields_of, with_fields
from tests.server.bad_replies import BAD_NODE, change_arrays, rounds

SPEC = Expected(per_client={"p": (2,)})


def floats(*values: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def sending(*rows: float) -> Reply:
    """Return a node's reply: each of its clients sends its value twice."""
    names = [f"c{row}" for row in range(len(rows))]
    return Reply(names, [1] * len(rows), arrays={"p": np.outer(floats(*rows), floats(1, 1))})


def test_the_root_mean_square_is_of_all_values_together() -> None:
    assert root_mean_square([floats(3, 4), floats([0], [5])]) == pytest.approx(np.sqrt(50 / 4))
    assert root_mean_square([]) == 0


def test_the_same_arrays_are_measured_once_and_others_anew() -> None:
    size_of, model = SizeOfSame(), {"w": floats(3, 3)}
    assert [size_of({}), size_of(model), size_of(dict(model)), size_of({})] == [0, 3, 3, 0]
    for value in range(1, 5):  # each gone before the next is made, so at its place in memory
        assert size_of({"w": floats(value)}) == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [(1e15, None), (2e15, "beyond"), (-3e38, "beyond"), (np.inf, "infinite"), (np.nan, "NaN")],
)
def test_a_value_that_no_array_can_hold(value: float, reason: str | None) -> None:
    fault = value_fault("p", floats(0, value))
    assert fault is None if reason is None else reason in str(fault)


@pytest.mark.parametrize(
    ("before", "value", "accepted"),
    [(0.0, 100.0, True), (0.0, 101.0, False), (2.0, 200.0, True), (2.0, 201.0, False)],
)
def test_a_model_grows_a_hundredfold_at_most(before: float, value: float, accepted: bool) -> None:
    assert (growth_fault({"w": floats(value, -value)}, before) is None) == accepted


def test_who_is_out_of_line_is_named_once_three_clients_send() -> None:
    refused = out_of_line({"n": sending(1.0, 2.0, 2001.0), "m": sending(2.0)}, SPEC)
    assert refused.keys() == {("n", "c2")}
    assert "root mean square of 2001" in refused["n", "c2"]
    crowd = {"n": sending(1.0), "m": sending(2.0), "bad": sending(*[1e5] * 50)}
    assert {node for node, _ in out_of_line(crowd, SPEC)} == {"bad"}  # nodes count, not clients
    assert out_of_line({"n": sending(1.0, 1e9)}, SPEC) == {}  # two: which of them lies?
    assert out_of_line({"n": sending(1e-9, 1e-9, 999.0)}, SPEC) == {}  # a median below 1 is 1
    sums = replace(SPEC, of_any_size={"p"})
    assert out_of_line({"n": sending(1.0, 2.0, 1e9)}, sums) == {}


def test_of_arrays_by_class_each_row_counts() -> None:
    spec = Expected(per_class={"p": (1,)}, classes=3)
    good = Reply(["a", "b"], [1, 1], arrays={"p": floats([1], [1], [1])}, classes=[[0, 1], [2]])
    bad = Reply(["c"], [1], arrays={"p": floats([1], [5e6])}, classes=[[0, 2]])
    assert out_of_line({"n": good, "m": bad}, spec).keys() == {("m", "c")}


def attack(value: float) -> Any:
    """All that one node sends in training is this value, in every round."""

    def fill(arrays: dict[str, Any]) -> None:
        for array in arrays.values():
            array[...] = value

    change = change_arrays(fill)

    def tamper(node_id: int, reply: Message) -> Message | None:
        sends = "arrays" in reply.content.array_records
        return change(reply) if node_id == BAD_NODE and sends else reply

    return tamper


FIRST = [("fuels", 3e38), ("fedavg", 1e14), ("fedproto", -1e6), ("gldp", 1e14)]
MORE = [
    (method, value)
    for method in ("fuels", "fedavg", "fedproto", "pfedme", "gldp")
    for value in (3e38, 1e14, -1e6)
    if (method, value) not in FIRST
]


@pytest.mark.parametrize(
    ("method", "value"),
    [*FIRST, *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in MORE)],
)
def test_one_node_of_finite_values_kills_no_run(tmp_path: Path, method: str, value: float) -> None:
    """The honest nodes' clients train on, none of them is blamed, no checkpoint is poisoned."""
    make, source = (
        (digits_settings, "digits") if method == "gldp" else (small_settings, "synthetic-traffic")
    )
    settings = make(tmp_path, method=method)
    nodes = synthetic_nodes(2, tmp_path / "state", source)
    folder, _ = run_locally(settings, nodes, tamper=attack(value))
    lines = rounds(folder)
    assert [line["clients"] for line in lines] == [4] * settings.rounds
    assert {refusal["node"] for line in lines for refusal in line["refused"]} == {"1"}
    checkpoint, faults = newest_checkpoint(folder.path / "checkpoint")
    assert checkpoint is not None
    assert faults == []
    stored = [*checkpoint.model.values(), *checkpoint.strategy.values()]
    numbers = [array for array in stored if array.dtype.kind == "f" and array.size]
    assert numbers
    assert max(float(np.abs(array).max()) for array in numbers) < 1e3


@pytest.mark.parametrize("rule", ["mean", "median", "krum"])
def test_of_two_senders_too_each_ones_model_has_grown_too_much(tmp_path: Path, rule: str) -> None:
    """Where nobody tells which of two is out of line, what was sent still does."""
    settings = small_settings(tmp_path, method="fedavg", **{"aggregation.rule": rule})
    nodes = synthetic_nodes(2, tmp_path / "state")
    folder, _ = run_locally(settings, nodes, tamper=attack(1e6))
    checkpoint, _ = newest_checkpoint(folder.path / "checkpoint")
    assert checkpoint is not None
    assert max(float(np.abs(array).max()) for array in checkpoint.model.values()) < 1e3
    assert {refusal["node"] for line in rounds(folder) for refusal in line["refused"]} == {"1"}


def test_a_flood_of_metrics_is_not_kept(tmp_path: Path) -> None:
    settings = digits_settings(tmp_path, method="fedavg")
    flood = {Metric("accuracy", rule=f"r{n}"): 0.5 for n in range(6000)}

    def tamper(node_id: int, reply: Message) -> Message | None:
        if node_id != BAD_NODE or reply.metadata.message_type != MessageType.EVALUATE:
            return reply
        fields = fields_of(reply)
        for metric, value in flood.items():
            fields["metrics"].append([metric_row(metric), [value] * len(fields["names"])])
        return with_fields(reply, fields)

    nodes = synthetic_nodes(2, tmp_path / "state", "digits")
    folder, _ = run_locally(settings, nodes, tamper=tamper)
    checkpoint, _ = newest_checkpoint(folder.path / "checkpoint")
    assert checkpoint is not None
    assert len(json.dumps(checkpoint.federation)) < 300_000
    reasons = {refusal["reason"] for line in rounds(folder) for refusal in line["refused"]}
    assert reasons == {"reports more than 5000 metrics; these are not kept"}
