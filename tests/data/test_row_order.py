from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data import files
from fedproto_app.data.clock import Stamps
from fedproto_app.data.row_order import (
    SORTED,
    FileRows,
    TimedRows,
    TimeTwice,
    in_order,
    with_counts,
)
from fedproto_app.data.series import notes_of
from fedproto_app.settings.choice import Repeated
from tests.data.made_tables import load, written


def rows(times: object, zone: str = "", *, utc: bool = False) -> TimedRows:
    """Return rows in order, whose values are their places in the file."""
    stamps = Stamps(np.array(times, dtype="datetime64[us]"), utc)
    values = np.arange(len(stamps.times))[:, None] * 1.0
    return in_order(FileRows(stamps, values, "a.csv"), zone)


def night(freq: str, zone: str = "Europe/Berlin", day: str = "2024-10-27") -> np.ndarray:
    """Return the local times of a night, in the order of time."""
    hours = pd.date_range(day, periods=7 * (2 if freq == "30min" else 1), freq=freq, tz=zone)
    return hours.tz_localize(None).to_numpy()


def test_rows_are_sorted_and_said_so() -> None:
    sorted_rows = rows(["2024-01-01T02", "2024-01-01T00", "2024-01-01T01"])
    assert sorted_rows.values[:, 0].tolist() == sorted_rows.places.tolist() == [1, 2, 0]
    assert (np.diff(sorted_rows.stamps.times) > 0).all()
    assert sorted_rows.notes == (SORTED,)
    assert rows(["2024-01-01T00", "2024-01-01T01"]).notes == ()


@pytest.mark.parametrize("freq", ["h", "30min"])
@pytest.mark.parametrize("direction", [1, -1])
def test_with_a_zone_both_hours_stay(freq: str, direction: int) -> None:
    ordered = rows(night(freq)[::direction], "Europe/Berlin")
    step = np.timedelta64(60 if freq == "h" else 30, "m")
    assert (np.diff(ordered.stamps.times) == step).all()
    assert ordered.stamps.utc
    assert ordered.stamps.times[0] == np.datetime64("2024-10-26T22:00")
    assert (np.diff(ordered.values[:, 0]) == direction).all()


@pytest.mark.parametrize("direction", [1, -1])
def test_a_row_may_be_missing_in_the_hour_that_comes_twice(direction: int) -> None:
    local = [f"2024-10-27T{time}" for time in ("01:30", "02:00", "02:30", "02:00", "03:00")]
    ordered = rows(local[::direction], "Europe/Berlin")
    hours = (ordered.stamps.times - np.datetime64("2024-10-27")) / np.timedelta64(1, "h")
    assert hours.tolist() == [-0.5, 0, 0.5, 1, 2]


def test_with_a_zone_spring_has_no_gap() -> None:
    ordered = rows(night("h", day="2024-03-31"), "Europe/Berlin")
    assert (np.diff(ordered.stamps.times) == np.timedelta64(1, "h")).all()


@pytest.mark.parametrize("freq", ["h", "30min"])
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2024-10-27"),
        ("America/New_York", "2024-11-03"),
        ("Europe/London", "2024-10-27"),
        ("Australia/Sydney", "2024-04-07"),
        ("Pacific/Auckland", "2024-04-07"),
    ],
)
def test_without_a_zone_the_hour_that_comes_twice_is_averaged(
    freq: str, zone: str, day: str
) -> None:
    times = night(freq, zone, day)
    ordered = rows(times)
    unique, counts = np.unique(times, return_counts=True)
    assert ordered.stamps.times.tolist() == unique.tolist()
    expected = [np.flatnonzero(times == time).mean() for time in unique]
    assert ordered.values[:, 0].tolist() == expected
    assert counts.max() == 2
    (note,) = ordered.notes
    assert f"the hour from {day} 0" in note
    assert "averaged" in note


