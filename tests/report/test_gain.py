"""Which blocks of two runs are the same days, and what a gain is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproto_app.report.gain import (
    Blocks,
    Finding,
    Gain,
    gain_of,
    is_lower,
    read_blocks,
)
from tests.report.made_runs import add_blocks, make_run

HOUR = 3600.0


@pytest.mark.parametrize(
    ("ratios", "interval", "finding"),
    [
        ((0.99, 0.99), (0.98, 0.999), Finding.PAYS),
        ((0.99, 0.99), (0.98, 1.0), Finding.OPEN),  # the interval holds 1
        ((0.991, 0.991), (0.98, 0.999), Finding.NO_DIFFERENCE),
        ((0.995, 0.995), (0.991, 1.009), Finding.NO_DIFFERENCE),
        ((0.995, 0.995), (0.99, 1.009), Finding.OPEN),  # a gain of 1% is possible
        ((1.01, 1.01), (1.001, 1.1), Finding.HARMS),
        ((1.005, 1.005), (1.001, 1.1), Finding.NO_DIFFERENCE),
        ((0.1, 0.1), None, Finding.OPEN),
    ],
)
def test_the_rule(
    ratios: tuple[float, float], interval: tuple[float, float] | None, finding: Finding
) -> None:
    assert Gain(dict(zip("ab", ratios, strict=True)), interval).finding is finding


def test_less_than_what_is_printed_is_equal() -> None:
    gain = Gain({"a": 0.9994, "b": 0.9996, "c": 1.0, "d": 1.0004, "e": 1.0006}, None)
    assert (gain.better, gain.worse) == (1, 1)
    assert is_lower(0.9994, 1.0)
    assert not is_lower(0.9996, 1.0)
    assert not is_lower(0.0, 0.0)


def days(*parts: float, steps: int = 24, first: int = 0, seconds: float = HOUR) -> Blocks:
    return Blocks(seconds, steps, first, parts)


@pytest.mark.parametrize(
    ("blocks", "number", "block"),
    [
        ([days(1, 1, 1)], 3, "day"),
        ([days(1, 0, 1, 0)], 2, "day"),  # a day without values
        ([days(1, 1, 1), days(1, 1, first=2)], 4, "day"),  # one day in common
        # Days 2 and 3 are block 1 of two days, days 4 and 5 block 2.
        ([days(1, 1, 1, first=2), days(1, 1, steps=48, first=1)], 2, "2 days"),
        ([days(1, 1, first=-3), days(1, steps=48, first=-2)], 2, "2 days"),  # −3 is in −2, −2 in −1
        ([days(1, seconds=0.0, steps=7)], 1, "7 steps"),
        ([days(1, steps=6)], 1, "6 hours"),
        ([days(1, steps=1, seconds=7 * 86_400.0)], 1, "7 days"),
    ],
)
def test_blocks_of_clients_meet_on_the_clock(blocks: list[Blocks], number: int, block: str) -> None:
    names = [f"c{place}" for place in range(len(blocks))]
    errors = dict.fromkeys(names, 1.0)
    pairs = [(name, b, b) for name, b in zip(names, blocks, strict=True)]
    gain = gain_of(errors, errors, pairs)
    assert (gain.blocks, gain.block) == (number, block)


def test_one_day_can_make_the_interval_wide() -> None:
    """All of the gain is on one of eight days, and every client has it on that day."""
    names = [f"c{number}" for number in range(8)]
    ours, rival = days(0.0001, *(1,) * 7), days(8, *(1,) * 7)
    errors, rival_errors = dict.fromkeys(names, 7.0), dict.fromkeys(names, 15.0)
    pairs = [(name, ours, rival) for name in names]
    over_days = gain_of(errors, rival_errors, pairs)
    assert over_days.interval is not None
    assert over_days.interval[1] == pytest.approx(1)  # the day was not drawn
    assert over_days.finding is Finding.OPEN
    assert gain_of(errors, rival_errors).finding is Finding.PAYS  # over clients alone


def test_blocks_are_read_by_client_and_node(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    assert read_blocks(run) == {}
    add_blocks(run, [[0.25, 0.5], [1, 2]])
    assert read_blocks(run)["c1", "n0"] == Blocks(HOUR, 24, 100, [1, 2])
