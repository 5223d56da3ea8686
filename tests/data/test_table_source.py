"""Columns, rows and files as clients, and which clients and columns are read."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.data import files
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.series import ClientSeries
from tests.data.made_tables import FIRST, FRAME, LONG, load, require_the_frame, values_of, written
from tests.helpers.real_data import real_data

with_parquet = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")


def wide(folder: Path, content: str) -> list[ClientSeries]:
    return list(load(written(folder, content), "wide-csv").values())


def folder_of(folder: Path, **texts: str) -> list[tuple[str, int, list[float]]]:
    """Return the name, the start and the values of each client of a folder of CSV files."""
    for name, text in texts.items():
        written(folder, text, f"{name}.csv")
    clients = load(folder, "csv-folder").values()
    return [(series.name, series.start, series.values.tolist()) for series in clients]


def test_missing_values_and_trimmed_ends(tmp_path: Path) -> None:
    first, second = wide(tmp_path, "a,b\nNA,1\n2,\n,\nnull,4\n5,\nnan,\n")
    assert (first.start, second.start) == (1, 0)
    np.testing.assert_array_equal(first.values, [2, np.nan, np.nan, 5])
    np.testing.assert_array_equal(second.values, [1, np.nan, np.nan, 4])
    (single,) = wide(tmp_path, "a\n1\n\n3\n")  # an empty line of a single column is a missing value
    np.testing.assert_array_equal(single.values, [1, np.nan, 3])


@pytest.mark.parametrize("title", ["time", "Timestamp", "DATE", ""])
def test_a_time_column_sets_the_start(tmp_path: Path, title: str) -> None:
    content = f"{title},a\n1970-01-02 05:00,1\n1970-01-02 06:00,2\n1970-01-02 08:00,4\n"
    (series,) = wide(tmp_path, content)
    assert series.start == 29
    np.testing.assert_array_equal(series.values, [1, 2, np.nan, 4])


@pytest.mark.parametrize(("offset", "next_time"), [("", "02:00:00"), ("+01:00", "01:00:00+00:00")])
def test_a_series_knows_its_clock(tmp_path: Path, offset: str, next_time: str) -> None:
    text = f"time,a\n2024-03-04 00:00{offset},1\n2024-03-04 01:00{offset},2\n"
    path = written(tmp_path, text)
    for series in (load(path, "wide-csv")["a"], load(tmp_path, "csv-folder")["a"]):
        assert series.clock.time(series.start + 2) == f"2024-03-04 {next_time}"
    assert wide(tmp_path, "a\n1\n2\n")[0].clock is None


def test_bad_clients_do_not_cost_the_others(tmp_path: Path) -> None:
    clients = wide(tmp_path, "good,empty,constant,short\n1,,5,\n2,,5,\n3,,5,7\n")
    assert [len(series.values) for series in clients] == [3, 0, 3, 1]


def test_only_the_chosen_columns_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "note,a,when,b,c\nx,1,2024-01-01,2,inf\ny,3,2024-01-02,4,5\n")
    choice = {"source": "wide-csv", "clients": "b, a", "time_column": "when"}
    assert values_of(load(path, **choice)) == {"a": [1, 3], "b": [2, 4]}  # in the file's order
    assert values_of(load(path, max_clients=1, **choice)) == {"a": [1, 3]}
    for wrong, message in (
        ({"time_column": "when"}, "column 'note', line 2: 'x' is not a number"),
        ({"clients": "c", "time_column": "when"}, "infinite"),
        ({"clients": "d"}, r"data\.clients: .*a\.csv has no column 'd'; it has note, a"),
        ({"time_column": "day"}, r"data\.time-column: .* has no column 'day'; it has note, a"),
        ({"clients": "when", "time_column": "when"}, r"has no column 'when'; it has note, a, b"),
    ):
        with pytest.raises(DataError, match=message):
            load(path, "wide-csv", **wrong)


def test_a_file_per_client_with_separate_times(tmp_path: Path) -> None:
    clients = folder_of(
        tmp_path,
        north="time,load\n1970-01-01 01:00,1\n1970-01-01 02:00,2\n",
        alone="time,load\n1970-01-01 06:00,9\n",  # one row, on the clock of the others
        south="time,load\n1970-01-03 01:00,3\n1970-01-03 02:00,4\n",
    )
    assert clients == [("alone", 6, [9]), ("north", 1, [1, 2]), ("south", 49, [3, 4])]


def test_files_of_a_row_each_have_no_step(tmp_path: Path) -> None:
    clients = folder_of(tmp_path, a="time,x\n2024-01-01,1\n", b="time,x\n2024-01-01 00:20,2\n")
    assert clients == [("a", 0, [1]), ("b", 0, [2])]


def test_a_folder_without_times_starts_at_zero(tmp_path: Path) -> None:
    for name in ("notes.txt", ".hidden.csv"):
        written(tmp_path, "no client", name)
    written(tmp_path, gzip.compress(b"x\n3\n"), "B.CSV.GZ")
    assert folder_of(tmp_path, a="x\n1\n2\n") == [("B", 0, [3]), ("a", 0, [1, 2])]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "holds no .csv"),
        ({"a": "x,y\n1,2\n"}, r"a\.csv: 2 columns of values \(x, y\)"),
        (
            {"a": "x\n1\n", "b": "time,x\n2014-01-01,1\n"},
            r"a\.csv has no time column, .*b\.csv has",
        ),
        ({"a": "x\n1\n", "b": "x\nhm\n"}, r"b\.csv: column 'x', line 2: 'hm' is not a number"),
        (
            {
                "a": "time,x\n2014-01-01 00:00,1\n2014-01-01 01:00,2\n",
                "b": "time,x\n2014-01-01 00:00,1\n2014-01-01 00:05,2\n",
            },
            r"a\.csv: its times are mostly 1:00:00 apart, but the step of all clients is 0:05:00",
        ),
        (
            {"a": "time,x\n2024-01-01 00:00Z,1\n", "b": "time,x\n2024-01-01 00:00,1\n"},
            "with an offset from UTC, but .* without",
        ),
    ],
)
def test_bad_folders_are_refused(tmp_path: Path, texts: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        folder_of(tmp_path, **texts)


def test_a_file_plain_and_gzipped_is_the_same_client_twice(tmp_path: Path) -> None:
    written(tmp_path, gzip.compress(b"x\n3\n"), "a.csv.gz")
    with pytest.raises(DataError, match="two clients are named 'a'"):
        folder_of(tmp_path, a="x\n1\n")


def test_only_chosen_files_or_the_first_and_their_column_are_read(tmp_path: Path) -> None:
    rows = "time,rain,load\n2024-01-01,0,1\n2024-01-02,0,2\n"
    folder_of(tmp_path, a="x\n1\n", b="x\n1\n")
    for name, text in {"a": rows, "b": rows, "broken": ""}.items():
        written(tmp_path, text, f"{name}.csv")
    chosen = {"source": "csv-folder", "columns": "load"}
    assert values_of(load(tmp_path, clients="a,b", **chosen)) == {"a": [1, 2], "b": [1, 2]}
    assert values_of(load(tmp_path, max_clients=1, **chosen)) == {"a": [1, 2]}
    with pytest.raises(DataError, match=r"2 columns of values .*name it with --target COLUMN"):
        load(tmp_path, "csv-folder", clients="a")


def test_settings_that_a_source_ignores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"data\.columns = 'load': .* data\.clients$"):
        load(tmp_path / "a.csv", "wide-csv", columns="load")
    with pytest.raises(SettingsError, match=r"data\.header = 'false': .*not for 'npz'"):
        load(tmp_path / "a.npz", "npz", header=False)
    with pytest.raises(SettingsError, match=r"data\.decimal = 'comma': .*not for 'parquet-folder'"):
        load(tmp_path, "parquet-folder", decimal="comma")


def test_max_steps_count_from_each_clients_own_start(tmp_path: Path) -> None:
    early = "2024-01-01,1\n2024-01-02,2\n2024-01-03,3\n"
    late = early.replace("2024", "2025")
    folder_of(tmp_path, early=f"time,x\n{early}", late=f"time,x\n{late}")
    clients = load(tmp_path, "csv-folder", max_steps=2)
    assert values_of(clients) == {"early": [1, 2], "late": [1, 2]}
    rows = [f"{name},{line}" for name in "ab" for line in {"a": early, "b": late}[name].split()]
    long = written(tmp_path, "\n".join(["id,time,y", *rows]), "long.txt")
    clients = load(long, "long-csv", client_column="id", max_steps=1)
    assert values_of(clients) == {"a": [1], "b": [1]}


def test_a_misspelt_path_is_guessed(tmp_path: Path) -> None:
    written(tmp_path, "x\n1\n", "traffic.csv")
    with pytest.raises(DataError, match=r"no such file or folder; did you mean 'traffic.csv'\?"):
        load(tmp_path / "trafic.csv", "long-csv")


def test_electricity_as_pandas_reads_it() -> None:
    path = real_data("electricity_2014_hourly.csv.gz")
    clients, frame = load(path, "wide-csv"), pd.read_csv(path, index_col="time", parse_dates=True)
    assert list(clients) == list(frame.columns)
    assert {series.start % 24 for series in clients.values()} == {1}  # begins at 01:00
    for name, series in clients.items():
        np.testing.assert_array_equal(series.values, frame[name])


def test_m4_series_end_where_their_cells_do() -> None:
    clients = load(real_data("m4_hourly.csv.gz"), "wide-csv")
    assert len(clients) == 414
    assert {len(series.values) for series in clients.values()} == {748, 1008}


def a_file_each(folder: Path) -> Path:
    for name in FRAME:
        FRAME[[name]].rename(columns={name: "load"}).to_parquet(folder / f"{name}.parquet")
    (folder / "_SUCCESS").touch()
    written(folder, "no Parquet", ".south.parquet")
    return folder


def parts(folder: Path, *ends: int) -> Path:
    """`LONG` in files that end with these rows, and one with the rest."""
    for number, rows in enumerate(np.split(np.arange(len(LONG)), ends)):
        LONG.iloc[rows].to_parquet(folder / f"part-{number}.parquet")
    return folder


@with_parquet
def test_a_parquet_file_each(tmp_path: Path) -> None:
    reading = reading_of(a_file_each(tmp_path))
    assert (reading.source, reading.settings) == ("parquet-folder", {})
    require_the_frame(load(tmp_path, "parquet-folder"))
    first = load(tmp_path, "parquet-folder", clients="south", max_steps=2)
    assert values_of(first) == {"south": [10, 20]}
    later = FRAME[["south"]].set_axis(FRAME.index + pd.Timedelta(hours=2)).rename_axis("time")
    later.to_parquet(tmp_path / "south.parquet")
    starts = [client.start for client in load(tmp_path, "parquet-folder").values()]
    assert starts == [FIRST, FIRST + 2]


@with_parquet
@pytest.mark.parametrize("ends", [(), (6,), (3, 8)], ids=["one", "a client each", "cut anywhere"])
def test_parts_of_a_long_table(tmp_path: Path, ends: tuple[int, ...]) -> None:
    reading = reading_of(parts(tmp_path, *ends))
    assert (reading.source, reading.settings) == ("long-parquet", {})
    require_the_frame(load(tmp_path, "long-parquet"))
    assert list(load(tmp_path, "long-parquet", clients="south")) == ["south"]


SOUTH = FRAME[["south"]]
IN_UTC = LONG.assign(ds=LONG["ds"].dt.tz_localize("UTC"))
DAMAGED: dict[str, list[tuple[Any, str]]] = {
    "parquet-folder": [
        (b"PAR1", ": not a readable Parquet file"),
        (SOUTH.tz_localize("Europe/Berlin"), r" has times with .* UTC, but .*north\.parquet witho"),
        (SOUTH.iloc[:0], ": no row in it"),
    ],
    "long-parquet": [
        (b"PAR1", ": not a readable Parquet file"),
        (FRAME, ": which column holds the clients'"),
        (LONG.iloc[:1].assign(y=99), ", row 1"),
        (LONG.assign(unique_id=None), ": column 'unique_id', row 1: no client is named"),
        (LONG.assign(ds=pd.NaT), ": column 'ds', row 1: expected a time, got nothing"),
        (IN_UTC, r" has times with an offset from UTC, but .*part-0\.parquet without"),
    ],
}


@with_parquet
@pytest.mark.parametrize(
    ("source", "frame", "fault"), [(source, *row) for source in DAMAGED for row in DAMAGED[source]]
)
def test_damaged_parquet_files(tmp_path: Path, source: str, frame: Any, fault: str) -> None:
    write = a_file_each if source == "parquet-folder" else parts
    path = write(tmp_path) / "z.parquet"
    if isinstance(frame, bytes):
        path.write_bytes(frame)
    else:
        frame.to_parquet(path)
    with pytest.raises(DataError, match=rf"z\.parquet{fault}"):
        load(tmp_path, source)


@with_parquet
def test_parts_that_count_in_different_ways(tmp_path: Path) -> None:
    for name, times in (("a", LONG["ds"]), ("b", range(12))):
        LONG.assign(ds=times).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"b\.parquet|column 'ds'"):
        load(tmp_path, "long-parquet")
    with pytest.raises(DataError, match=r"b\.parquet counts its steps, but .*a\.parquet has times"):
        load(tmp_path, "long-parquet", time_unit="step")


@pytest.mark.parametrize("source", ["csv-folder", "parquet-folder", "long-parquet"])
def test_files_outside_or_deeper_are_not_read(tmp_path: Path, source: str) -> None:
    suffix = ".csv" if source == "csv-folder" else ".parquet"
    (deeper := tmp_path / "data" / "site=north").mkdir(parents=True)
    written(deeper, "x\n1\n", f"0{suffix}")
    with pytest.raises(DataError, match=rf"holds no \{suffix}.* file; folders in it, such as 's"):
        load(deeper.parent, source)
    (deeper.parent / f"link{suffix}").symlink_to(written(tmp_path, "x\n1\n", f"secret{suffix}"))
    with pytest.raises(DataError, match=rf"link\{suffix}: a link to .*, outside the data folder"):
        load(deeper.parent, source)


@with_parquet
def test_many_small_files_may_hold_too_much(tmp_path: Path, monkeypatch: Any) -> None:
    """A row takes 24 + 2 · 200 bytes, and 12 of them are too many."""
    parts(tmp_path, *range(1, 12))
    monkeypatch.setattr(files, "most_bytes", lambda: 450)
    assert load(tmp_path / "part-0.parquet", "long-parquet")
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(tmp_path, "long-parquet")
