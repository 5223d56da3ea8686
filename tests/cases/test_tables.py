"""Tables from people's reports, each read as its author means it, or refused with the cause.

The rows of cases.md on tables. What stays refused stands in docs/your-data.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedproto_app.cli.commands import app
from fedproto_app.core.errors import DataError
from fedproto_app.data.format import Reading
from fedproto_app.data.series import ClientSeries
from fedproto_app.experiments.trial import Wishes, plan_of, try_file
from tests.data import made_tables
from tests.helpers.reported_cases import reported_case


def read(path: Path, **answers: str) -> tuple[Reading, list[ClientSeries], list[str]]:
    return made_tables.read(
        path, {f"data.{key.replace('_', '-')}": value for key, value in answers.items()}
    )


def refusal(path: Path, **answers: str) -> str:
    """Return the line that refuses the file, without its path."""
    with pytest.raises(DataError) as caught:
        read(path, **answers)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(path), "FILE")


def text_of(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, dtype=str)


def after(clients: list[ClientSeries]) -> str:
    """Return the time after the first client's values."""
    return clients[0].when(len(clients[0].values))


def test_r01_months_are_months(tmp_path: Path) -> None:
    path = reported_case("r01-month-starts.csv", tmp_path)
    _, clients, notes = read(path)
    assert [(len(c.values), c.start) for c in clients] == [(132, 12 * (2014 - 1970))] * 12
    assert (after(clients), notes) == ("2025-01-01", [])
    planned = plan_of(path, Wishes())
    assert planned.settings["data.period"] == 12
    assert "12 series of 132 steps, monthly, at the month's start, read as" in planned.facts[0]
    shorter = text_of(path).assign(ds=lambda table: table["ds"].str[:7])  # 2014-01
    shorter.to_csv(tmp_path / "texts.csv", index=False)
    assert after(read(tmp_path / "texts.csv")[1]) == "2025-01"


def test_r03_quarters_are_times(tmp_path: Path) -> None:
    path = reported_case("r03-quarters.csv", tmp_path)
    reading, clients, _ = read(path)
    assert reading.target == "visitors"
    assert [(c.name, len(c.values), c.start) for c in clients] == [
        (f"region {number}", 104, 4 * (1998 - 1970)) for number in range(8)
    ]
    assert after(clients) == "2024Q1"
    planned = plan_of(path, Wishes())
    assert planned.settings["data.period"] == 4
    assert planned.target == "visitors"
    assert "steps, quarterly, read as long-csv, forecasting visitors" in planned.facts[0]


def test_r07_years_are_the_time_and_na_is_a_country(tmp_path: Path) -> None:
    path = reported_case("r07-years.csv", tmp_path)
    reading, clients, notes = read(path)
    assert [c.name for c in clients] == ["AA", "BB", "CC", "DD", "NA", "NO"]
    assert {(len(c.values), c.start) for c in clients} == {(124, 1900 - 1970)}
    assert (reading.target, notes) == ("tonnes", ["the numbers in 'year' are taken for years"])
    assert after(clients) == "2024"
    assert plan_of(path, Wishes()).settings["data.period"] == 1
    by_year = text_of(path).sort_values("year", kind="stable")
    by_year.to_csv(tmp_path / "by-year.csv", index=False)
    assert [c.name for c in read(tmp_path / "by-year.csv")[1]] == [c.name for c in clients]
    other_name = text_of(path).rename(columns={"year": "t"})
    other_name.to_csv(tmp_path / "t.csv", index=False)
    assert "such as 1900, may be years (--set data.time-unit=year) or numbers of steps" in refusal(
        tmp_path / "t.csv"
    )
    assert after(read(tmp_path / "t.csv", time_unit="year")[1]) == "2024"


def test_r09_seconds_of_jitter_are_rounded_and_said_so(tmp_path: Path) -> None:
    _, clients, notes = read(reported_case("r09-seconds-of-jitter.csv", tmp_path))
    assert [len(c.values) for c in clients] == [21 * 96] * 5
    assert all(c.clock is not None and np.isfinite(c.values).all() for c in clients)
    assert notes == ["times a little off the step of 0:15:00 that are rounded to it: 6,067"]


def test_r10_smart_meters_are_read_but_for_the_stray_rows(tmp_path: Path) -> None:
    path = reported_case("r10-smart-meters.csv", tmp_path)
    reading, clients, notes = read(path)
    assert reading.target == "KWH/hh (per half hour)"
    assert [c.name for c in clients] == [f"MAC00{100 + number}" for number in range(6)]
    assert [len(c.values) for c in clients] == [45 * 48] * 6
    assert all(np.isfinite(c.values).all() for c in clients)
    assert notes == [
        "rows left out between the steps, without a value: 1, at 2012-12-18 15:13:41",
        "rows left out that repeat the time and values of another: 12",
    ]
    assert "Acorn" in reading.beside


