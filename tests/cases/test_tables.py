"""Tables from people's reports: each is read as it is meant, or refused in one line with the cause.

The rows of cases.md on tables. What stays refused stands in docs/your-data.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import Reading
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.series import ClientSeries, notes_of
from fedproto_app.data.sources import load_series
from fedproto_app.experiments.trial import Wishes, plan_of, try_file
from fedproto_app.settings import settings_from
from tests.helpers.reported_cases import reported_case

Read = tuple[Reading, list[ClientSeries], list[str]]


def read(path: Path, **answers: str) -> Read:
    """Return how the file is read with these answers, its clients and all notes on them."""
    given = {f"data.{key.replace('_', '-')}": value for key, value in answers.items()}
    reading = reading_of(path, given)
    table = {**reading.all_settings, **reading.fitting(given), "data.path": str(path)}
    clients = load_series(settings_from(table).data)
    return reading, clients, [*reading.notes, *reading.left_out, *notes_of(clients)]


def refusal(path: Path, **answers: str) -> str:
    """Return the line in which the file is refused, without its path."""
    with pytest.raises(DataError) as caught:
        read(path, **answers)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), "FILE")


def text_of(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, dtype=str)


UNITS = {"columns": "units"}


@pytest.mark.parametrize(
    ("name", "answers", "cause"),
    [
        ("r01-month-starts.csv", {}, "the times are monthly"),
        ("r01-month-starts.csv", {}, "--set data.time-unit=step counts them"),
        ("r03-quarters.csv", {}, "the times in 'quarter' are quarterly, such as '1998Q1'"),
        ("r03-quarters.csv", {}, "--set data.time-unit=step counts them"),
        ("r12-date-and-time-apart", {}, "but 4 .txt files, such as 'home_0.txt': rename them to"),
        ("r12-date-and-time-apart-csv", {}, "join them into one, such as '16/12"),
        (  # told how to read it, nobody takes the days for the times either
            "r12-date-and-time-apart-csv",
            {"source": "csv-folder", "columns": "Voltage"},
            "the time stands in two columns, 'Date' and 'Time': join them into one, such as '16/12",
        ),
        ("r13-a-row-per-day.csv", {}, "each row holds 48 values, 'hh_0' to 'hh_47'; write a row f"),
        ("r14-series-in-rows.csv", {}, "with their values in the columns 'd_1' to 'd_200'"),
        ("r14-series-in-rows.csv", {}, "frame.set_index('id').loc[:, 'd_1':].T"),
        ("r20-excel-export.xlsx", {}, "to stand in row 5; delete the rows above the names"),
        ("r25-blanks-in-names.csv", {}, "the client is written 'North' and 'North ' there"),
        ("r28-store-and-item.csv", {}, "which column is to be forecast: units, price?"),
        ("r28-store-and-item.csv", UNITS, "'item' differs between these rows ('item 0', 'item 1')"),
        ("r28-store-and-item.csv", UNITS, "if both 'store' and 'item' do, join them into one col"),
        ("r28-store-and-item.csv", {**UNITS, "client_column": "store"}, "column 'item' differs"),
        ("r30-comments-above.csv", {}, "stand in line 4; delete the lines above the names"),
        ("r30-logger.csv", {}, "in line 2, and the values in line 5; delete the lines above"),
        ("u01-lat-lon.csv", {}, "to be forecast: lat, lon, pm25? name it with --target"),
        ("u03-year-month-day-hour.csv", {}, "in the columns 'year', 'month', 'day', 'hour'"),
        ("u03-year-month-day-hour.csv", {}, "pd.to_datetime(frame[['year', 'month', 'day', 'hour'"),
        (
            "u07-title-rows.xlsx",
            {},
            "row 1 does not name the columns: their names seem to stand in",
        ),
        ("u10-table-with-site-and-label.csv", {}, "a table of features with a label, 'label', and"),
        ("u10-table-with-site-and-label.csv", {}, "fedproto forecasts series, and it classifies"),
    ],
)
def test_what_is_refused_is_named(
    name: str, answers: dict[str, str], cause: str, tmp_path: Path
) -> None:
    if name.endswith("xlsx"):
        pytest.importorskip("openpyxl")
    assert cause in refusal(reported_case(name, tmp_path), **answers)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("r09-seconds-of-jitter.csv", "times a little off the step of 0:15:00 are rounded to it"),
        ("r16-offsets-that-change.csv", "the offset from UTC changes (+00:00, +01:00, +02:00, +03"),
        ("u05-index-column.csv", "the first column has no name and numbers the rows: left out"),
    ],
)
def test_what_was_changed_or_left_out_is_noted(name: str, note: str, tmp_path: Path) -> None:
    _, clients, notes = read(reported_case(name, tmp_path))
    assert [text[: len(note)] for text in notes] == [note]
    assert all(c.clock is not None and np.isfinite(c.values).all() for c in clients)


def test_r03_quarters_are_counted_if_asked(tmp_path: Path) -> None:
    path = reported_case("r03-quarters.csv", tmp_path)
    reading, clients, _ = read(path, time_unit="step")
    assert reading.target == "visitors"
    assert [(c.name, len(c.values), c.start) for c in clients] == [
        (f"region {number}", 104, 4 * (1998 - 1970)) for number in range(8)
    ]
    planned = plan_of(path, Wishes(changes={"data.time-unit": "step"}))
    assert planned.settings["data.period"] == 4
    assert planned.target == "visitors"
    assert "forecasting visitors" in planned.facts[0]


def test_r07_years_are_the_time_and_na_is_a_country(tmp_path: Path) -> None:
    path = reported_case("r07-years.csv", tmp_path)
    reading, clients, notes = read(path)
    assert [c.name for c in clients] == ["AA", "BB", "CC", "DD", "NA", "NO"]
    assert {(len(c.values), c.start) for c in clients} == {(124, 1900)}  # so the next is 2024
    assert (reading.target, notes) == ("tonnes", ["the numbers in 'year' are taken for years"])
    by_year = text_of(path).sort_values("year", kind="stable")
    by_year.to_csv(tmp_path / "by-year.csv", index=False)
    assert [c.name for c in read(tmp_path / "by-year.csv")[1]] == [c.name for c in clients]


def test_r10_smart_meters_are_read_but_for_the_stray_rows(tmp_path: Path) -> None:
    path = reported_case("r10-smart-meters.csv", tmp_path)
    reading, clients, notes = read(path)
    assert reading.target == "KWH/hh (per half hour)"
    assert [c.name for c in clients] == [f"MAC00{100 + number}" for number in range(6)]
    assert [len(c.values) for c in clients] == [45 * 48] * 6
    assert all(np.isfinite(c.values).all() for c in clients)
    assert (
        "left out: a row that lies between the steps, without a value, at 2012-12-18 15:13:41"
    ) in notes
    assert "12 rows repeat others with the same time and values and are left out" in notes
    assert "column 'Acorn' is left out, as it holds no numbers, such as 'ACORN-A'" in notes


def test_r19_excels_days_are_the_time(tmp_path: Path) -> None:
    reading, clients, notes = read(reported_case("r19-excel-days.csv", tmp_path))
    assert reading.settings == {"data.time-unit": "excel", "data.time-column": "Datum"}
    assert [c.name for c in clients] == [f"Halle {number}" for number in range(5)]
    assert [len(c.values) for c in clients] == [45 * 24] * 5
    assert clients[0].clock is not None
    assert clients[0].clock.time(clients[0].start) == "2024-01-01 00:00:00"
    assert notes == [
        "the numbers in 'Datum' are read as Excel's days: 45292.0 is 2024-01-01 00:00:00"
    ]


def test_r28_two_columns_name_the_clients_if_times_repeat(tmp_path: Path) -> None:
    path = reported_case("r28-store-and-item.csv", tmp_path)
    text_of(path).sort_values("date", kind="stable").to_csv(path, index=False)
    line = refusal(path, columns="units")
    assert "'store' and 'item' together name the clients: join them" in line


def test_r40_equal_rows_are_kept_once_and_contradictions_shown(tmp_path: Path) -> None:
    path = reported_case("r40-same-rows-twice.csv", tmp_path)
    _, clients, notes = read(path)
    once = text_of(path).drop_duplicates()
    assert [len(c.values) for c in clients] == once["unique_id"].value_counts().tolist()
    repeated = len(text_of(path)) - len(once)
    assert notes == [
        f"{repeated} rows repeat others with the same time and values and are left out"
    ]
    line = refusal(tmp_path / "r40-rows-that-contradict.csv")
    assert "client 's0': the time 2024-05-06 00:00:00 comes twice with different values" in line
    assert "37.831 in line 2 and 38.831 in line 3" in line
    assert "clocks" not in line


def test_u04_numbered_stores_are_clients(tmp_path: Path) -> None:
    path = reported_case("u04-date-store-sales.csv", tmp_path)
    reading, clients, _ = read(path)
    assert (reading.source, reading.target) == ("long-csv", "sales")
    assert reading.settings == {"data.client-column": "store"}
    assert [c.name for c in clients] == ["1", "2", "3", "4"]
    for wishes in (Wishes(), Wishes(clients_from="store")):
        planned = plan_of(path, wishes)
        assert planned.settings["data.client-column"] == "store"
        assert planned.settings["data.period"] == 7


@pytest.mark.exhaustive
def test_a_whole_trial_of_shops_says_what_it_forecasts(tmp_path: Path) -> None:
    path = reported_case("u04-date-store-sales.csv", tmp_path)
    answer = try_file(
        path, clients_from="store", quick=True, folder=tmp_path / "runs", progress=False
    )
    assert answer.verdict.startswith("Forecasting sales. ")
    assert answer.forecast is not None
    assert set(pd.read_csv(answer.forecast, dtype=str).iloc[:, 0]) >= {"1", "4"}
