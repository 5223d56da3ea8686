from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings
from tests.real_data import real_data


def wide(folder: Path, content: str | bytes, name: str = "wide.csv") -> list[ClientSeries]:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_series(DataSettings(source="wide-csv", path=str(path)))


def folder_of(folder: Path, **files: str) -> list[ClientSeries]:
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)
    return load_series(DataSettings(source="csv-folder", path=str(folder)))


def parts(clients: list[ClientSeries]) -> list[tuple[str, int, list[float]]]:
    return [(series.name, series.start, series.values.tolist()) for series in clients]


@pytest.mark.parametrize(
    "content",
    ["a,b\n1,2.5\n3,4\n", b"\xef\xbb\xbfa,b\r\n1,2.5\r\n3,4", '"a", "b"\n1, 2.5\n 3 ,"4"\n'],
    ids=["plain", "byte-order-mark-and-crlf", "quotes-and-spaces"],
)
def test_a_column_per_client(tmp_path: Path, content: str | bytes) -> None:
    assert parts(wide(tmp_path, content)) == [("a", 0, [1.0, 3.0]), ("b", 0, [2.5, 4.0])]


def test_gzipped(tmp_path: Path) -> None:
    clients = wide(tmp_path, gzip.compress(b"a\n1\n2\n"), "wide.csv.gz")
    assert parts(clients) == [("a", 0, [1.0, 2.0])]


def test_missing_values_and_trimmed_ends(tmp_path: Path) -> None:
    first, second = wide(tmp_path, "a,b\nNA,1\n2,\n,\nnull,4\n5,\nnan,\n")
    assert (first.start, second.start) == (1, 0)
    np.testing.assert_array_equal(first.values, [2, np.nan, np.nan, 5])
    np.testing.assert_array_equal(second.values, [1, np.nan, np.nan, 4])


def test_an_empty_line_of_a_single_column_is_a_missing_value(tmp_path: Path) -> None:
    (series,) = wide(tmp_path, "a\n1\n\n3\n")
    np.testing.assert_array_equal(series.values, [1, np.nan, 3])


@pytest.mark.parametrize("title", ["time", "Timestamp", "DATE", ""])
def test_a_time_column_sets_the_start(tmp_path: Path, title: str) -> None:
    content = f"{title},a\n1970-01-02 05:00,1\n1970-01-02 06:00,2\n1970-01-02 08:00,4\n"
    (series,) = wide(tmp_path, content)
    assert series.start == 29
    np.testing.assert_array_equal(series.values, [1, 2, np.nan, 4])


def test_stamps_with_an_offset_are_counted_in_utc(tmp_path: Path) -> None:
    content = "time,a\n1970-01-01T02:00+01:00,1\n1970-01-01T03:00+01:00,2\n"
    assert wide(tmp_path, content)[0].start == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("a,b\n", "only a header line"),
        ("a,b\n1,2\n3,none yet\n", "column 'b', line 3: 'none yet' is not a number"),
        ("a,b\n1,True\n3,\n", "column 'b', line 2: 'True' is not a number"),
        ("a,b\n1,2\n3,-inf\n", "client 'b': value number 2 is infinite"),
        ("a,b\n1,2\n3\n", "line 3 has 1 cells, line 1 has 2"),
        ("a,b\n1,2,3\n3,4,5\n", "line 2 has 3 cells, line 1 has 2"),
        ('a,b\n"1",2\n"3"\n', "line 3 has 1 cells, line 1 has 2"),
        ("a,b\n1,2\n\n3,4\n", "line 3 has 1 cells, line 1 has 2"),
        ('a\n"1\n2\n', "not a readable CSV file"),
        ("a,b,a\n1,2,3\n", "two columns are named 'a'"),
        ("a,\n1,2\n", "a column of values has no name"),
        (",a\n0,1\n1,2\n", "the first column .* line 2: expected a date .* got '0'"),
        ("time,a\n01/02/2014,1\n01/03/2014,2\n", "column 'time', line 2: expected a date"),
        ("time,a\n2014-01-01,1\n,2\n", "column 'time', line 3: .* got nothing"),
        ("time\n2014-01-01\n", "no column of values"),
        ("time,a\n2014-01-01,1\n2014-01-01,2\n", "2014-01-01 00:00:00 comes twice"),
        (b"a,\xe9\n1,2\n", "not UTF-8 text: byte 0xe9 at offset 2"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=rf"^{tmp_path}/wide\.csv: .*{message}"):
        wide(tmp_path, content)


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        wide(tmp_path, gzip.compress(b"a\n1\n2\n" * 99)[:-9], "wide.csv.gz")