@pytest.mark.parametrize(
    "times",
    [
        ["2024-10-28T01", "2024-10-28T02", "2024-10-28T02", "2024-10-28T03"],  # a Monday
        ["2024-10-27T11", "2024-10-27T12", "2024-10-27T12", "2024-10-27T13"],  # noon
        ["2024-07-28T01", "2024-07-28T02", "2024-07-28T02", "2024-07-28T03"],  # July
        ["2024-10-27", "2024-10-27", "2024-10-28"],  # days
        ["2024-10-27T02:00", "2024-10-27T02:30", "2024-10-27T02:00"],  # half of the hour
        ["2024-10-27T01", "2024-10-27T01", "2024-10-27T02", "2024-10-27T02"],  # two hours
        ["2024-10-27T01", *["2024-10-27T02"] * 3],
    ],
)
def test_other_times_with_two_values_are_refused_with_both(times: list[str]) -> None:
    with pytest.raises(TimeTwice, match=r"comes twice with different values, \d in row \d and \d"):
        rows(times)


HALVES = ["2024-01-01T00", "2024-01-01T01", "2024-01-01T01", "2024-01-01T02"]


@pytest.mark.parametrize("values", [[1, 2, 2, 3], [1, 2, np.nan, 3], [1, np.nan, 2, 3]])
def test_equal_rows_are_kept_once_and_counted(values: list[float]) -> None:
    stamps = Stamps(np.array(HALVES, dtype="datetime64[us]"))
    ordered = in_order(FileRows(stamps, np.array(values)[:, None], "a.csv"))
    assert ordered.values[:, 0].tolist() == [1, 2, 3]
    assert ordered.places.tolist() == [0, 1, 3]
    (note,) = with_counts([ordered])[0].notes
    assert note == "rows left out that repeat the time and values of another: 1"


@pytest.mark.parametrize(("repeated", "expected"), [("mean", [1, 3, 3]), ("last", [1, 4, 3])])
def test_contradicting_rows_become_one_if_asked(repeated: Repeated, expected: list[float]) -> None:
    stamps = Stamps(np.array(HALVES, dtype="datetime64[us]"))
    values = np.array([1.0, 2.0, 4.0, 3.0])[:, None]
    ordered = in_order(FileRows(stamps, values, "a.csv"), repeated=repeated)
    assert ordered.values[:, 0].tolist() == expected
    (note,) = with_counts([ordered])[0].notes
    assert note == f"rows with equal times but different values, whose {repeated} is taken: 1"


def test_contradictions_are_counted_and_named_by_row() -> None:
    with pytest.raises(TimeTwice) as caught:
        rows(["2024-01-01T02", "2024-01-01T01", "2024-01-01T02", "2024-01-01T01"])
    assert str(caught.value) == (
        "a.csv: the time 2024-01-01 01:00:00 comes twice with different values, 1 in row 2 and 3 "
        "in row 4 (in all 2 times do)"
    )
    assert caught.value.rows == (1, 3)


def test_only_a_night_when_clocks_go_back_hints_at_a_zone() -> None:
    with pytest.raises(TimeTwice, match=r"if clocks went back then, set data\.time-zone"):
        rows(["2024-10-27T02:00", "2024-10-27T02:30", "2024-10-27T02:00"])
    with pytest.raises(TimeTwice, match=r"1 in row 2$"):
        rows(["2024-10-28T02:00", "2024-10-28T02:00"])


QUARTERS = np.datetime64("2024-01-01T00", "us") + np.arange(20) * np.timedelta64(15, "m")


def test_times_stamped_a_little_late_are_rounded() -> None:
    late = np.resize([0, 3, 0, 44, -2], 20) * np.timedelta64(1, "s")
    ordered = rows(QUARTERS + late)
    assert (ordered.stamps.times == QUARTERS).all()
    assert ordered.counts == {"times a little off the step of 0:15:00, rounded to it": 12}


@pytest.mark.parametrize(
    "late",
    [
        np.full(20, 40),  # regular, though not since midnight
        np.where(np.arange(20) == 7, 46, 0),  # more than a twentieth of the step
    ],
)
def test_other_times_stay_as_they_are(late: np.ndarray) -> None:
    times = QUARTERS + late * np.timedelta64(1, "s")
    assert (rows(times).stamps.times == times).all()


