"""Columns known in advance, of the values' table, of a table of covariates, and of the time."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.data.frame import known_settings, saved_series, series_of_frame
from fedproto_app.data.known_columns import YEAR_COLUMNS, with_calendar
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import histories_of, load_histories
from fedproto_app.settings import settings_from
from tests.data.made_tables import load, written
from tests.helpers.real_data import real_data

with_holidays = pytest.mark.skipif(find_spec("holidays") is None, reason="needs holidays")

HOURS = pd.date_range("2024-03-04", periods=8, freq="h")
# The last two rows are the future. The south begins an hour later.
NORTH = pd.DataFrame(
    {
        "unique_id": "north",
        "ds": HOURS,
        "y": [1, 2, np.nan, 4, 5, 6, np.nan, np.nan],
        "temperature": [7.5, 8, 9, 10, 11, 12, 13, 14],
        "weather": ["fog", "rain", "rain", "sun", "sun", "fog", "sun", "rain"],
        "promotion": [False, True, False, False, False, False, True, True],
    }
)
SOUTH = NORTH.assign(unique_id="south", temperature=[-t for t in NORTH["temperature"]]).iloc[1:]
LONG = pd.concat([NORTH, SOUTH])
TEXTS = ["weather=fog", "weather=rain", "weather=sun"]


def saved(folder: Path, frame: pd.DataFrame, name: str = "a.csv") -> Path:
    return written(folder, frame.to_csv(index=False), name)


def long(folder: Path, frame: pd.DataFrame, **settings: Any) -> dict[str, ClientSeries]:
    return load(saved(folder, frame), "long-csv", **settings)


def require_long(clients: dict[str, ClientSeries], *columns: str) -> None:
    """Require the clients of `LONG` with these of its columns."""
    north, south = clients.values()
    assert north.columns == south.columns == columns
    np.testing.assert_array_equal(north.values, [1, 2, np.nan, 4, 5, 6])
    np.testing.assert_array_equal(south.values, [2, np.nan, 4, 5, 6])
    flags = [[float(f"weather={text}" == name) for text in NORTH["weather"]] for name in TEXTS]
    table = {
        "temperature": NORTH["temperature"].to_list(),
        **dict(zip(TEXTS, flags, strict=True)),
        "promotion": NORTH["promotion"].astype(float).to_list(),
    }
    expected = np.array([table[column] for column in columns]).T
    np.testing.assert_array_equal(north.known, expected)
    south_known = south.known.copy()
    south_known[:, columns.index("temperature")] *= -1
    np.testing.assert_array_equal(south_known, expected[1:])


@pytest.mark.parametrize("kind", ["csv", "excel", "parquet"])
def test_columns_beside_the_values_of_a_long_table(tmp_path: Path, kind: str) -> None:
    known = "temperature,weather,promotion"
    path = tmp_path / {"csv": "a.csv", "excel": "a.xlsx", "parquet": "a.parquet"}[kind]
    if kind == "csv":
        LONG.to_csv(path, index=False)
    elif kind == "excel":
        pytest.importorskip("openpyxl")
        LONG.to_excel(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        LONG.to_parquet(path, index=False)
    clients = load(path, f"long-{kind}", known=known)
    require_long(clients, "temperature", *TEXTS, "promotion")


def test_a_folder_of_files_has_the_columns_in_each(tmp_path: Path) -> None:
    for name, frame in (("north", NORTH), ("south", SOUTH)):
        saved(tmp_path, frame.drop(columns=["unique_id", "promotion"]), f"{name}.csv")
    clients = load(tmp_path, "csv-folder", known="temperature,weather")
    require_long(clients, "temperature", *TEXTS)
    assert "promotion" not in clients["north"].columns


def test_a_frame_has_the_columns_and_its_saved_series_too(tmp_path: Path) -> None:
    data = known_settings({"data.known": "temperature,weather"})
    series = series_of_frame(LONG, data=data)
    path = saved_series(histories_of(series), tmp_path)
    for known in ("temperature,weather", ""):
        require_long(load(path, "npz", known=known), "temperature", *TEXTS)
    assert load(path, "npz", known="weather")["south"].columns == tuple(TEXTS)
    with pytest.raises(DataError, match=r"data.known: .*has no column 'wether'; did you mean 'weat"):
        load(path, "npz", known="wether")
    warmer = LONG.assign(temperature=LONG["temperature"] + 1)
    assert saved_series(series_of_frame(warmer, data=data), tmp_path) != path
    assert len(list(tmp_path.iterdir())) == 2
    arrays = dict(np.load(path))
    wrongs = {"rows": np.array([3, 3]), "columns": np.array(["a"] * 4), "known": np.zeros(4)}
    for name, wrong in wrongs.items():
        np.savez(tmp_path / "wrong.npz", **{**arrays, name: wrong})
        with pytest.raises(DataError, match=r"known in advance do not fit|has shape"):
            load(tmp_path / "wrong.npz", "npz")


def test_a_wide_frame_has_no_columns_beside_its_clients() -> None:
    wide = NORTH.set_index("ds")[["y", "temperature"]]
    with pytest.raises(DataError, match=r"data.known = 'temperature': for long frames; name id_col"):
        series_of_frame(wide, data=known_settings({"data.known": "temperature"}))


def test_forecasts_begin_after_the_newest_value_and_the_rest_is_the_future(tmp_path: Path) -> None:
    late = LONG.assign(y=LONG["y"].where((LONG["unique_id"] == "south") | (LONG["y"] != 6)))
    path = saved(tmp_path, late)
    table = {"data.source": "long-csv", "data.path": str(path), "data.known": "temperature"}
    north, south = load_histories(settings_from(table).data)
    np.testing.assert_array_equal(north.values, [1, 2, np.nan, 4, 5, np.nan])
    assert north.future.ravel().tolist() == [13, 14]
    assert south.future.ravel().tolist() == [-13, -14]
    zeros = load(path, "long-csv", known="temperature", missing="zero")
    assert zeros["north"].values.tolist() == [1, 2, 0, 4, 5, 0]


def test_without_the_setting_other_columns_are_not_read(tmp_path: Path) -> None:
    clients = long(tmp_path, LONG)
    assert clients["north"].columns == ()
    assert clients["north"].known.size == 0


def test_listed_texts_name_the_columns_of_every_site(tmp_path: Path) -> None:
    listed = long(tmp_path, LONG, known="weather=sun|rain|fog|snow")["north"]
    assert listed.columns == ("weather=sun", "weather=rain", "weather=fog", "weather=snow")
    assert listed.known[:, 3].tolist() == [0] * 8
    codes = LONG.assign(weather=[1, 2] * 7 + [1])
    assert long(tmp_path, codes, known="weather=1|2")["north"].known[0].tolist() == [1, 0]
    assert long(tmp_path, codes, known="weather")["north"].columns == ("weather",)
    with pytest.raises(DataError, match="column 'weather', line 2: 'fog' is none of the texts"):
        long(tmp_path, LONG, known="weather=sun|rain")


def test_gaps_take_the_value_before_and_a_note_counts_them(tmp_path: Path) -> None:
    gaps = LONG.assign(temperature=LONG["temperature"].mask(LONG["ds"] == HOURS[4]))
    north, south = long(tmp_path, gaps, known="temperature").values()
    assert north.known.ravel().tolist() == [7.5, 8, 9, 10, 10, 12, 13, 14]
    note = "missing values of columns known in advance take the last value before: 2 of "
    assert north.notes[-1] == south.notes[-1] == f"{note}'temperature'"
    ends = LONG.assign(temperature=LONG["temperature"].mask(LONG["ds"] >= HOURS[6]))
    assert len(long(tmp_path, ends, known="temperature")["north"].future) == 0
    begins = LONG.assign(temperature=LONG["temperature"].mask(LONG["ds"] == HOURS[0]))
    assert np.isnan(long(tmp_path, begins, known="temperature")["north"].known[0, 0])


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (
            "temprature",
            "data.known: .*a.csv has no column 'temprature'; did you mean 'temperature'",
        ),
        ("y", "data.known: column 'y' of .*a.csv is forecast; name others"),
        ("ds", "data.known: column 'ds' of .*a.csv holds the times; name others"),
        ("unique_id", "data.known: column 'unique_id' of .*a.csv names the clients; name others"),
        ("code", "column 'code' holds 15 different texts, such as 'c0'; what is known in advance"),
        ("often", "client 'north': column 'often' misses 33% of the rows up to its last value"),
        ("half", "client 'south': column 'half' misses 100% of the rows up to its last value"),
        ("wrong", "column 'wrong', line 2: 'oops' is not a number"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path: Path, known: str, message: str) -> None:
    is_late, is_north = LONG["ds"].isin(HOURS[2:4]), LONG["unique_id"] == "north"
    frame = LONG.assign(
        code=[f"c{number}" for number in range(15)],
        often=LONG["temperature"].mask(is_late),
        half=LONG["temperature"].where(is_north),
        wrong=["oops", *range(14)],
    )
    with pytest.raises(DataError, match=message):
        long(tmp_path, frame, known=known)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"known": "a,b,a"}, "data.known = 'a,b,a': 'a' is named twice"),
        ({"known": "a,a=x|y"}, "data.known = 'a,a=x|y': 'a' is named twice"),
        ({"known": "a=x|x"}, "data.known = 'a=x|x': expected names of columns, and after = diff"),
        ({"known": "a", "columns": "a"}, "column 'a' is forecast"),
        ({"known": "a", "time-column": "a"}, "column 'a' holds the times"),
        ({"known": "a", "client-column": "a"}, "column 'a' names the clients"),
        ({"holidays": "bavaria"}, "data.holidays = 'bavaria': expected the code of a country"),
    ],
)
def test_settings_that_contradict_themselves(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings_from({f"data.{key}": value for key, value in settings.items()})


def test_a_wide_table_has_no_columns_beside_its_clients(tmp_path: Path) -> None:
    path = written(tmp_path, "time,a\n2024-03-04 00:00,1\n2024-03-04 01:00,2\n")
    message = "has no columns beside the clients' values; .* a table of their own, data.covariates"
    with pytest.raises(DataError, match=message):
        load(path, "wide-csv", known="temperature")
