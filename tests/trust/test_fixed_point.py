"""Sums of real numbers as integers modulo 2⁶⁴: by hand, and at the limits of their range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.sends import Expected
from fedproto_app.trust.fixed_point import Layout, OutOfRange, Sums, largest, packed, unpacked


def sums(values: list[float], clients: int = 1) -> Sums:
    return Sums({"v": np.array(values, dtype=np.float64)}, {"clients": np.array(clients)})


def test_real_numbers_stand_as_multiples_of_a_power_of_two() -> None:
    """b = 8: 1.5 is 384 of 1/256, −1 is 2⁶⁴ − 256. Counts are not scaled."""
    vector = packed(sums([1.5, -1.0], clients=7), bits=8, nodes=2)
    assert vector.dtype == np.uint64
    assert vector.tolist() == [384, 2**64 - 256, 7]


def test_their_sum_wraps_to_the_right_number() -> None:
    """1.5 − 2 = −0.5, though every vector but the last is far beyond 2⁶³."""
    parts = [packed(sums([x]), bits=8, nodes=3) for x in (1.5, -2.0)]
    total = unpacked(parts[0] + parts[1], Layout.from_sums(sums([0.0])), bits=8)
    assert total.values["v"].tolist() == [-0.5]
    assert total.counts["clients"] == 2


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6))
def test_a_sum_is_off_by_half_a_step_a_node_at_most(parts: list[float]) -> None:
    vectors = [packed(sums([part]), bits=24, nodes=len(parts)) for part in parts]
    total = unpacked(np.add.reduce(vectors), Layout.from_sums(sums([0.0])), bits=24).values["v"][0]
    assert abs(total - sum(parts)) <= len(parts) * 2.0**-25 + 1e-9


@pytest.mark.parametrize(("bits", "nodes"), [(8, 2), (24, 3), (24, 1000), (40, 7)])
def test_the_largest_values_of_all_nodes_do_not_wrap(bits: int, nodes: int) -> None:
    limit = largest(bits, nodes)
    assert limit == pytest.approx(2**63 / nodes / 2**bits)
    for sign in (1, -1):
        vector = packed(sums([sign * limit]), bits, nodes)
        total = unpacked(vector * np.uint64(nodes), Layout.from_sums(sums([0.0])), bits)
        assert total.values["v"][0] == pytest.approx(sign * limit * nodes)


@pytest.mark.parametrize("value", [largest(24, 4) * 1.001, -1e300, np.inf, np.nan])
def test_what_a_sum_cannot_hold_is_refused_by_name_and_not_clipped(value: float) -> None:
    with pytest.raises(OutOfRange, match=r"its 'v' holds .*4 nodes a masked sum takes values up"):
        packed(sums([0.0, value]), bits=24, nodes=4)


def test_a_vector_of_all_arrays_in_the_order_of_their_names() -> None:
    spec = Expected(mean={"w": (2,)}, per_client={"a": (1, 2)}, per_class={"p": (2,)}, classes=3)
    layout = Layout.expected(spec)
    assert layout.size == 2 + 2 + 3 * 2 + (1 + 1 + 3)
    unit_sums = Sums(
        {name: np.ones(shape) for name, shape in layout.values.items()},
        {name: np.zeros(shape, dtype=np.int64) for name, shape in layout.counts.items()},
    )
    assert Layout.from_sums(unit_sums) == layout
    numbers = np.arange(layout.size, dtype=np.uint64)
    result = unpacked(numbers, layout, bits=0)
    assert result.values["a"].tolist() == [[0, 1]]
    assert result.values["p"].tolist() == [[2, 3], [4, 5], [6, 7]]
    assert result.values["w"].tolist() == [8, 9]
    assert result.counts["clients"] == 10
    assert result.counts["clients-by-class"].tolist() == [11, 12, 13]
    assert result.counts["weight"] == 14
