"""Every form of table: a small file is read as pandas reads it, and damaged files are refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data import files
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.table import rows_above
from tests.data.made_tables import (
    FIRST,
    FRAME,
    HOURS,
    LONG,
    load,
    require_the_frame,
    values_of,
    written,
)


def epochs(unit: str) -> pd.DataFrame:
    """Return the frame with times that count from 1970."""
    return FRAME.set_axis(HOURS.as_unit(unit).asi8, axis=0).rename_axis("time")


OTHER_NAMES = LONG.rename(columns={"unique_id": "site", "ds": "when", "y": "load"})
TWO_VALUES = LONG.rename(columns={"y": "load"}).assign(rain=1.0)
CLIENTS = {"data.clients": "north,south"}
NAMES = {"data.client-column": "site", "data.time-column": "when"}
# The text of each form, and the settings that `data check` recommends.
WIDE: dict[str, tuple[str, dict[str, str]]] = {
    "wide.csv": (FRAME.to_csv(), {}),
    "wide.tsv": (FRAME.to_csv(sep="\t"), {}),
    "semicolons.csv": (FRAME.to_csv(sep=";"), {}),
    "decimal-commas.csv": (FRAME.to_csv(sep=";", decimal=","), {}),
    "tabs-and-commas.txt": (FRAME.to_csv(sep="\t", decimal=","), {}),
    "shuffled.csv": (FRAME.iloc[[3, 0, 5, 1, 2, 4]].to_csv(), {}),
    "backwards.csv": (FRAME[::-1].to_csv(), {}),
    "units.csv": (FRAME.to_csv().replace("\n", "\nCET,kW,kW\n", 1), {}),
    "pipes.csv": (FRAME.to_csv(sep="|"), {}),
    "seconds.csv": (epochs("s").to_csv(), {}),
    "milliseconds.csv": (epochs("ms").to_csv(), {}),
    "nanoseconds.csv": (epochs("ns").to_csv(), {}),
    "another-name.csv": (FRAME.rename_axis("Zeit").to_csv(), {"data.time-column": "Zeit"}),
    "texts-beside.csv": (FRAME.assign(note=list("abcdef")).to_csv(), CLIENTS),
}
LONG_FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "long.csv": (LONG.to_csv(index=False), {}),
    "by-time.csv": (LONG.sort_values(["ds", "unique_id"]).to_csv(index=False), {}),
    "other-names.csv": (OTHER_NAMES.to_csv(index=False), NAMES),
    "two-values.csv": (TWO_VALUES.to_csv(index=False), {"data.columns": "load"}),
}


@pytest.mark.parametrize("name", [*WIDE, *LONG_FORMS])
def test_data_check_prints_the_settings_that_read_a_form(tmp_path: Path, name: str) -> None:
    source = "wide-csv" if name in WIDE else "long-csv"
    text, expected = (WIDE | LONG_FORMS)[name]
    path = written(tmp_path, text, name)
    reading = reading_of(path, {"data.columns": expected.get("data.columns", "")})
    assert (reading.source, reading.settings) == (source, expected)
    changes = {key.removeprefix("data."): value for key, value in reading.all_settings.items()}
    require_the_frame(load(path, **changes))
    packed = written(tmp_path, gzip.compress(path.read_bytes()), f"{name}.gz")
    require_the_frame(load(packed, **changes))


def test_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path, FRAME.to_csv(header=False))
    assert reading_of(path).settings == {"data.header": False}
    clients = load(path, "wide-csv", header=False)
    assert list(clients) == ["column-2", "column-3"]
    np.testing.assert_array_equal(clients["column-2"].values, FRAME["north"])
    assert clients["column-2"].start == FIRST
    with pytest.raises(DataError, match=r"line 1 has values .*set data\.header = false"):
        load(path, "wide-csv")


@pytest.mark.parametrize(
    "text",
    ["1,2\n3,4\n", "1.5,2.5\n3,4\n", "5\n6\n7\n", "0,-1\n1,1\n", "1e3,7\n2,3\n", "12,\n1,2\n"],
)
def test_a_first_row_of_numbers_is_never_taken_for_names(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=r"line 1 has values where names are expected"):
        load(path, "wide-csv")
    expected = pd.read_csv(path, header=None)
    for number, series in enumerate(load(path, "wide-csv", header=False).values()):
        np.testing.assert_array_equal(series.values, expected[number].dropna())


def test_numbers_may_be_names_if_someone_says_so_or_nothing_else_fits(tmp_path: Path) -> None:
    counts = written(tmp_path, "773869,767541\n3,4\n5,6\n")
    assert list(load(counts, "wide-csv", header=True)) == ["773869", "767541"]
    speeds = written(tmp_path, "773869,767541\n64.5,4.0\n,6.25\n")
    assert list(load(speeds, "wide-csv")) == ["773869", "767541"]
    times = written(tmp_path, ",773869\n2024-01-01,3\n2024-01-02,4\n")
    assert list(load(times, "wide-csv")) == ["773869"]


@pytest.mark.parametrize(
    "frame",
    [FRAME, LONG, FRAME.rename_axis(None), epochs("s")],
    ids=["wide", "long", "unnamed", "integers"],
)
def test_parquet(tmp_path: Path, frame: pd.DataFrame) -> None:
    pytest.importorskip("pyarrow")
    path, source = tmp_path / "a.parquet", "long-parquet" if frame is LONG else "wide-parquet"
    frame.to_parquet(path)
    reading = reading_of(path)
    assert (reading.source, reading.settings) == (source, {})
    require_the_frame(load(path, source))
    assert list(load(path, source, clients="south")) == ["south"]


def test_a_parquet_file_that_cannot_be_read(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    pd.DataFrame({"a": [[1], [2]], "b": [1, 2]}).to_parquet(path)
    with pytest.raises(DataError, match=r"column 'a' holds list<.*>, not numbers"):
        load(path, "wide-parquet")
    pd.DataFrame({"a": ["x", "y"]}).to_parquet(path)
    with pytest.raises(DataError, match="column 'a', row 1: 'x' is not a number"):
        load(path, "wide-parquet")
    FRAME.to_parquet(path)
    cut = written(tmp_path, path.read_bytes()[:-20], "cut.parquet")
    with pytest.raises(DataError, match=r"cut\.parquet: not a readable Parquet file: .*[^\n]$"):
        load(cut, "wide-parquet")
    monkeypatch.setattr(files, "most_bytes", lambda: 95)  # 6 rows of 3 columns need 144
    with pytest.raises(DataError, match=r"GiB when it is read, more than a quarter"):
        load(path, "wide-parquet")


def test_a_text_that_repeats_is_stored_once(tmp_path: Path, monkeypatch: Any) -> None:
    """A kilobyte of Parquet may hold gigabytes of names."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    names = pd.Series(["x" * 100_000]).repeat(1000).reset_index(drop=True)
    frame = pd.DataFrame({"unique_id": names, "ds": pd.Timestamp("2024-01-01"), "y": 1.0})
    frame.to_parquet(path, compression="zstd")
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(files, "most_bytes", lambda: 1 << 25)
    monkeypatch.setattr(pd.DataFrame, "astype", lambda *_: pytest.fail("written out too early"))
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(path, "long-parquet")