def test_bad_clients_do_not_cost_the_others(tmp_path: Path) -> None:
    clients = wide(tmp_path, "good,empty,constant,short\n1,,5,\n2,,5,\n3,,5,7\n")
    assert [len(series.values) for series in clients] == [3, 0, 3, 1]


def test_a_file_per_client_with_separate_times(tmp_path: Path) -> None:
    clients = folder_of(
        tmp_path,
        north="time,load\n1970-01-01 01:00,1\n1970-01-01 02:00,2\n",
        alone="time,load\n1970-01-01 06:00,9\n",  # one row, on the clock of the others
        south="time,load\n1970-01-03 01:00,3\n1970-01-03 02:00,4\n",
    )
    assert parts(clients) == [("alone", 6, [9]), ("north", 1, [1, 2]), ("south", 49, [3, 4])]


def test_a_folder_without_times_starts_at_zero(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no client")
    (tmp_path / ".hidden.csv").write_text("no client")
    (tmp_path / "B.CSV.GZ").write_bytes(gzip.compress(b"x\n3\n"))
    clients = folder_of(tmp_path, a="x\n1\n2\n")
    assert parts(clients) == [("B", 0, [3]), ("a", 0, [1, 2])]


@pytest.mark.parametrize(
    ("files", "message"),
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
    ],
)
def test_bad_folders_are_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        folder_of(tmp_path, **files)


def test_a_file_plain_and_gzipped_is_the_same_client_twice(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n3\n"))
    with pytest.raises(DataError, match="two clients are named 'a'"):
        folder_of(tmp_path, a="x\n1\n")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("x\n1\n")
    inside = tmp_path / "clients"
    inside.mkdir()
    (inside / "a.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(DataError, match="outside the data folder"):
        folder_of(inside)


def test_only_the_first_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("not,one\ncolumn,of numbers\n")
    clients = load_series(DataSettings(source="csv-folder", path=str(tmp_path), max_clients=1))
    assert parts(clients) == [("a", 0, [1])]


def test_electricity_as_pandas_reads_it() -> None:
    path = real_data("electricity_2014_hourly.csv.gz")
    clients = load_series(DataSettings(source="wide-csv", path=str(path)))
    frame = pd.read_csv(path, index_col="time", parse_dates=True)
    assert [series.name for series in clients] == list(frame.columns)
    assert {series.start % 24 for series in clients} == {1}  # begins at 01:00
    for series in clients:
        np.testing.assert_array_equal(series.values, frame[series.name])


def test_m4_series_end_where_their_cells_do() -> None:
    path = real_data("m4_hourly.csv.gz")
    clients = load_series(DataSettings(source="wide-csv", path=str(path)))
    assert len(clients) == 414
    assert {len(series.values) for series in clients} == {748, 1008}


@pytest.mark.parametrize(("offset", "next_time"), [("", "02:00:00"), ("+01:00", "01:00:00+00:00")])
def test_a_series_knows_its_clock(tmp_path: Path, offset: str, next_time: str) -> None:
    text = f"time,a\n2024-03-04 00:00{offset},1\n2024-03-04 01:00{offset},2\n"
    [wide_client] = wide(tmp_path, text)
    (tmp_path / "files").mkdir()
    [alone] = folder_of(tmp_path / "files", a=text)
    assert wide_client.clock is not None
    assert wide_client.clock == alone.clock
    assert wide_client.clock.time(wide_client.start + 2) == f"2024-03-04 {next_time}"
    assert wide(tmp_path, "a\n1\n2\n")[0].clock is None