def test_r12_date_and_time_apart_are_joined(tmp_path: Path) -> None:
    texts = reported_case("r12-date-and-time-apart", tmp_path)
    for folder in (texts, tmp_path / "r12-date-and-time-apart-csv"):
        assert "2 columns of values (Global_active_power, Voltage), but" in refusal(folder)
        _, clients, notes = read(folder, columns="Voltage")
        assert notes == ["'Date' and 'Time' are joined into times, such as '16/12/2006 17:20:00'"]
        assert [c.name for c in clients] == [f"home_{number}" for number in range(4)]
        assert clients[0].clock is not None
        assert clients[0].clock.time(clients[0].start) == "2006-12-16 17:20:00"
        tables = [pd.read_csv(file, sep=";") for file in sorted(folder.iterdir())]
        present = [int((table["Voltage"] != "?").sum()) for table in tables]
        assert [int(np.isfinite(c.values).sum()) for c in clients] == present


def test_r13_a_row_per_day_is_unfolded_if_asked(tmp_path: Path) -> None:
    path = reported_case("r13-a-row-per-day.csv", tmp_path)
    line = refusal(path)
    assert "each row holds 48 values: do they follow each other in time?" in line
    assert "--set data.unfold=hh_0,hh_47 reads them so" in line
    _, clients, notes = read(path, unfold="hh_0,hh_47")
    assert notes == ["48 columns are read as values 0:30:00 apart"]
    rows = pd.read_csv(path)
    assert [c.name for c in clients] == rows["LCLid"].unique().tolist()
    first = rows[rows["LCLid"] == clients[0].name].loc[:, "hh_0":"hh_47"].to_numpy().ravel()
    np.testing.assert_array_equal(clients[0].values, first)


def test_r14_series_in_rows_are_read_if_asked(tmp_path: Path) -> None:
    path = reported_case("r14-series-in-rows.csv", tmp_path)
    line = refusal(path)
    assert "its rows look like series: --set data.unfold=d_1,d_200" in line
    _, clients, _ = read(path, unfold="d_1,d_200", client_column="id")
    assert [len(c.values) for c in clients] == [200] * 24


def test_r16_offsets_that_change_are_noted(tmp_path: Path) -> None:
    _, clients, notes = read(reported_case("r16-offsets-that-change.csv", tmp_path))
    assert all(c.clock is not None and c.clock.utc for c in clients)
    (note,) = notes
    assert note.startswith("the offset from UTC changes (+00:00, +01:00, +02:00, +03:00)")
    assert "counted in UTC" in note


def test_r19_excels_days_are_the_time(tmp_path: Path) -> None:
    reading, clients, notes = read(reported_case("r19-excel-days.csv", tmp_path))
    assert reading.settings == {"data.time-unit": "excel", "data.time-column": "Datum"}
    assert [c.name for c in clients] == [f"Halle {number}" for number in range(5)]
    assert [len(c.values) for c in clients] == [45 * 24] * 5
    assert clients[0].clock is not None
    assert clients[0].clock.time(clients[0].start) == "2024-01-01 00:00:00"
    assert notes == ["column 'Datum' holds Excel's days: 45292.0 is 2024-01-01 00:00:00"]


def test_r20_a_title_and_a_total_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    _, clients, notes = read(reported_case("r20-excel-export.xlsx", tmp_path))
    assert [c.name for c in clients] == ["Nord", "Ost", "Süd", "West"]
    assert {len(c.values) for c in clients} == {40 * 24}
    assert max(c.values.max() for c in clients) < 1000  # the totals are thousands
    assert clients[0].clock is not None
    assert clients[0].clock.time(clients[0].start) == "2024-03-01 00:00:00"
    assert notes == [
        "left out above the names of the columns: rows 1 to 4",
        "row 966, 'Total', is left out",
        "column 'Zeit' holds Excel's days: 45352 is 2024-03-01 00:00:00",
    ]


def test_r25_names_that_differ_by_a_blank_are_named(tmp_path: Path) -> None:
    path = reported_case("r25-blanks-in-names.csv", tmp_path)
    line = refusal(path)
    assert "client 'North'" in line
    assert "the client is written 'North' and 'North ' there" in line
    renamed = text_of(path).replace({"site": {"North ": "North 2"}})
    renamed.to_csv(path, index=False)
    assert len(read(path)[1]) == 6
    composed, decomposed = "S\u00fcd", "Su\u0308d"
    twins = renamed[renamed["site"] == "South"]
    spelt = pd.concat([twins.assign(site=name) for name in (composed, decomposed)])
    spelt.to_csv(path, index=False)
    _, clients, notes = read(path)
    assert [c.name for c in clients] == [composed]
    assert r"'Su\u0308d' and 'S\xfcd' are read as one client" in notes


