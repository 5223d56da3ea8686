"""Ticks and places, worked by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fedproto_app.report.page.axes import Scale, number, scale_of, ticks
from fedproto_app.report.page.charts import Axis


def texts(axis: Axis, low: float, high: float, most: int) -> list[str]:
    return [text for _, text in ticks(axis, Scale(low, high, 0, 1, axis.log), most)]


def seconds(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("axis", "low", "high", "expected"),
    [
        (Axis(""), 0, 10, ["0", "2", "4", "6", "8", "10"]),
        (Axis(""), -0.03, 0.21, ["0.00", "0.05", "0.10", "0.15", "0.20"]),
        (Axis("", percent=True), 0, 1, ["0%", "20%", "40%", "60%", "80%", "100%"]),
        (Axis("", percent=True), -0.5, 0.1, ["−40%", "−20%", "0%"]),
        # Rounds: never 1.5, though there would be room for it.
        (Axis("", whole=True), 1, 3, ["1", "2", "3"]),
        (Axis("", whole=True), 1, 1.5, ["1"]),
        (Axis("", log=True), 0.01, 100, ["0.01", "0.1", "1", "10", "100"]),
        (Axis("", log=True), 0.9, 6, ["1", "2", "5"]),
        (Axis(""), 0, 5e6, ["0", "1M", "2M", "3M", "4M", "5M"]),
    ],
)
def test_round_values(axis: Axis, low: float, high: float, expected: list[str]) -> None:
    assert texts(axis, low, high, 5) == [text if text != "0.00" else "0" for text in expected]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ((2014, 1, 1, 2), (2014, 1, 1, 12), ["03:00", "06:00", "09:00", "12:00"]),
        ((2014, 1, 1, 12), (2014, 1, 2, 12), ["12:00", "18:00", "Jan 2", "06:00", "12:00"]),
        ((2013, 12, 30), (2014, 1, 3), ["Dec 30", "Dec 31", "Jan 1", "Jan 2", "Jan 3"]),
        ((2013, 11, 2), (2014, 3, 2), ["Dec", "2014", "Feb", "Mar"]),
        ((2010, 6, 1), (2014, 6, 1), ["2011", "2012", "2013", "2014"]),
    ],
)
def test_times_have_dates(low: tuple[int, ...], high: tuple[int, ...], expected: list[str]) -> None:
    assert texts(Axis("", times=True), seconds(*low), seconds(*high), 5) == expected


def test_zero_has_a_place_of_its_own_on_a_logarithmic_axis() -> None:
    """Beside the smallest value, and never on top of its tick."""
    axis = Axis("", log=True)
    scale = scale_of(axis, [0.0, 1e4, 1e8], 0, 100)
    assert scale.at(0) == 0
    assert scale.at(1e4) > 10
    assert [text for _, text in ticks(axis, scale, 5)] == ["0", "10k", "100k", "1M", "10M", "100M"]


def test_places() -> None:
    assert Scale(0, 10, 100, 0).at(2.5) == 75
    assert Scale(1, 100, 0, 10, log=True).at(10) == pytest.approx(5)
    one = scale_of(Axis(""), [3.0], 0, 10)  # of one value, an axis around it
    assert one.low < 3 < one.high
    none = scale_of(Axis(""), [], 0, 10)
    assert none.low < none.high


def test_numbers() -> None:
    told = [number(value) for value in (0.01234, -2.5, 999, 54339, 3.7e6, 2e9)]
    assert told == ["0.0123", "−2.5", "999", "54.3k", "3.7M", "2G"]
