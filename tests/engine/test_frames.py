"""What workers and engine say to each other comes back as it was."""

from __future__ import annotations

import math

import numpy as np

from fedproto_app.core.messages import Reply
from fedproto_app.engine import frames
from fedproto_app.node.merging import absent_reply


def test_an_order_comes_back() -> None:
    order = frames.OrderFrame(3, 1, 4, b"a message \x00 of Flower's")
    frame = frames.order_frame(order)
    assert frame[:1] == frames.ORDER
    assert frames.read_order_frame(frame[1:]) == order


def test_a_part_of_a_reply_comes_back_to_the_last_bit() -> None:
    cohort = Reply(
        place=2,
        names=["a/b", "ü"],
        samples=[24, 48],
        losses={"total": [1 / 3, math.inf]},
        kept_rounds=[0, 7],
        failed={"c": "training diverged"},
        arrays={"proto/types": np.arange(6, dtype=np.float32).reshape(2, 3)},
        classes=[[0, 2], []],
        totals={"encoder.w": np.array([1 / 3, 1e300])},
        weight=72,
    )
    absent = absent_reply({"d": "not a client of this node"}, 0.1)
    first, *later = frames.read_part(frames.part_bytes([cohort, Reply([], [], place=5), absent]))
    assert later == [Reply([], [], place=5), absent]
    for group in ("arrays", "totals"):
        decoded, original = getattr(first, group), getattr(cohort, group)
        assert decoded.keys() == original.keys()
        for name, array in original.items():
            np.testing.assert_array_equal(decoded[name], array)
            assert decoded[name].dtype == array.dtype
        setattr(first, group, {})
        setattr(cohort, group, {})
    assert first == cohort