def test_r28_two_columns_that_name_the_clients(tmp_path: Path) -> None:
    path = reported_case("r28-store-and-item.csv", tmp_path)
    assert "which column is to be forecast: units, price?" in refusal(path)
    for answers in ({}, {"client_column": "store"}):
        line = refusal(path, columns="units", **answers)
        assert "column 'item' differs between these rows ('item 0', 'item 1')" in line
        assert "--set data.client-column=store,item joins them" in line
    _, clients, _ = read(path, columns="units", client_column="store,item")
    assert [c.name for c in clients][:2] == ["store 0/item 0", "store 0/item 1"]
    planned = plan_of(path, Wishes(clients_from="store,item", target="units"))
    assert planned.settings["data.client-column"] == "store,item"
    text_of(path).sort_values("date", kind="stable").to_csv(path, index=False)
    assert len(read(path, columns="units")[1]) == 20


@pytest.mark.parametrize("name", ["r30-comments-above.csv", "r30-logger.csv"])
def test_r30_the_header_is_looked_for(name: str, tmp_path: Path) -> None:
    path = reported_case(name, tmp_path)
    _, clients, notes = read(path)
    assert [len(c.values) for c in clients] == [35 * 24] * 3
    assert notes[0].startswith("left out above the names of the columns: line")


def test_r40_equal_rows_are_kept_once_and_contradictions_shown(tmp_path: Path) -> None:
    path = reported_case("r40-same-rows-twice.csv", tmp_path)
    _, clients, notes = read(path)
    unique_rows = text_of(path).drop_duplicates()
    assert [len(c.values) for c in clients] == unique_rows["unique_id"].value_counts().tolist()
    repeated = len(text_of(path)) - len(unique_rows)
    assert notes == [f"rows left out that repeat the time and values of another: {repeated}"]
    line = refusal(tmp_path / "r40-rows-that-contradict.csv")
    assert "client 's0': the time 2024-05-06 00:00:00 comes twice with different values" in line
    assert "37.831 in line 2 and 38.831 in line 3" in line
    assert "clocks" not in line
    assert "--set data.repeated=mean takes the mean of such rows" in line


def test_u01_the_target_is_asked_for_and_named(tmp_path: Path) -> None:
    path = reported_case("u01-lat-lon.csv", tmp_path)
    line = refusal(path)
    assert "which column is to be forecast: lat, lon, pm25? name it with --target" in line
    reading, clients, notes = read(path, columns="pm25")
    assert (reading.target, reading.beside, notes) == ("pm25", ("lat", "lon"), [])
    np.testing.assert_array_equal(clients[0].values[:2], [41.1, 55.5])
    checked = CliRunner().invoke(app, ["data", "check", str(path), "--target", "pm25"])
    assert checked.stdout.startswith("forecasting pm25\n")
    assert "not known in advance: lat, lon (is constant at every client)" in checked.stdout
    planned = plan_of(path, Wishes(target="pm25"))
    assert "forecasting pm25" in planned.facts[0]


def test_u03_the_parts_of_the_time_are_joined(tmp_path: Path) -> None:
    path = reported_case("u03-year-month-day-hour.csv", tmp_path)
    reading, clients, notes = read(path)
    assert [c.name for c in clients] == ["s0", "s1"]
    assert reading.target == "pm25"
    assert clients[0].clock is not None
    assert clients[0].clock.time(clients[0].start) == "2024-05-06 00:00:00"
    assert notes[0] == "column 'No' rises by 1 in each row, as row numbers do: left out"


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


def test_u05_the_index_is_left_out(tmp_path: Path) -> None:
    path = reported_case("u05-index-column.csv", tmp_path)
    for answers in ({}, {"source": "long-csv"}):
        _, clients, notes = read(path, **answers)
        assert [c.name for c in clients] == ["a", "b"]
        np.testing.assert_array_equal(clients[0].values[:2], [40.0, 52.4])
        assert notes == ["the first column has no name and numbers the rows: left out"]


def test_u07_a_title_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    _, clients, notes = read(reported_case("u07-title-rows.xlsx", tmp_path))
    assert [c.name for c in clients] == ["s0", "s1", "s2"]
    assert notes == ["left out above the names of the columns: rows 1 to 3"]


def test_u10_a_table_of_features_is_recognised(tmp_path: Path) -> None:
    line = refusal(reported_case("u10-table-with-site-and-label.csv", tmp_path))
    assert "a table of features with a label, 'label', and a sample in each row" in line
    assert "fedproto forecasts series, and it classifies images and sequences" in line


@pytest.mark.exhaustive
def test_a_whole_trial_of_shops_says_what_it_forecasts(tmp_path: Path) -> None:
    path = reported_case("u04-date-store-sales.csv", tmp_path)
    answer = try_file(
        path, clients_from="store", quick=True, folder=tmp_path / "runs", progress=False
    )
    assert answer.verdict.startswith("Forecasting sales. ")
    assert answer.forecast is not None
    assert set(pd.read_csv(answer.forecast, dtype=str).iloc[:, 0]) >= {"1", "4"}
