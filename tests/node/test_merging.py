"""The merged reply is the same as if one process had trained every cohort."""

from __future__ import annotations

import numpy as np

from fedproto_app.core.messages import Reply
from fedproto_app.node.merging import absent_reply, merged


def cohort(place: int, *names: str, weight: int, value: float, **changes: object) -> Reply:
    reply = Reply(
        place=place,
        names=list(names),
        samples=[10] * len(names),
        losses={"total": [value] * len(names)},
        arrays={"prototypes": np.full((len(names), 2), value, np.float32)},
        totals={"w": np.full(2, value * weight)},
        weight=weight,
    )
    for name, change in changes.items():
        setattr(reply, name, change)
    return reply


def test_cohorts_stand_in_their_order_whoever_did_them() -> None:
    """By hand: mean of w = (1·2 + 4·1 + 7·1) / 4 = 3.25."""
    first = cohort(0, "a", "b", weight=2, value=1.0)
    second = cohort(1, "c", weight=1, value=4.0)
    third = cohort(2, "d", weight=1, value=7.0)
    reply = merged([second, absent_reply({}, 1.5), first, third, absent_reply({"x": "gone"}, 2.0)])
    assert reply.names == ["a", "b", "c", "d"]
    assert reply.losses == {"total": [1, 1, 4, 7]}
    assert reply.arrays["prototypes"][:, 0].tolist() == [1, 1, 4, 7]
    assert reply.arrays["w"].tolist() == [3.25, 3.25]
    assert reply.arrays["w"].dtype == np.float32
    assert reply.failed == {"x": "gone"}
    assert reply.seconds == 3.5


def test_how_cohorts_are_spread_changes_no_bit() -> None:
    draws = np.random.default_rng(0)
    cohorts = [
        cohort(place, f"c{place}", weight=1, value=0.0, totals={"w": draws.normal(size=50)})
        for place in range(7)
    ]
    undivided = merged(cohorts)
    for parts in (2, 3, 7):
        split = [cohort for part in range(parts) for cohort in cohorts[part::parts]]
        np.testing.assert_array_equal(merged(split).arrays["w"], undivided.arrays["w"])


def test_a_loss_or_count_that_a_cohort_lacks_is_0() -> None:
    guided = cohort(0, "a", weight=1, value=1.0, losses={"total": [1.0], "inter": [0.5]})
    plain = cohort(1, "b", weight=1, value=2.0)
    reply = merged([guided, plain])
    assert reply.losses == {"total": [1.0, 2.0], "inter": [0.5, 0.0]}


def test_a_cohort_of_which_nobody_is_left_sends_nothing() -> None:
    failed = {"a": "training diverged"}
    lost = Reply([], [], failed=failed, arrays={"prototypes": np.empty((0, 2), np.float32)})
    reply = merged([lost, cohort(1, "b", weight=3, value=2.0)])
    assert reply.names == ["b"]
    assert reply.arrays["w"].tolist() == [2.0, 2.0]
    assert reply.arrays["prototypes"].shape == (1, 2)
    assert merged([lost]).arrays == {}


def test_a_process_that_fails_does_not_undo_what_others_did() -> None:
    done = cohort(0, "a", weight=1, value=1.0)
    full = absent_reply(dict.fromkeys(["a", "b"], "no space"))
    reply = merged([done, full])
    assert (reply.names, reply.failed) == (["a"], {"b": "no space"})