def test_a_small_archive_may_hold_too_much(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "most_bytes", lambda: 5_000)
    bomb = written(tmp_path, gzip.compress(b"a\n" + b"1\n" * 50_000), "a.csv.gz")
    assert bomb.stat().st_size < 5_000
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(bomb, "wide-csv")
    np.savez_compressed(tmp_path / "a.npz", values=np.zeros((1000, 10)))
    with pytest.raises(DataError, match=r"array 'values': .* more than a quarter"):
        load(tmp_path / "a.npz", "npz")


def test_steps_as_times(tmp_path: Path) -> None:
    """As the M4 tables count them."""
    path = written(tmp_path, "unique_id,ds,y\nH1,1,5\nH1,2,6\nH2,3,7\nH2,5,9\n")
    settings = {"data.source": "long-csv", "data.time-unit": "step"}
    assert reading_of(path).all_settings == settings
    clients = load(path, "long-csv", time_unit="step")
    assert clients["H1"].values.tolist() == [5, 6]
    np.testing.assert_array_equal(clients["H2"].values, [7, np.nan, 9])
    assert [(client.start, client.clock) for client in clients.values()] == [(1, None), (3, None)]


def test_epochs_count_in_utc(tmp_path: Path) -> None:
    series = load(written(tmp_path, "time,a\n1388534400,1\n1388538000,2\n"), "wide-csv")["a"]
    assert series.clock.time(series.start) == "2014-01-01 00:00:00+00:00"
    old = written(tmp_path, "time,a\n3600,1\n7200,2\n")
    assert load(old, "wide-csv", time_unit="s")["a"].start == 1


def test_names_of_the_long_form_stay_texts(tmp_path: Path) -> None:
    rows = "unique_id,ds,y\n007,2024-01-01,1\n007,2024-01-02,2\nNA,2024-01-02,3\n"
    assert list(load(written(tmp_path, rows), "long-csv")) == ["007", "NA"]


