"""What a sweep varies, as people write it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments.sweep.axes import Range, Values, grid_option, range_option


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fuels.beta=10,30,100", (10, 30, 100)),
        ("method=fuels, fedavg", ("fuels", "fedavg")),
        ("method=fuels", ("fuels",)),
        ("a=1e-3,0.5", (1e-3, 0.5)),
        ("a=true,false", (True, False)),
        ("a=1,1.0", (1, 1.0)),  # not the same setting
        ('a="x,y",z', ('"x', 'y"', "z")),  # a bare word makes all bare
        ('a="x,y","z"', ("x,y", "z")),
        ('data.columns=["a"],["b","c"]', (["a"], ["b", "c"])),
    ],
)
def test_values(text: str, values: tuple[object, ...]) -> None:
    axis = grid_option(text)
    assert axis == Values(text.partition("=")[0], values)
    assert [type(one) for one in axis.values] == [type(one) for one in values]


@pytest.mark.parametrize(
    ("text", "axis", "whole"),
    [
        ("fuels.beta=5..100", Range("fuels.beta", 5, 100), True),
        ("r=1e-4..1e-2:log", Range("r", 1e-4, 1e-2, log=True), False),
        ("r=-1..2.5", Range("r", -1.0, 2.5), False),
        ("r = 0.5 .. 2 ", Range("r", 0.5, 2.0), False),
    ],
)
def test_ranges(text: str, axis: Range, whole: bool) -> None:
    made = range_option(text)
    assert made == axis
    assert made.whole == whole
    assert range_option(f"{made.key}={made.text}") == made  # as a plan keeps it


@pytest.mark.parametrize(
    "text",
    ["a", "a=", "=1..2", "a=1", "a=2..1", "a=1..1", "a=0..1:log", "a=x..1", "a=1..inf", "a=nan..1"],
)
def test_wrong_ranges(text: str) -> None:
    with pytest.raises(SettingsError, match="--range"):
        range_option(text)


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=1,1", "a=x,x", "a={b=1}"])
def test_wrong_values(text: str) -> None:
    with pytest.raises(SettingsError, match="--grid"):
        grid_option(text)


def test_drawn_numbers_lie_in_their_range_and_fill_it() -> None:
    random = np.random.default_rng(0)
    whole = [Range("k", 1, 3).draw(random) for _ in range(100)]
    assert set(whole) == {1, 2, 3}
    logs = [Range("k", 1, 1000, log=True).draw(random) for _ in range(2000)]
    assert all(isinstance(one, int) and 1 <= one <= 1000 for one in logs)
    # Half of the logarithms of 0.5 … 1000.5 lie below √(0.5 · 1000.5) = 22.4.
    assert np.mean(np.array(logs) < 22.4) == pytest.approx(0.5, abs=0.05)
    rates = [Range("r", 1e-4, 1e-2, log=True).draw(random) for _ in range(2000)]
    assert min(rates) >= 1e-4
    assert max(rates) <= 1e-2
    assert np.mean(np.log10(rates)) == pytest.approx(-3, abs=0.05)
    assert all(one == float(f"{one:.4g}") for one in rates)
    assert {Values("m", ("a", "b")).draw(random) for _ in range(50)} == {"a", "b"}


def test_rounding_stays_in_the_range() -> None:
    narrow = Range("r", 0.100001, 0.100002)
    assert narrow.rounded(0.1000015) == 0.100001
    assert math.isclose(Range("r", 0.0, 1.0).rounded(0.123456), 0.1235)
