"""Which column is the time, the client and the target, or what the person is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import Reading
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.table_form import Column, Question, form_of

HOURS = [f"2024-01-{1 + n // 24:02d} {n % 24:02d}:00" for n in range(60)]
LOAD = [f"{50 + 7 * np.sin(n) + n % 5:.2f}" for n in range(60)]
HEAT = [f"{10 + 3 * np.cos(n):.1f}" for n in range(60)]
RISING = [str(n) for n in range(7, 67)]


def form(answers: dict[str, str] | None = None, rows: int = 0, **columns: list[str]) -> Reading:
    """Return the form of a table of these columns, whose last ten rows are its end."""
    of_table = [Column(name, cells[:50], cells[50:]) for name, cells in columns.items()]
    return form_of(of_table, answers, rows=rows)


def question(answers: dict[str, str] | None = None, rows: int = 0, **columns: list[str]) -> str:
    with pytest.raises(Question) as caught:
        form(answers, rows, **columns)
    assert str(caught.value) == f"the table: {caught.value.text}"
    return caught.value.text


def test_a_column_per_client_stays_wide() -> None:
    read = form(time=HOURS, north=LOAD, south=HEAT)
    assert (read.source, read.settings, read.notes, read.left_out) == ("wide-csv", {}, (), ())
    assert form(north=LOAD, south=HEAT).settings == {}
    sensors = {f"s{n}": LOAD for n in range(48)}
    assert form(time=HOURS, **sensors).settings == {}
    counts = [str(n % 3) for n in range(60)]  # small whole numbers that repeat
    assert form(time=HOURS, doors=counts, cars=counts[::-1]).settings == {}


@pytest.mark.parametrize("name", ["y", "target", "Y"])
def test_a_usual_name_is_the_target(name: str) -> None:
    read = form(unique_id=["a"] * 60, ds=HOURS, **{name: LOAD}, heat=HEAT)
    assert (read.source, read.settings, read.target) == ("long-csv", {}, name)
    assert (read.notes, read.beside) == ((), ("heat",))


def test_the_only_column_of_numbers_is_the_target() -> None:
    days = [f"day {n}" for n in range(60)]
    read = form(site=["a"] * 60, time=HOURS, load=LOAD, rain=["dry", "wet"] * 30, note=days)
    assert (read.target, read.settings["data.columns"]) == ("load", "load")
    assert read.left_out == ("column 'note' is left out, as it holds no numbers, such as 'day 0'",)
    assert read.beside == ("rain",)


def test_columns_that_are_named_as_known_are_neither_target_nor_client() -> None:
    columns = {"time": HOURS[:30] * 2, "load": LOAD, "heat": HEAT, "weather": ["dry", "wet"] * 30}
    site = ["a"] * 30 + ["b"] * 30
    read = form({"data.known": "heat,weather"}, site=site, **columns)
    assert (read.target, read.beside) == ("load", ("heat", "weather"))
    assert read.settings == {"data.client-column": "site", "data.columns": "load"}


@pytest.mark.parametrize("names", [("load", "heat"), ("value", "heat"), ("y", "target")])
def test_among_several_the_target_is_asked_for(names: tuple[str, str]) -> None:
    site = ["a"] * 50 + ["b"] * 10
    columns = {"site": site, "time": HOURS, names[0]: LOAD, names[1]: HEAT}
    text = question(**columns)
    assert text == (
        f"which column is to be forecast: {names[0]}, {names[1]}? name it with --target COLUMN or "
        "--set data.columns=COLUMN"
    )
    read = form({"data.columns": names[1]}, **columns)
    assert (read.target, read.beside) == (names[1], (names[0],))


@pytest.mark.parametrize("name", ["hour", "Month", "weekday", "label", "lat", "is_holiday", "id"])
def test_a_name_of_no_client_is_asked_about(name: str) -> None:
    columns = {"time": HOURS, name: [str(n % 7) for n in range(60)], "load": LOAD}
    assert f"is {name!r} a client?" in question(**columns)
    assert form({"data.columns": "load"}, **columns).target == "load"
    assert form({"data.clients": f"{name},load"}, **columns).source == "wide-csv"


def test_numbers_of_the_steps_are_the_time() -> None:
    read = form(t=RISING, north=LOAD, south=HEAT)
    assert read.settings == {"data.time-unit": "step", "data.time-column": "t"}
    assert read.notes == ("the numbers in 't' are taken for numbers of the steps",)
    assert form(north=RISING, south=[str(2 * n) for n in range(60)]).settings == {}  # none else
    halves = [str(n / 2) for n in range(60)]
    assert "column 't' rises by 0.5 in each row" in question(t=halves, north=LOAD)
    broken = [*RISING[:-1], "3"]
    assert form(t=broken, north=LOAD).settings == {}


def test_row_numbers_beside_times_are_left_out() -> None:
    read = form(time=HOURS, No=RISING, north=LOAD)
    assert read.settings == {"data.clients": "north"}
    assert read.left_out == ("column 'No' rises by 1 in each row, as row numbers do: left out",)
    assert form({"data.clients": "No,north"}, time=HOURS, No=RISING, north=LOAD).left_out == ()
    sensors = {f"s{n}": LOAD for n in range(13)}
    assert "column 'No' is no client" in question(time=HOURS, No=RISING, **sensors)


def test_pandas_index_is_left_out_if_another_column_is_the_time() -> None:
    rows = [str(n) for n in range(60)]
    read = form(**{"": rows, "time": HOURS, "north": LOAD})
    assert read.left_out == ("the first column has no name and numbers the rows: left out",)
    assert form(**{"": rows, "north": LOAD}).settings == {"data.time-unit": "step"}
    empty = form(**{"": [""] * 60, "time": HOURS, "north": LOAD})
    assert empty.left_out == ("the first column has no name and is empty: left out",)


def test_a_constant_text_is_no_client_where_a_number_tells_clients_apart() -> None:
    columns = [
        Column("patient", ["1"] * 24, ["2"] * 24),
        Column("time", HOURS[:24], HOURS[:24]),
        Column("value", LOAD[:24], LOAD[:24]),
        Column("unit", ["mmHg"] * 24, ["mmHg"] * 24),
    ]
    assert form_of(columns, rows=48).settings["data.client-column"] == "patient"


def test_the_time_is_a_column_that_changes() -> None:
    read = form(start=[HOURS[0]] * 60, at=HOURS, north=LOAD)
    assert read.settings["data.time-column"] == "at"


def test_texts_without_times_are_a_question() -> None:
    regions = ["east", "west"] * 30
    text = question(region=regions, load=LOAD)
    assert "no column holds times that can be read" in text
    assert "'region' holds texts, such as 'east'" in text
    assert "--set data.clients=load" in text
    assert form({"data.clients": "load"}, region=regions, load=LOAD).source == "wide-csv"
    assert "which column holds the times?" in question(unique_id=regions, load=LOAD)


def stores(first: int, last: int) -> list[str]:
    """Return the number of the first client in the first rows, and of the last in the last ones."""
    return [str(first)] * 50 + [str(last)] * 10


def test_whole_numbers_name_clients_only_if_times_repeat() -> None:
    """The last of 4 × 60 hours in a row is 60 hours after the first."""
    columns = {"time": HOURS, "store": stores(1, 4), "load": LOAD}
    assert form(rows=4 * 60, **columns).settings == {"data.client-column": "store"}
    assert form(rows=60, **columns).settings == {}
    by_time = [hour for hour in HOURS[:15] for _ in range(4)]
    sales = [str(n % 9) for n in range(60)]
    read = form(time=by_time, sales=sales, store=["1", "2", "3", "4"] * 15)
    assert (read.settings, read.target) == ({"data.client-column": "store"}, "sales")


def test_a_text_that_never_changes_may_be_a_remark_beside_clients() -> None:
    columns = {"time": HOURS, "north": LOAD, "south": HEAT, "note": ["ok"] * 60}
    text = question(**columns)
    assert text.endswith("if every column is a client, --set data.clients=north,south")
    assert form({"data.clients": "north,south"}, **columns).source == "wide-csv"


def test_the_text_that_changes_names_the_client() -> None:
    tariff, home = ["flat"] * 60, ["home 1"] * 50 + ["home 9"] * 10
    assert form(tariff=tariff, home=home, time=HOURS, y=LOAD).settings == {
        "data.client-column": "home"
    }
    assert form(home=["home 1"] * 60, time=HOURS, y=LOAD).settings == {"data.client-column": "home"}


def test_a_header_of_dates_is_told_to_turn(tmp_path: Path) -> None:
    dates = [f"{day:%Y-%m-%d}" for day in pd.date_range("2024-01-01", periods=9)]
    rows = ["id," + ",".join(dates), *(f"shop {n}," + ",".join(map(str, range(9))) for n in "abc")]
    (tmp_path / "turned.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"line 1 holds times, .* so its rows look like series"):
        reading_of(tmp_path / "turned.csv")
