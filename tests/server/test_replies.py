"""Answers that may hold anything: the good part comes back, and a refusal for each bad one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproto_app.core.messages import Arrays, Refusal, Reply
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import MOST_BYTES, Unusable, array_record, read_order, write_roster
from fedproto_app.server.replies import (
    MOST_SAMPLES,
    MOST_STRANGERS,
    Allowed,
    read_reply,
    read_roster,
    received_bytes,
)
from tests.helpers.bad_replies import (
    Change,
    broken_array,
    change_arrays,
    first,
    npy_header,
    put,
    put_nan,
    replace_record,
    say,
    say_bytes,
    set_metric,
    set_row,
)
from tests.helpers.messages import (
    KEPT_MSE,
    MSE,
    REPLY,
    ROSTER,
    SAMPLES,
    SPEC,
    fault,
    message_of,
    order_message,
    read,
    roster_message,
)
from tests.helpers.reported import fields_of
from tests.helpers.spoilt import changed


def test_a_reply_is_read_as_it_was_written() -> None:
    reply, refusals = read(message_of())
    assert reply is not None
    assert {**vars(reply), "arrays": {}} == {**vars(REPLY), "arrays": {}}
    assert list(reply.arrays) == list(REPLY.arrays)
    assert all(np.array_equal(reply.arrays[n], array) for n, array in REPLY.arrays.items())
    assert refusals == [Refusal("n", "c", "its disk is full")]


@pytest.mark.parametrize(
    "name", ["Zürich", "-1", "+49-30", "@home", "می\u200cروم", "a\u00a0b", "="]
)
def test_names_of_people_are_believed(name: str) -> None:
    roster = replace(ROSTER, classes=("x", name), samples={name: 10, "b": 20})
    roster = replace(roster, groups={name: name, "b": "g"}, missing_shares={name: 0.0, "b": 0.1})
    times = {name: ROSTER.times["a"]}
    roster = replace(roster, class_counts={name: ((1, 9),)}, times=times)
    assert read_roster(write_roster(roster, reply_to=order_message()), multiple=10) == roster


def test_too_long_a_reason_costs_its_end_alone() -> None:
    reply, refusals = read(message_of(replace(REPLY, failed={"c": "x" * 10_000})))
    assert reply is not None
    assert refusals == [Refusal("n", "c", "x" * 4096)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (say(kept_rounds=[4, 0]), "its kept round is 4, after round 3"),
        (say(losses={"x" * 65: [1.0, 1.0]}), "a loss's name has 65 characters"),
        (say(losses={f"loss {n}": [1.0, 1.0] for n in range(33)}), "33 losses, more than 32"),
        (say(failed={"c": "x" * 2**21}), "bytes of JSON, more than"),
        (say(steps=[1.0]), "1 steps of 2 clients"),
        (say(steps=[1.0, 2.1]), "its model moved by 2.1; at most 2 was allowed"),
        (say(steps=[1.0, math.nan]), "steps.1"),
    ],
)
def test_a_reply_is_bounded_by_what_was_asked(change: Change, reason: str) -> None:
    allowed = Allowed(server_round=3, longest_step=2.0)
    message = change(message_of())
    _, refusals = read_reply(message, "n", SAMPLES, SPEC, (MSE, KEPT_MSE), fault, allowed=allowed)
    assert any(reason in refusal.reason for refusal in refusals)


@pytest.mark.parametrize(("step", "accepted"), [(4.0, True), (2.9, False), (0.0, False)])
def test_a_mean_moves_as_far_as_its_clients_say(step: float, accepted: bool) -> None:
    """The mean is 3 from the model that was sent. Who reports less would not be shortened."""
    mean = {"w": np.array([1, 4], np.float32)}
    reply = Reply(["a", "b"], [10, 20], arrays=mean, steps=[2.0, step])
    allowed = Allowed(1, {"w": np.ones(2, np.float32)})
    spec = Expected(mean={"w": (2,)})
    usable, _ = read_reply(message_of(reply), "n", SAMPLES, spec, (), fault, allowed=allowed)
    assert (usable is not None) == accepted


def test_a_roster_is_read_as_it_was_written() -> None:
    assert read_roster(roster_message(), multiple=10) == ROSTER


@given(st.floats(), st.floats(0, 1e9))
def test_every_float_survives_and_seconds_change_no_bytes(value: float, seconds: float) -> None:
    """NaN too: a node tells of a loss that is not finite, and its client alone is refused."""
    reply = Reply(["a", "b"], [1, 1], losses={"total": [1.0, value]}, seconds=seconds)
    spec, message = Expected(), message_of(reply)
    usable, refusals = read_reply(message, "n", SAMPLES, spec, (), fault)
    assert usable.seconds == seconds
    assert received_bytes(message) == received_bytes(
        message_of(Reply(**{**vars(reply), "seconds": 0}))
    )
    if abs(value) <= 1e38:
        assert usable.losses == {"total": [1.0, value]}
        assert math.copysign(1, usable.losses["total"][1]) == math.copysign(1, value)
    else:
        assert usable.names == ["a"]
        assert refusals == [Refusal("n", "b", "its loss is not finite, or beyond ±1e+38")]


def in_first(change: Callable[[Any], Any]) -> Change:
    """The first array changed as a whole."""

    def tamper(arrays: Arrays) -> None:
        arrays[first(arrays)] = change(arrays[first(arrays)])

    return change_arrays(tamper)


FORMS = {
    "text": (say_bytes("{}"), "no 'json' in a record 'told'"),
    "other-record": (replace_record(array_record({})), "no 'json' in a record 'told'"),
    "no-record": (replace_record(None), "no 'json' in a record 'told'"),
    "empty-record": (replace_record(ConfigRecord()), "no 'json' in a record 'told'"),
    "list": (say_bytes(b"[]"), "Input should be an object"),
    "no-fields": (say_bytes(b"{}"), ": Field required"),
    "no-unicode": (say_bytes(b"\xff"), "Invalid JSON"),
    "half-a-letter": (say_bytes(b'{"\\ud800": 1}'), "Invalid JSON"),
    "deep": (say_bytes(b"[" * 10**6), "Invalid JSON: recursion limit"),
    "large": (say_bytes(b" " * (MOST_BYTES + 1)), f"{MOST_BYTES + 1} bytes of JSON, more than"),
    "endless-number": (say_bytes(b'{"a": ' + b"9" * 5000 + b"}"), "number out of range"),
    "one-more": (say(extra=1), "extra: Unexpected keyword argument"),
    "many-more": (say(**{f"extra{n}": n for n in range(1000)}), "1000 faults"),
}
REPLIES = {
    "escape": (say(names=["a\x1b[2J", "b"]), "names.0: Value error, holds codes that are no text"),
    "nul": (say(names=["a\0", "b"]), "names.0: Value error, holds codes that are no text"),
    "turned": (say(names=["a\u202eb", "b"]), "names.0: Value error, holds codes that are no text"),
    "many-losses": (say(losses={f"x{n}": [1.0, 1.0] for n in range(100)}), "100 losses, more than"),
    "strangers": (
        say(failed={f"x{n}": "?" for n in range(20_000)}),
        "20000 clients failed that were not asked",
    ),
    "few-losses": (say(losses={"total": [1.0]}), "'total' does not have one value for each of 2"),
    "few-metrics": (
        say(metrics=[(("mse", "kept", False, ""), [0.5])]),
        "'kept-mse' does not have one value for each of 2",
    ),
    "text-loss": (say(losses={"total": ["1", "2"]}), "losses.total.0: Input should be a valid num"),
    "no-loss": (say(losses={"total": [None, 1]}), "losses.total.0: Input should be a valid num"),
    "true-loss": (say(losses={"total": [True, 1]}), "losses.total.0: Input should be a valid num"),
    "half-a-sample": (say(samples=[1.5, 1]), "samples.0: Input should be a valid integer"),
    "huge-count": (say(samples=[10**30, 1]), "samples.0: Input should be less than 9223"),
    "long-name": (
        say(names=["x" * 257, "b"]),
        "names.0: Value error, has 257 characters, at most 256",
    ),
    "long-reason": (say(failed={"x": "y" * 4097}), "failed.x: String should have at most 4096"),
    "one-name": (say(names=["a", "a"]), "2 sample counts for 2 clients"),
    "metric-twice": (say(metrics=[(("mse", "used", False, ""), [1, 1])] * 2), "is reported twice"),
    "unknown-model": (
        say(metrics=[(("mse", "loaned", False, ""), [1, 1])]),
        "Input should be 'used', 'local' or 'kept'",
    ),
    "half-a-metric": (say(metrics=[(("mse", "used"), [1, 1])]), "metrics.0.0.2: Field required"),
    "few-names": (say(names=["a"]), "2 sample counts for 1 clients"),
    "few-samples": (say(samples=[1]), "1 sample counts for 2 clients"),
    "number-names": (say(names=[1, 2]), "names.0: Input should be a valid string"),
    "text-round": (say(kept_rounds=["x", 1]), "kept_rounds.0: Input should be a valid integer"),
    "half-evaluated": (set_metric(KEPT_MSE, None), "an evaluation without all of its kept metrics"),
    "nan-seconds": (put("seconds", math.nan), "seconds = nan"),
    "negative-seconds": (put("seconds", -1.0), "seconds = -1.0"),
    "text-seconds": (put("seconds", "long"), "seconds = 'long'"),
    "shape": (in_first(lambda array: array[..., :-1]), "'head' has shape (2, 2), expected (2, 3)"),
    "dtype": (in_first(lambda array: array.astype(np.float64)), "dtype float64"),
    "missing": (change_arrays(lambda arrays: arrays.pop("head")), "arrays missing: ['head']"),
    "extra": (
        change_arrays(lambda arrays: arrays.update(more=arrays["head"])),
        "not expected: ['more']",
    ),
    "empty-array": (broken_array(b""), "array 'head' cannot be read"),
    "zip": (broken_array(b"PK\x03\x04 no zip"), "array 'head' cannot be read"),
    "cut-header": (broken_array(npy_header((2, 3))[:30]), "array 'head' cannot be read"),
    "huge-header": (broken_array(npy_header((10**12,))), "'head' has shape (1000000000000,)"),
    "another-class": (say(classes=[[0, 4], [5]]), "classes [5] of 5"),
    "negative-class": (say(classes=[[-1, 4], [2]]), "classes"),
    "class-twice": (say(classes=[[4, 4], [2]]), "classes [4, 4] of 5"),
    "few-classes": (say(classes=[[0, 4]]), "classes of 1 clients, expected 2"),
    "few-rows": (say(classes=[[0], [2]]), "'prototypes' has shape (3, 2), expected (2, 2)"),
}
BAD_CLIENTS: dict[str, tuple[Change, str, str]] = {  # with the client that is refused
    "nan": (change_arrays(put_nan), "its 'head' holds NaN or infinite values", "a"),
    "infinite": (set_row("head", 1, np.inf), "its 'head' holds NaN or infinite values", "b"),
    "class-nan": (set_row("prototypes", 2, np.nan), "its 'prototypes' holds NaN", "b"),
    "stranger": (say(names=["a", "x"]), "not a client of this node that was asked", "x"),
    "negative-count": (say(samples=[-1, 7]), "reports -1 train samples, expected 1 … 10", "a"),
    "no-samples": (say(samples=[10, 0]), "reports 0 train samples, expected 1 … 20", "b"),
    "absurd-count": (say(samples=[10, 10**9]), "train samples, expected 1 … 20", "b"),
    "loss": (say(losses={"total": [math.nan, 1.0]}), "its loss is not finite, or beyond", "a"),
    "metric": (set_metric(MSE, [1.0, math.nan]), "not finite and positive: mse", "b"),
    "kept-metric": (set_metric(KEPT_MSE, [-1.0, 1.0]), "not finite and positive: kept-mse", "a"),
    "kept-round": (say(kept_rounds=[-1, 0]), "its kept round is -1", "a"),
}
ROSTERS = {
    "no-group": (say(groups={"a": ""}), "clients without samples, group or missing share"),
    "share": (say(missing_shares={"a": 1.5, "b": 0}), "missing_shares.a: Input should be less"),
    "nan-share": (say(missing_shares={"a": math.nan, "b": 0}), "missing_shares.a: Input should"),
    "count": (say(samples={"a": 15, "b": 20}), "15 train samples; expected a multiple of 10"),
    "negative": (say(samples={"a": -10, "b": 20}), "declares -10 train samples"),
    "absurd": (say(samples={"a": 10 * MOST_SAMPLES, "b": 20}), "declares 10000000000 train"),
    "partitions": (say(partitions=-1), "partitions: Input should be greater"),
    "no-label": (say(label=None), "label: Input should be a valid string"),
    "inputs": (say(inputs=[3, 0]), "inputs.1: Input should be greater than 0"),
    "many-inputs": (say(inputs=[1] * 9), "inputs: Tuple should have at most 8 items"),
    "class-twice": (say(classes=["x", "x"]), "2 classes, not all different"),
    "few-counts": (say(class_counts={"a": [[1]]}), "class counts that do not fit"),
    "foreign-counts": (say(class_counts={"z": [[1, 2]]}), "class counts that do not fit"),
    "negative-counts": (say(class_counts={"a": [[1, -2]]}), "class_counts.a.0.1: Input should"),
    "foreign-times": (say(times={"z": ["", 0, 10, 12]}), "samples from 0 to 10 and 12 do not fit"),
    "few-times": (say(times={"a": ["", 0, 9, 12]}), "samples from 0 to 9 and 12 do not fit"),
    "early-end": (say(times={"a": ["", 0, 10, 10]}), "samples from 0 to 10 and 10 do not fit"),
    "half-times": (say(times={"a": ["", 0, 10]}), "times.a.3: Field required"),
    "long-note": (say(notes={"a": "y" * 4097}), "notes.a: String should have at most 4096"),
}


@pytest.mark.parametrize(("change", "reason"), (FORMS | REPLIES).values(), ids=FORMS | REPLIES)
def test_a_reply_of_another_form_is_refused_with_its_node(change: Any, reason: str) -> None:
    reply, (refusal,) = read(change(message_of()))
    assert reply is None
    assert (refusal.node, refusal.client) == ("n", "")
    assert reason in refusal.reason
    assert len(refusal.reason) < 500


@pytest.mark.parametrize(
    ("change", "reason", "client"), BAD_CLIENTS.values(), ids=BAD_CLIENTS.keys()
)
def test_a_bad_client_is_refused_by_name_and_the_others_count(
    change: Change, reason: str, client: str
) -> None:
    reply, refusals = read(change(message_of()))
    assert reply is not None
    kept_row = 1 if client == "a" else 0
    assert reply.names == ["ab"[kept_row]]
    assert reply.arrays["head"].tolist() == [REPLY.arrays["head"][kept_row].tolist()]
    assert reply.arrays["prototypes"].shape == (len(REPLY.classes[kept_row]), 2)
    assert [(refusal.node, refusal.client) for refusal in refusals] == [("n", client), ("n", "c")]
    assert reason in refusals[0].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (say(samples=[-1, 7]), "its mean includes client 'a', refused: reports -1 train samples"),
        (set_row("w", 1, np.nan), "its 'w' holds NaN or infinite values"),
        (set_row("w", 1, 2e15), "its 'w' holds values beyond ±1e+15"),
        (
            set_row("w", 1, 1e4),
            "its model has a root mean square of 7071.07, more than the accepted 300",
        ),
    ],
)
def test_a_mean_with_a_bad_client_is_refused_with_its_node(change: Change, reason: str) -> None:
    mean = replace(REPLY, arrays={"w": np.ones(2, np.float32)}, classes=[])
    spec = Expected(mean={"w": (2,)})
    message = change(message_of(mean))
    reply, [refusal] = read_reply(message, "n", SAMPLES, spec, (MSE, KEPT_MSE), fault, before=3.0)
    assert reply is None
    assert (refusal.node, refusal.client) == ("n", "")
    assert reason in refusal.reason


def test_of_clients_models_one_that_grew_too_much_is_refused_alone() -> None:
    spec = Expected(per_client={"head": (3,)}, models=["head"])
    good = replace(REPLY, arrays={"head": REPLY.arrays["head"]}, classes=[])
    message = set_row("head", 1, 301.0)(message_of(good))
    reply, [refusal, _] = read_reply(message, "n", SAMPLES, spec, (), fault, before=3.0)
    assert reply.names == ["a"]
    assert (refusal.client, "root mean square of 301" in refusal.reason) == ("b", True)


def test_a_record_that_flower_cannot_count_breaks_nothing() -> None:
    message = put("empty", [])(message_of())
    assert received_bytes(message) == 0
    assert read(message)[0] is not None


def test_a_flood_of_names_is_refused_as_one() -> None:
    def flooded(strangers: int) -> tuple[Reply | None, list[Refusal]]:
        names = ["a", *(f"x{number}" for number in range(strangers))]
        message = message_of(Reply(names, [1] * len(names)))
        return read_reply(message, "n", {"a": 10}, Expected(), (), fault)

    usable, refusals = flooded(MOST_STRANGERS)
    assert (usable.names, len(refusals)) == (["a"], MOST_STRANGERS)
    usable, [refusal] = flooded(MOST_STRANGERS + 1)
    assert usable is None
    assert refusal.reason == f"malformed reply: {MOST_STRANGERS + 2} clients, where 1 were asked"


@pytest.mark.parametrize(("change", "reason"), (FORMS | ROSTERS).values(), ids=FORMS | ROSTERS)
def test_a_roster_of_another_form_is_unusable(change: Any, reason: str) -> None:
    with pytest.raises(Unusable) as raised:
        read_roster(change(roster_message()), multiple=10)
    without_protocol = "the node runs fedproto-app of an unknown version"
    assert reason in str(raised.value) or str(raised.value).startswith(without_protocol)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(("change", "reason"), FORMS.values(), ids=FORMS)
def test_a_node_carries_out_no_order_of_another_form(change: Any, reason: str) -> None:
    with pytest.raises(Unusable) as raised:
        read_order(change(order_message()))
    assert reason in str(raised.value)


# --- anything ---------------------------------------------------------------------------------


@given(changed(fields_of(message_of())), st.floats() | st.integers(-5, 5) | st.text(max_size=3))
@settings(max_examples=300, deadline=None)
def test_whatever_a_reply_says_what_is_used_is_true(content: bytes, seconds: Any) -> None:
    reply, refusals = read(put("seconds", seconds)(say_bytes(content)(message_of())))
    assert all(isinstance(refusal, Refusal) for refusal in refusals)
    if reply is None:
        assert refusals
        return
    clients = len(reply.names)
    assert set(reply.names) <= SAMPLES.keys()
    assert len(set(reply.names)) == len(reply.samples) == clients
    assert all(0 < n <= SAMPLES[name] for name, n in zip(reply.names, reply.samples, strict=True))
    columns = [*reply.losses.values(), *reply.metrics.values()]
    assert all(len(column) == clients for column in columns)
    assert all(math.isfinite(value) for column in columns for value in column)
    assert reply.kept_rounds == [] or len(reply.kept_rounds) == clients
    assert all(0 <= label < SPEC.classes for classes in reply.classes for label in classes)
    assert reply.arrays["prototypes"].shape == (sum(map(len, reply.classes)), 2)
    assert reply.arrays["head"].shape == (clients, 3)


@given(changed(fields_of(roster_message())))
@settings(max_examples=300, deadline=None)
def test_whatever_a_roster_says_what_is_used_is_true(content: bytes) -> None:
    try:
        roster = read_roster(say_bytes(content)(roster_message()), multiple=10)
    except Unusable:
        return
    assert roster.samples.keys() == roster.groups.keys() == roster.missing_shares.keys()
    assert all(0 < n <= MOST_SAMPLES and n % 10 == 0 for n in roster.samples.values())
    assert all(0 <= share <= 1 for share in roster.missing_shares.values())
    stages = [stage for client_stages in roster.class_counts.values() for stage in client_stages]
    assert all(len(stage) == len(roster.classes) for stage in stages)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_whatever_bytes_an_array_has_only_refusals_come_out(data: st.DataObject) -> None:
    message = message_of()
    record = message.content.array_records["arrays"]
    name = data.draw(st.sampled_from(sorted(record)))
    good = bytearray(record[name].data)
    for _ in range(data.draw(st.integers(0, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    spoilt = bytes(good[: data.draw(st.integers(0, len(good)))])
    record[name] = Array(record[name].dtype, record[name].shape, record[name].stype, spoilt)
    reply, refusals = read(message)
    if reply is None:
        assert refusals
    else:
        assert all(np.isfinite(array).all() for array in reply.arrays.values())