def test_a_row_between_the_steps_is_left_out_only_without_a_value() -> None:
    times = np.insert(QUARTERS, 3, np.datetime64("2024-01-01T00:33:41"))
    values = np.arange(21.0)[:, None]
    assert len(in_order(FileRows(Stamps(times), values, "a.csv")).stamps.times) == 21
    values[3] = np.nan
    ordered = in_order(FileRows(Stamps(times), values, "a.csv"))
    assert (ordered.stamps.times == QUARTERS).all()
    assert ordered.notes == (
        "rows left out between the steps, without a value: 1, at 2024-01-01 00:33:41",
    )


@pytest.mark.parametrize(
    ("times", "zone", "message"),
    [
        (
            ["2024-10-27T01", "2024-10-27T02"],
            "Europe/Berlin",
            "2 in row 2 may be .*00:00.*does not s",
        ),
        (
            ["2024-10-27T05", "2024-10-27T02", "2024-10-27T04", "2024-10-27T02"],
            "Europe/Berlin",
            r"may be 2024-10-27 00:00:00\+00:00 or 2024-10-27 01:00:00\+00:00, .*does not show",
        ),
        (
            ["2024-10-27T05", "2024-10-27T02", "2024-10-27T02", "2024-10-27T04"],
            "Europe/Berlin",
            "2 in row 2 may be .*the order of the rows does not show",
        ),
        (["2024-03-31T02:30"], "Europe/Berlin", "2024-03-31 02:30:00 in row 1 does not exist"),
        (["2024-03-31T02:30"], "Europe/Berln", "did you mean 'Europe/Berlin'"),
        (["2024-03-31T02:30"], "../../etc/passwd", "unknown"),
        (["2024-03-31T02:30", "NaT"], "", "row 2 has no time"),
    ],
)
def test_what_a_zone_does_not_tell_is_refused(times: list[str], zone: str, message: str) -> None:
    message = message.replace("2 in row 2", r"02:00:00 in row 2")
    with pytest.raises(DataError, match=message) as error:
        rows(times, zone)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="is for local times"):
        rows(["2024-01-01"], "Europe/Berlin", utc=True)


def test_a_zone_needs_times(tmp_path) -> None:
    with pytest.raises(DataError, match=r"data\.time-zone = 'UTC': .* has no column of times"):
        load(written(tmp_path, "a\n1\n2\n"), "wide-csv", time_zone="UTC")


def test_clients_of_a_long_table_are_ordered_for_themselves(tmp_path) -> None:
    lines = [f"a,{time},{number}" for number, time in enumerate(night("h"))]
    shuffled = [f"b,{time},{number}" for number, time in enumerate(night("h")[[0, 5, 4]])]
    text = "\n".join(["unique_id,ds,y", *lines, *shuffled])
    clients = load(written(tmp_path, text), "long-csv")
    np.testing.assert_array_equal(clients["a"].values, [0, 1, 2.5, 4, 5, 6])
    np.testing.assert_array_equal(clients["b"].values, [0, np.nan, np.nan, 2, 1])
    assert [note.partition(":")[0] for note in notes_of(list(clients.values()))] == ["a", "b"]


def test_rows_left_out_may_mean_zero(tmp_path) -> None:
    """From a client's first value to the last time of all, and the step divides all distances."""
    text = "unique_id,ds,y\na,2024-01-01,1\na,2024-01-07,2\na,2024-01-10,\nb,2024-01-05,3\n"
    path = written(tmp_path, text)
    clients = load(path, "long-csv", missing="zero")
    assert clients["a"].values.tolist() == [1, 0, 0, 0, 0, 0, 2, 0, 0, 0]
    assert clients["b"].values.tolist() == [3, 0, 0, 0, 0, 0]
    assert clients["b"].start - clients["a"].start == 4
    assert load(path, "long-csv")["b"].values.tolist() == [3]
    wide = written(tmp_path, "time,a\n2024-01-01,1\n2024-01-02,\n")
    assert load(wide, "wide-csv", missing="zero")["a"].values.tolist() == [1, 0]


def test_a_wrong_year_does_not_fill_the_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "most_bytes", lambda: 100_000)
    path = written(tmp_path, "time,a\n2024-01-01,1\n2024-01-02,2\n9024-01-03,2\n")
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(path, "wide-csv", missing="zero")
