"""Finite values of a size that no training has, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Reply
from fedproto_app.core.sends import Expected
from fedproto_app.trust.outliers import (
    growth_fault,
    largest,
    long_steps,
    opposed_steps,
    out_of_line,
    root_mean_square,
    sizes_of,
    value_fault,
)

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


def test_orders_have_the_sizes_of_their_arrays() -> None:
    model, head = {"w": floats(3, 3)}, {"w": floats(4)}
    assert sizes_of([{}, model, dict(model), head, {}]) == [0, 3, 3, 4, 0]


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


def test_a_node_whose_clients_moved_far_more_than_usual_is_named() -> None:
    def moved(*steps: float) -> Reply:
        return Reply([f"c{row}" for row in range(len(steps))], [1] * len(steps), steps=list(steps))

    replies = {"a": moved(1.0, 1.2), "b": moved(0.9, 19.0), "c": moved(1.1, 50.0)}
    assert long_steps(replies).keys() == {"c"}  # b's mean moved by less than ten usual steps
    assert long_steps({"a": moved(1.0), "b": moved(1e9)}) == {}  # no two say which is usual
    assert long_steps({"a": moved(), "b": moved()}) == {}


def test_a_node_that_steps_against_most_others_is_named() -> None:
    """Five nodes step right, two of them a little upwards. Others step left, up, or hardly left."""

    def outliers(*steps: tuple[float, float]) -> set[str]:
        start = {"w": floats(1, 1)}
        replies = {
            f"n{row}": Reply(["c"], [1], arrays={"w": start["w"] + floats(*step)})
            for row, step in enumerate(steps)
        }
        return set(opposed_steps(replies, dict.fromkeys(replies, start), start.keys()))

    agree = [(1.0, 0.0), (2.0, 0.0), (0.5, 0.0), (1.0, 0.2), (1.0, 0.2)]
    assert outliers(*agree, (-1.0, 0.0)) == {"n5"}
    assert outliers(*agree, (-0.01, 0.0)) == {"n5"}  # a direction, whatever the length
    assert outliers(*agree, (0.0, 1.0), (-0.25, 1.0), (0.0, 0.0)) == set()  # cosines 0.2, -0.05, 0
    assert outliers(*agree, (-1.0, 0.0), (-1.0, 0.1)) == {"n5", "n6"}  # one of six is like each
    assert outliers(*agree, *[(-1.0, 0.0)] * 4) == set()  # three of eight are, too many
    assert outliers(*agree[:3], (-1.0, 0.0)) == set()  # four nodes


# --- sizes far beyond the others' -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "refused"),
    [
        ({"x": 11.0}, {"x"}),
        ({"x": 10.0}, set()),
        ({f"x{n}": 1e-6 for n in range(50)}, set()),  # many small ones blame no honest client
        ({f"x{n}": 50.0 for n in range(50)}, {f"x{n}" for n in range(50)}),
    ],
)
def test_by_hand(bad: dict[str, float], refused: set[str]) -> None:
    sizes = {ClientKey(f"c{n}", f"node-{n}"): 1.0 for n in range(4)}
    sizes |= {ClientKey(name, "bad"): size for name, size in bad.items()}
    assert {key.client for key in largest(sizes, "its size is")} == refused


def test_of_two_nobody_is_refused() -> None:
    sizes = {ClientKey("a", "n"): 1.0, ClientKey("b", "m"): 1e9}
    assert largest(sizes, "its size is") == {}
