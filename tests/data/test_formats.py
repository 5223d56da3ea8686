"""Every form of table: a small file is read as pandas reads it; damaged files are refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.data import files
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings, settings_from

HOURS = pd.date_range("2024-03-04 05:00", periods=6, freq="h", name="time")
FRAME = pd.DataFrame(
    {"north": [1.5, 2, np.nan, 4, 5, 6.25], "south": [10.0, 20, 30, 40, 50, -60]}, index=HOURS
)
LONG = (
    FRAME.reset_index()
    .melt("time", var_name="unique_id", value_name="y")
    .rename(columns={"time": "ds"})
)
FIRST = 474869  # hours from 1970 to the first of them


def load(path: Path, **settings: Any) -> dict[str, ClientSeries]:
    """Read a file as `fedproto run --set data.…` does."""
    changes = {f"data.{key.replace('_', '-')}": value for key, value in settings.items()}
    data = settings_from({**changes, "data.path": str(path)}).data
    return {client.name: client for client in load_series(data)}


def written(folder: Path, text: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def require_the_frame(clients: dict[str, ClientSeries], start: int = FIRST) -> None:
    assert list(clients) == ["north", "south"]
    for name, series in clients.items():
        np.testing.assert_array_equal(series.values, FRAME[name])
        assert series.start == start


# What each form is written like, and the settings that `data check` tells of it.
FORMS: dict[str, tuple[Any, dict[str, str]]] = {
    "wide.csv": (FRAME.to_csv, {}),
    "wide.tsv": (lambda: FRAME.to_csv(sep="\t"), {}),
    "semicolons.csv": (lambda: FRAME.to_csv(sep=";"), {}),
    "decimal-commas.csv": (lambda: FRAME.to_csv(sep=";", decimal=","), {"data.decimal": "comma"}),
    "tabs-and-commas.txt": (
        lambda: FRAME.to_csv(sep="\t", decimal=","),
        {"data.decimal": "comma"},
    ),
    "pipes.csv": (lambda: FRAME.to_csv(sep="|"), {}),
    "seconds.csv": (
        lambda: FRAME.set_axis((HOURS.as_unit("s").asi8), axis=0).rename_axis("time").to_csv(),
        {},
    ),
    "milliseconds.csv": (
        lambda: FRAME.set_axis((HOURS.as_unit("ms").asi8), axis=0).rename_axis("time").to_csv(),
        {},
    ),
    "nanoseconds.csv": (
        lambda: FRAME.set_axis((HOURS.as_unit("ns").asi8), axis=0).rename_axis("time").to_csv(),
        {},
    ),
    "another-name.csv": (
        lambda: FRAME.rename_axis("Zeit").to_csv(),
        {"data.time-column": "Zeit"},
    ),
    "long.csv": (lambda: LONG.to_csv(index=False), {}),
    "by-time.csv": (lambda: LONG.sort_values(["ds", "unique_id"]).to_csv(index=False), {}),
    "own-names.csv": (
        lambda: LONG.rename(columns={"unique_id": "site", "ds": "when", "y": "load"}).to_csv(
            index=False
        ),
        {"data.client-column": "site", "data.time-column": "when"},
    ),
    "two-values.csv": (
        lambda: LONG.rename(columns={"y": "load"}).assign(rain=1.0).to_csv(index=False),
        {"data.columns": "load"},
    ),
    "texts-beside.csv": (
        lambda: FRAME.assign(note=list("abcdef")).to_csv(),
        {"data.clients": "north,south"},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_data_check_prints_the_settings_that_read_a_form(tmp_path: Path, name: str) -> None:
    write, expected = FORMS[name]
    path = written(tmp_path, write(), name)
    reading = reading_of(path)
    assert reading.settings == expected
    is_long = name in ("long.csv", "by-time.csv", "own-names.csv", "two-values.csv")
    assert reading.source == ("long-csv" if is_long else "wide-csv")
    changes = {key.removeprefix("data."): value for key, value in reading.all_settings.items()}
    require_the_frame(load(path, **changes))
    packed = written(tmp_path, gzip.compress(path.read_bytes()), f"{name}.gz")
    require_the_frame(load(packed, **changes))


def test_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path, FRAME.to_csv(header=False))
    reading = reading_of(path)
    assert reading.settings == {"data.header": False}
    clients = load(path, source="wide-csv", header=False)
    assert list(clients) == ["column-2", "column-3"]
    np.testing.assert_array_equal(clients["column-2"].values, FRAME["north"])
    assert clients["column-2"].start == FIRST
    with pytest.raises(DataError, match=r"line 1 has values .*set data\.header = false"):
        load(path, source="wide-csv")


@pytest.mark.parametrize(
    "text",
    ["1,2\n3,4\n", "1.5,2.5\n3,4\n", "5\n6\n7\n", "0,-1\n1,1\n", "1e3,7\n2,3\n", "12,\n1,2\n"],
)
def test_a_first_row_of_numbers_is_never_taken_for_names(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=r"line 1 has values where names are expected"):
        load(path, source="wide-csv")
    values = [series.values for series in load(path, source="wide-csv", header=False).values()]
    expected = pd.read_csv(path, header=None)
    for number, client_values in enumerate(values):
        np.testing.assert_array_equal(client_values, expected[number].dropna())


def test_numbers_may_be_names_if_someone_says_so_or_nothing_else_fits(tmp_path: Path) -> None:
    counts = written(tmp_path, "773869,767541\n3,4\n5,6\n")
    assert list(load(counts, source="wide-csv", header=True)) == ["773869", "767541"]
    speeds = written(tmp_path, "773869,767541\n64.5,4.0\n,6.25\n", "speeds.csv")
    assert list(load(speeds, source="wide-csv")) == ["773869", "767541"]
    times = written(tmp_path, ",773869\n2024-01-01,3\n2024-01-02,4\n", "times.csv")
    assert list(load(times, source="wide-csv")) == ["773869"]


@pytest.mark.parametrize("kind", ["wide", "long", "unnamed", "integers"])
def test_parquet(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    frames = {
        "wide": FRAME,
        "unnamed": FRAME.rename_axis(None),
        "long": LONG,
        "integers": FRAME.set_axis(HOURS.as_unit("s").asi8, axis=0).rename_axis("time"),
    }
    path = tmp_path / "a.parquet"
    frames[kind].to_parquet(path)
    reading = reading_of(path)
    assert reading.settings == {}
    assert reading.source == ("long-parquet" if kind == "long" else "wide-parquet")
    require_the_frame(load(path, source=reading.source))
    first = load(path, source=reading.source, clients="south")
    assert list(first) == ["south"]


def test_a_parquet_file_that_cannot_be_read(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("pyarrow")
    intact = tmp_path / "whole.parquet"
    FRAME.to_parquet(intact)
    cut = written(tmp_path, intact.read_bytes()[:-20], "cut.parquet")
    with pytest.raises(DataError, match=r"cut\.parquet: not a readable Parquet file: .*[^\n]$"):
        load(cut, source="wide-parquet")
    nested = tmp_path / "nested.parquet"
    pd.DataFrame({"a": [[1], [2]], "b": [1, 2]}).to_parquet(nested)
    with pytest.raises(DataError, match=r"column 'a' holds list<.*>, not numbers"):
        load(nested, source="wide-parquet")
    texts = tmp_path / "texts.parquet"
    pd.DataFrame({"a": ["x", "y"]}).to_parquet(texts)
    with pytest.raises(DataError, match="column 'a', row 1: 'x' is not a number"):
        load(texts, source="wide-parquet")
    monkeypatch.setattr(files, "most_bytes", lambda: 95)  # 6 rows of 3 columns need 144
    with pytest.raises(DataError, match=r"GiB when it is read, more than a quarter"):
        load(intact, source="wide-parquet")


def test_a_small_archive_may_hold_too_much(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "most_bytes", lambda: 5_000)
    bomb = written(tmp_path, gzip.compress(b"a\n" + b"1\n" * 50_000), "a.csv.gz")
    assert bomb.stat().st_size < 5_000
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(bomb, source="wide-csv")
    np.savez_compressed(tmp_path / "a.npz", values=np.zeros((1000, 10)))
    with pytest.raises(DataError, match=r"array 'values': .* more than a quarter"):
        load(tmp_path / "a.npz", source="npz")


def test_steps_as_times(tmp_path: Path) -> None:
    """As the M4 tables count them."""
    path = written(tmp_path, "unique_id,ds,y\nH1,1,5\nH1,2,6\nH2,3,7\nH2,5,9\n")
    reading = reading_of(path)
    assert reading.all_settings == {"data.source": "long-csv", "data.time-unit": "step"}
    clients = load(path, source="long-csv", time_unit="step")
    assert clients["H1"].values.tolist() == [5, 6]
    np.testing.assert_array_equal(clients["H2"].values, [7, np.nan, 9])
    assert [(client.start, client.clock) for client in clients.values()] == [(1, None), (3, None)]


def test_epochs_count_in_utc(tmp_path: Path) -> None:
    path = written(tmp_path, "time,a\n1388534400,1\n1388538000,2\n")
    (series,) = load(path, source="wide-csv").values()
    assert series.clock is not None
    assert series.clock.time(series.start) == "2014-01-01 00:00:00+00:00"
    old = written(tmp_path, "time,a\n3600,1\n7200,2\n", "old.csv")
    assert load(old, source="wide-csv", time_unit="s")["a"].start == 1


def test_names_of_the_long_form_stay_texts(tmp_path: Path) -> None:
    path = written(
        tmp_path, "unique_id,ds,y\n007,2024-01-01,1\n007,2024-01-02,2\nNA,2024-01-02,3\n"
    )
    assert list(load(path, source="long-csv")) == ["007", "NA"]


def test_max_steps_count_from_each_clients_own_start(tmp_path: Path) -> None:
    early = "time,x\n2024-01-01,1\n2024-01-02,2\n2024-01-03,3\n"
    late = early.replace("2024", "2025").replace("time,x\n", "time,x\n")
    for name, text in (("early", early), ("late", late)):
        written(tmp_path, text, f"{name}.csv")
    clients = load(tmp_path, source="csv-folder", max_steps=2)
    assert {name: client.values.tolist() for name, client in clients.items()} == {
        "early": [1, 2],
        "late": [1, 2],
    }
    rows = [
        f"{name},{line}"
        for name, text in (("a", early), ("b", late))
        for line in text.splitlines()[1:]
    ]
    long = written(tmp_path, "\n".join(["id,time,y", *rows]), "long.txt")
    clients = load(long, source="long-csv", client_column="id", max_steps=1)
    assert [client.values.tolist() for client in clients.values()] == [[1], [1]]


def test_one_column_of_several_in_a_simulation(tmp_path: Path) -> None:
    folder = tmp_path / "sites"
    folder.mkdir()
    for name in ("a", "b"):
        written(folder, "time,rain,load\n2024-01-01,0,1\n2024-01-02,0,2\n", f"{name}.csv")
    clients = load(folder, source="csv-folder", columns="load", clients=["b"])
    assert {name: client.values.tolist() for name, client in clients.items()} == {"b": [1, 2]}
    with pytest.raises(SettingsError, match=r"data\.columns = 'load': .* data\.clients$"):
        load(folder / "a.csv", source="wide-csv", columns="load")
    with pytest.raises(SettingsError, match=r"data\.header = 'false': .*not for 'npz'"):
        load(folder / "a.npz", source="npz", header=False)


LINES = "unique_id,ds,y\na,2024-01-01,1\na,2024-01-02,2\na,2024-01-03,3\n"


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "the file is empty"),
        (LINES.encode("utf-16"), {}, "it looks like UTF-16 text; save it as UTF-8"),
        ("a,\0\n1,2\n", {}, "a zero byte after 2 characters"),
        (b"PAR1xx", {}, "a Parquet file; source wide-parquet"),
        (b"PK\x03\x04xx", {}, "an Excel sheet; save the sheet as CSV"),
        ("a,b;c\n1,2;3\n", {"source": "wide-csv"}, "separated by comma or semicolon; set data"),
        ("a;b\n1,5;2\n", {"source": "wide-csv"}, r"column 'a', line 2: '1,5' .*data\.decimal ="),
        ("a;b\n1.500;2,5\n", {"source": "wide-csv", "decimal": "comma"}, "'1.500' is not a number"),
        (
            LINES.replace("a,2024-01-03", "a,2024-01-02"),
            {},
            "client 'a': .*comes twice, again in l",
        ),
        (LINES + "a,2023-12-31,0\n", {}, "in line 5 2023-12-31 .* follows .*; sort the rows"),
        (LINES + ",2024-01-04,0\n", {}, "column 'unique_id', line 5: no client is named"),
        (LINES + "a,,0\n", {}, "column 'ds', line 5: expected a time, got nothing"),
        (LINES + "a,04.01.2024,0\n", {}, "line 5: expected a date .*write the year first"),
        (LINES + "a,2024-01-04T00:00Z,0\n", {}, "line 5 has an offset from UTC, line 2 has none"),
        (LINES + "b,2024-01-01,1\nb,2024-01-08,1\n", {}, "client 'b': its times are mostly 7 days"),
        (LINES + "a,2024-01-03 07:00,0\n", {}, "irregular times: 2024-01-03 07:00:00 in line 5"),
        (LINES + "a,2024-01-04,many\n", {}, "column 'y', line 5: 'many' is not a number"),
        (LINES, {"client_column": "unique"}, r"has no column 'unique'; did you mean 'unique_id'\?"),
        (LINES, {"clients": "c"}, r"data\.clients: .* has no client 'c'; it has a$"),
        (LINES.replace("unique_id", "who"), {}, "holds the clients' names.*set data.client-column"),
        (LINES.replace("ds", "at"), {}, "holds the times.*set data.time-column to one of"),
        ("unique_id,ds,y,z\n", {}, "only a header line"),
        (
            "unique_id,ds,u,v\na,2024-01-01,1,2\n",
            {},
            r"2 columns of values \(u, v\).*data\.columns",
        ),
        ("time,a\n2014013100,1\n2014013101,2\n", {"source": "wide-csv"}, "set data.time-unit to"),
        ("time,a\n5,1\n6,2\n", {"source": "wide-csv", "time_unit": "iso"}, "expected a date"),
        ("time,a\n1e40,1\n2e40,2\n", {"source": "wide-csv", "time_unit": "s"}, "is no time; set"),
        (
            "time,a\n1.5,1\n2,2\n",
            {"source": "wide-csv", "time_unit": "step"},
            "a whole number",
        ),
        (LINES, {"source": "wide-csv"}, "it looks as if this read it: --set data.source=long-csv"),
    ],
)
def test_damaged_files_are_refused_in_a_line(
    tmp_path: Path, text: str | bytes, settings: dict[str, str], message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=message) as error:
        load(path, **{"source": "long-csv", **settings})
    assert "\n" not in str(error.value)
    assert "a.csv" in str(error.value)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("2024-01-01 00:00Z", "2024-01-01 00:00", "with an offset from UTC, but .* without"),
        ("2024-01-01", "2024-01-01 00:20", None),
    ],
)
def test_files_of_a_folder_share_one_kind_of_times(
    tmp_path: Path, first: str, second: str, message: str | None
) -> None:
    for name, time in (("a", first), ("b", second)):
        written(tmp_path, f"time,x\n{time},1\n", f"{name}.csv")
    if message is None:
        assert len(load(tmp_path, source="csv-folder")) == 2  # one row has no step
        return
    with pytest.raises(DataError, match=message):
        load(tmp_path, source="csv-folder")


def test_a_misspelt_path_is_guessed(tmp_path: Path) -> None:
    written(tmp_path, LINES, "traffic.csv")
    with pytest.raises(DataError, match=r"no such file or folder; did you mean 'traffic.csv'\?"):
        load(tmp_path / "trafic.csv", source="long-csv")
    assert isinstance(DataSettings().choice.clients, tuple)