@pytest.mark.parametrize(
    "content",
    ["a,b\n1,2.5\n3,4\n", b"\xef\xbb\xbfa,b\r\n1,2.5\r\n3,4", '"a", "b"\n1, 2.5\n 3 ,"4"\n'],
    ids=["plain", "byte-order-mark-and-crlf", "quotes-and-spaces"],
)
def test_dialects_of_csv(tmp_path: Path, content: str | bytes) -> None:
    clients = load(written(tmp_path, content), "wide-csv")
    assert values_of(clients) == {"a": [1, 3], "b": [2.5, 4]}


LINES = "unique_id,ds,y\na,2024-01-01,1\na,2024-01-02,2\na,2024-01-03,3\n"


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (LINES.encode("utf-16"), {}, "it looks like UTF-16 text; save it as UTF-8"),
        ("a,\0\n1,2\n", {}, "a zero byte after 2 bytes"),
        (b"PAR1xx", {}, "a Parquet file; source wide-parquet"),
        (b"PK\x03\x04xx", {}, "an Excel sheet; give it the ending .xlsx"),
        (
            LINES.replace("a,2024-01-03", "a,2024-01-02"),
            {},
            "client 'a': .*twice .* 2 in line 3 and 3 in line 4",
        ),
        (LINES + ",2024-01-04,0\n", {}, "column 'unique_id', line 5: no client is named"),
        (LINES + "a,,0\n", {}, "column 'ds', line 5: expected a time, got nothing"),
        (LINES + "a,04.01.2024,0\n", {}, "line 5: expected a date .*write all dates alike"),
        (LINES + "a,2024-01-04T00:00Z,0\n", {}, "line 5 has an offset from UTC, line 2 has none"),
        (LINES + "b,2024-01-01,1\nb,2024-01-08,1\n", {}, "client 'b': its times are mostly 7 days"),
        (LINES + "a,2024-01-03 07:00,0\n", {}, "irregular times: 2024-01-03 07:00:00 in line 5"),
        (LINES + "a,2024-01-04,many\n", {}, "column 'y', line 5: 'many' is not a number"),
        (LINES, {"client_column": "unique"}, r"has no column 'unique'; did you mean 'unique_id'\?"),
        (LINES, {"clients": "c"}, r"data\.clients: .* has no client 'c'; it has a$"),
        (LINES.replace("unique_id", "who"), {}, "holds the clients' names.*set data.client-column"),
        (LINES.replace("ds", "at"), {}, "holds the times.*set data.time-column to one of"),
        ("unique_id,ds,y,z\n", {}, "only a header line"),
        ("unique_id,ds,u,v\na,2024-01-01,1,2\n", {}, r"2 columns of values \(u, v\).*data\.col"),
    ],
)
def test_damaged_long_files(tmp_path: Path, text: Any, settings: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        load(written(tmp_path, text), "long-csv", **settings)
    assert "\n" not in str(error.value)
    assert "a.csv" in str(error.value)


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("", {}, "the file is empty"),
        ("\n\n", {}, "the file is empty"),
        ("a,b\n", {}, "only a header line"),
        ("time,a\ntime,a\ntime,a\n", {}, "every line repeats the names of the columns"),
        ("a,b\n1,2\n3,none yet\n", {}, "column 'b', line 3: 'none yet' is not a number"),
        ("a,b\n1,True\n3,\n", {}, "column 'b', line 2: 'True' is not a number"),
        ("a,b\n1,2\n3,-inf\n", {}, "client 'b': value number 2 is infinite"),
        ("a,b\n1,2\n3\n", {}, "line 3 has 1 cells, line 1 has 2"),
        ('"a" "b"\n"1" 2 3\n', {}, "separated by blanks; write the table with commas"),
        ("a,b\n1,2\n3,unavailable\n", {}, "data.missing-values=unavailable"),
        ("a,b\n1,2,3\n3,4,5\n", {}, "line 2 has 3 cells, line 1 has 2"),
        ('a,b\n"1",2\n"3"\n', {}, "line 3 has 1 cells, line 1 has 2"),
        ("a,b\n1,2\n\n3,4\n", {}, "line 3 has 1 cells, line 1 has 2"),
        ('a\n"1\n2\n', {}, "not a readable CSV file"),
        ("a\n" + "1" * 200_000, {}, "not a readable CSV file"),
        ("a,b,a\n1,2,3\n", {}, "two columns are named 'a'"),
        ("a,\n1,2\n", {}, "a column of values has no name"),
        (",a\n0,1\n1,2\n", {}, "the first column .* line 2: expected a date .* got '0'"),
        ("time\n2014-01-01\n", {}, "no column of values"),
        (b"a,\xe9\n1,2\n", {}, "not UTF-8 text: byte 0xe9 at offset 2"),
        ("a,b;c\n1,2;3\n", {}, "separated by comma or semicolon; set data"),
        ("a;b\n1,5;2\n", {"decimal": "point"}, "column 'a', line 2: '1,5' is not a number"),
        ("a;b\n1.50;2,5\n", {"decimal": "comma"}, "'1.50' is not a number"),
        ("a;b\n1.5;2,5\n", {}, "'1.5' in line 2 has a decimal point, '2,5' in line 2 a decimal c"),
        ("a\n1\r2\n3\n", {}, "a carriage return without a line feed"),
        ("time,a\n2014013100,1\n2014013101,2\n", {}, "set data.time-unit to"),
        ("time,a\n5,1\n6,2\n", {"time_unit": "iso"}, "expected a date"),
        ("time,a\n1e40,1\n2e40,2\n", {"time_unit": "s"}, "is no time; set"),
        ("time,a\n1.5,1\n2,2\n", {"time_unit": "step"}, "a whole number"),
        (LINES, {}, "it looks as if this read it: --set data.source=long-csv"),
    ],
)
def test_damaged_wide_files(tmp_path: Path, content: Any, settings: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"^{tmp_path}/a\.csv: .*{message}") as error:
        load(written(tmp_path, content), "wide-csv", **settings)
    assert "\n" not in str(error.value)


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"a\n1\n2\n" * 99)[:-9]
    with pytest.raises(DataError, match="cannot be read"):
        load(written(tmp_path, packed, "a.csv.gz"), "wide-csv")


HOURLY = "".join(f"2024-01-01 {hour:02d}:00,{hour}.5,{hour}.7\n" for hour in range(24))


@pytest.mark.parametrize("header", ["time,a,b", ",a,b", "time,,b", "time,a,"])
def test_a_header_that_lacks_a_name_is_no_title(header: str) -> None:
    rows = [header.split(","), *(line.split(",") for line in HOURLY.splitlines())]
    assert rows_above(rows, "auto", "a.csv") == 0


def test_pandas_index_is_no_time_and_no_client(tmp_path: Path) -> None:
    text = LONG.to_csv()
    require_the_frame(load(written(tmp_path, text), "long-csv"))
    require_the_frame(load(written(tmp_path, f"Unnamed: 0{text}"), "long-csv"))
    wide = written(tmp_path, FRAME.reset_index().to_csv())
    require_the_frame(load(wide, "wide-csv"))
    # Without another column of times it may be the time.
    alone = written(tmp_path, FRAME.reset_index(drop=True).to_csv())
    assert list(load(alone, "wide-csv", time_unit="step")) == ["north", "south"]


@pytest.mark.parametrize("word", ["Total", "SUM", "Summe:"])
def test_a_row_of_totals_is_no_value(tmp_path: Path, word: str) -> None:
    clients = load(written(tmp_path, f"time,a,b\n{HOURLY}{word},300,310\n"), "wide-csv")
    assert [len(series.values) for series in clients.values()] == [24, 24]
    assert f"line 26, {word!r}, is left out" in clients["a"].notes
    with pytest.raises(DataError, match="line 26: expected a date"):
        load(written(tmp_path, f"time,a,b\n{HOURLY}later,300,310\n"), "wide-csv")


def test_names_that_differ_by_blanks_or_accents_are_one_client(tmp_path: Path) -> None:
    rows = "unique_id,ds,y\nS\u00fcd,2024-01-01,1\nSu\u0308d ,2024-01-02,2\n"
    clients = load(written(tmp_path, rows), "long-csv")
    assert values_of(clients) == {"S\u00fcd": [1, 2]}
    assert clients["S\u00fcd"].notes == (r"'Su\u0308d ' and 'S\xfcd' are read as one client",)
    with pytest.raises(DataError, match=r"written 'S.xfcd' and 'Su.u0308d ' there: if these are"):
        load(written(tmp_path, rows.replace("-02", "-01")), "long-csv")


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        (
            "unique_id,item,ds,y\na,x,2024-01-01,1\na,z,2024-01-01,2\n",
            "long-csv",
            r"column 'item' differs between these rows \('x', 'z'\): .*,item joins them$",
        ),
        (
            "ds,shop,y\n2024-01-01,1,5.5\n2024-01-01,2,6.5\n",
            "wide-csv",
            "--set data.source=long-csv --set data.client-column=shop reads them",
        ),
        (
            "ds,clock,y\n2024-01-01,0:00,5\n2024-01-01,1:00,6\n",
            "wide-csv",
            "'clock' differs .*: --set data.time-column=ds,clock joins them",
        ),
    ],
)
def test_a_time_with_two_values_comes_with_what_tells_the_rows_apart(
    tmp_path: Path, text: str, source: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(written(tmp_path, text), source, **{"columns" if "long" in source else "clients": "y"})
