"""Columns known in advance, of the values' table, of a table of covariates, and of the time."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.data.clock import Clock
from fedproto_app.data.frame import (
    future_of_frame,
    known_settings,
    saved_series,
    series_of_frame,
)
from fedproto_app.data.known_columns import (
    YEAR_COLUMNS,
    Beside,
    advice_on,
    calendar_columns,
    with_calendar,
    with_known_columns,
)
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import loaded_from
from fedproto_app.data.sources import columns_beside, histories_of, load_histories
from fedproto_app.settings import settings_from
from tests.data.made_tables import load, written
from tests.helpers.real_data import real_data

with_holidays = pytest.mark.skipif(find_spec("holidays") is None, reason="needs holidays")

DAY, NO_OFFSET = np.timedelta64(24 * 3600, "s"), np.timedelta64(0, "s")
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
    names = "temperature,weather,promotion"
    path = tmp_path / {"csv": "a.csv", "excel": "a.xlsx", "parquet": "a.parquet"}[kind]
    if kind == "csv":
        LONG.to_csv(path, index=False)
    elif kind == "excel":
        pytest.importorskip("openpyxl")
        LONG.to_excel(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        LONG.to_parquet(path, index=False)
    clients = load(path, f"long-{kind}", known=names)
    require_long(clients, "temperature", *TEXTS, "promotion")


def test_a_folder_of_files_has_the_columns_in_each(tmp_path: Path) -> None:
    for name, frame in (("north", NORTH), ("south", SOUTH)):
        saved(tmp_path, frame.drop(columns=["unique_id", "promotion"]), f"{name}.csv")
    clients = load(tmp_path, "csv-folder", known="temperature,weather")
    require_long(clients, "temperature", *TEXTS)
    assert "promotion" not in clients["north"].columns


def test_a_frame_has_the_columns_and_its_saved_series_too(tmp_path: Path) -> None:
    data = known_settings({"data.known": "temperature,weather,promotion"})
    series = series_of_frame(LONG.astype({"weather": "category"}), data=data)
    path = saved_series(histories_of(series), tmp_path)
    clients = load(path, "npz", known="temperature,weather,promotion")
    require_long(clients, "temperature", *TEXTS, "promotion")
    require_long(load(path, "npz"), "promotion", "temperature", *TEXTS)
    assert load(path, "npz", known="weather")["south"].columns == tuple(TEXTS)
    with pytest.raises(
        DataError, match=r"data.known: .*has no column 'wether'; did you mean 'weat"
    ):
        load(path, "npz", known="wether")
    warmer = LONG.assign(temperature=LONG["temperature"] + 1)
    assert saved_series(series_of_frame(warmer, data=data), tmp_path) != path
    assert len(list(tmp_path.iterdir())) == 2
    arrays = dict(np.load(path))
    wrongs = {"known": np.zeros(5), "columns": np.array(["a"] * 5), "values": np.zeros(3)}
    for name, wrong in wrongs.items():
        np.savez(tmp_path / "wrong.npz", **{**arrays, name: wrong})
        with pytest.raises(DataError, match=r"do not fit together|has shape"):
            load(tmp_path / "wrong.npz", "npz")


def test_the_target_of_a_frame_is_not_known_in_advance() -> None:
    data = known_settings({"data.known": "y"})
    with pytest.raises(DataError, match=r"data.known = 'y': column 'y' is forecast \(target_col\)"):
        series_of_frame(LONG, target_col="y", data=data)


def test_a_wide_frame_has_no_columns_beside_its_clients() -> None:
    wide = NORTH.set_index("ds")[["y", "temperature"]]
    with pytest.raises(
        DataError, match=r"data.known = 'temperature': for long frames; name id_col"
    ):
        series_of_frame(wide, data=known_settings({"data.known": "temperature"}))


def test_numbers_of_the_columns_are_written_as_those_of_the_values(tmp_path: Path) -> None:
    text = "unique_id;ds;y;heat;sky\na;2024-03-04 00:00;1,5;-2,25;fog\na;2024-03-04 01:00;2;1;sun\n"
    (series,) = load(written(tmp_path, text), "long-csv", known="heat,sky").values()
    assert series.values.tolist() == [1.5, 2]
    assert series.known.tolist() == [[-2.25, 1, 0], [1, 0, 1]]


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
    note = "missing values of columns known in advance, filled with the value before: 2 of "
    assert north.notes[-1] == south.notes[-1] == f"{note}'temperature'"
    ends = LONG.assign(temperature=LONG["temperature"].mask(LONG["ds"] >= HOURS[6]))
    assert len(long(tmp_path, ends, known="temperature")["north"].future) == 0
    begins = LONG.assign(temperature=LONG["temperature"].mask(LONG["ds"] == HOURS[0]))
    assert np.isnan(long(tmp_path, begins, known="temperature")["north"].known[0, 0])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            "temprature",
            "data.known: .*a.csv has no column 'temprature'; did you mean 'temperature'",
        ),
        ("y", "data.known: column 'y' of .*a.csv is forecast; name others"),
        ("ds", "data.known: column 'ds' of .*a.csv holds the times; name others"),
        ("unique_id", "data.known: column 'unique_id' of .*a.csv names the clients; name others"),
        ("often", "client 'north': column 'often' misses 33% of the rows up to its last value"),
        ("half", "client 'south': column 'half' misses 100% of the rows up to its last value"),
        ("wrong", "column 'wrong', line 2: 'oops' is not a number"),
    ],
)
def test_columns_that_cannot_be_used(tmp_path: Path, column: str, message: str) -> None:
    is_late, is_north = LONG["ds"].isin(HOURS[2:4]), LONG["unique_id"] == "north"
    frame = LONG.assign(
        often=LONG["temperature"].mask(is_late),
        half=LONG["temperature"].where(is_north),
        wrong=["oops", *range(14)],
    )
    with pytest.raises(DataError, match=message):
        long(tmp_path, frame, known=column)


def test_texts_of_few_values_are_read_and_others_refused(tmp_path: Path) -> None:
    sixteen_rows = pd.concat([NORTH, NORTH.assign(ds=NORTH["ds"] + pd.Timedelta("8h"))])
    codes = [f"c{number:02d}" for number in range(16)]
    assert len(long(tmp_path, sixteen_rows.assign(code=codes), known="code")["north"].columns) == 16
    message = "column 'code' holds 17 different texts, such as 'c00'; what is known in advance is"
    more = pd.concat([sixteen_rows, NORTH.iloc[:1].assign(ds=HOURS[-1] + pd.Timedelta("9h"))])
    with pytest.raises(DataError, match=message):
        long(tmp_path, more.assign(code=[*codes, "c16"]), known="code")


def test_columns_beside_the_values_are_judged(tmp_path: Path) -> None:
    """The last two of eight hours are the future, and the south begins an hour later."""
    rows = LONG.assign(
        measured=LONG["temperature"].where(LONG["ds"] < HOURS[6]),
        short=LONG["temperature"].where(LONG["ds"] < HOURS[7]),
        often=LONG["temperature"].mask(LONG["ds"].isin(HOURS[2:4])),
        height=[80] * 8 + [2] * 7,
        same=LONG["y"] * 1.0,
        moved=[2, 9, 4, 5, 6, 7, 8, 9, *range(7)],  # an hour early, where there are values
        unit=LONG["temperature"] * ([1000] * 8 + [1] * 7),
        wrong=["oops", *range(14)],
    )
    table = {"data.source": "long-csv", "data.path": str(saved(tmp_path, rows))}
    names = [name for name in rows if name not in ("unique_id", "ds", "y")]
    columns = columns_beside(settings_from(table).data, names)
    judged = {column.name: column.why_not or column.steps for column in columns}
    assert judged == {
        "temperature": 2,
        "weather": 2,
        "promotion": 2,
        "measured": 0,
        "short": 1,
        "often": "misses 40% of the rows of client 'south'",
        "height": "is constant at every client",
        "same": "is the values themselves",
        "moved": "is the values themselves, moved by 1 step",
        "unit": "is at client 'north' about 965 times as large as at others, as in another unit",
        "wrong": "line 2: 'oops' is not a number",
    }
    assert columns_beside(settings_from(table).data, []) == []


def test_columns_are_listed_with_what_makes_them_known() -> None:
    columns = [Beside("a", 3), Beside("b"), Beside("c", 3), Beside("d,e", 0, "is odd")]
    assert advice_on(columns, "--known ") == [
        "could be known in advance: a, c (for 3 steps after the last value): --known a,c",
        "could be known in advance: b (only if you know them before the values, as from a "
        "forecast; with measured columns the gain is an upper bound): --known b",
        "not known in advance: d,e (is odd)",
    ]


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


# Weather from an hour before the first value on, of ten hours. 1 °C at 23 o'clock, 2 °C at 0 …
WEATHER = pd.DataFrame(
    {
        "time": pd.date_range("2024-03-03 23:00", periods=10, freq="h"),
        "temperature": np.arange(1.0, 11),
        "sky": ["fog", "sun"] * 5,
        "wind": np.arange(10.0, 20),
    }
)
WIDE = "time,north,south\n" + "".join(
    f"2024-03-04 {hour:02d}:00,{hour},{hour if hour < 4 else ''}\n" for hour in range(6)
)


def with_weather(folder: Path, weather: pd.DataFrame, **settings: Any) -> dict[str, ClientSeries]:
    """Read a wide table and a table of covariates."""
    path = saved(folder, weather, "weather.csv")
    source = {"source": "wide-csv", **settings}
    data = source.pop("text", WIDE)
    return load(written(folder, data, "loads.csv"), covariates=str(path), **source)


def test_a_table_of_covariates_goes_with_every_client(tmp_path: Path) -> None:
    north, south = with_weather(tmp_path, WEATHER).values()
    assert north.columns == south.columns == ("temperature", "wind")
    np.testing.assert_array_equal(north.known, np.stack([range(2, 11), range(11, 20)], axis=1))
    np.testing.assert_array_equal(north.known, south.known)
    assert (len(north.future), len(south.future)) == (3, 5)
    chosen = with_weather(tmp_path, WEATHER, known="wind,sky")["north"]
    assert chosen.columns == ("wind", "sky=fog", "sky=sun")
    assert chosen.known[0].tolist() == [11, 0, 1]


def test_covariates_may_be_of_each_client(tmp_path: Path) -> None:
    of_clients = pd.concat(
        [
            WEATHER.assign(client="north"),
            WEATHER.assign(client="south", temperature=-WEATHER["temperature"]),
            WEATHER.assign(client="west"),
        ]
    )
    north, south = with_weather(tmp_path, of_clients).values()
    np.testing.assert_array_equal(north.known[:, 0], range(2, 11))
    np.testing.assert_array_equal(south.known[:, 0], range(-2, -11, -1))


def test_a_long_table_and_its_covariates_both_give_columns(tmp_path: Path) -> None:
    saved(tmp_path, WEATHER, "weather.csv")
    path = str(tmp_path / "weather.csv")
    north = long(tmp_path, LONG, covariates=path, known="wind,promotion")["north"]
    assert north.columns == ("wind", "promotion")
    np.testing.assert_array_equal(north.known[:8, 0], range(11, 19))
    assert len(north.future) == 2  # the wind of a further hour lacks the promotion
    with pytest.raises(
        DataError, match=r"names no column of .*weather.csv beside those that the s"
    ):
        long(tmp_path, LONG, covariates=path, known="promotion")


def test_covariates_of_counted_steps_and_of_other_formats(tmp_path: Path) -> None:
    numbered = WEATHER.assign(time=range(-1, 9))
    steps = with_weather(tmp_path, numbered, text="north\n0\n1\n2\n3\n4\n5\n")["north"]
    np.testing.assert_array_equal(steps.known[:, 0], range(2, 11))
    utc = WEATHER.assign(time=[f"{time}+00:00" for time in WEATHER["time"]])
    berlin = with_weather(tmp_path, utc, time_zone="Europe/Berlin")["north"]
    assert berlin.known[0, 0] == 1  # midnight in Berlin is 23:00 in UTC
    pytest.importorskip("pyarrow")
    WEATHER.to_parquet(tmp_path / "weather.parquet")
    path = str(tmp_path / "weather.parquet")
    clients = load(written(tmp_path, WIDE), "wide-csv", covariates=path)
    np.testing.assert_array_equal(clients["north"].known[:, 0], range(2, 11))


@pytest.mark.parametrize(
    ("weather", "settings", "message"),
    [
        (
            WEATHER,
            {"known": "winds"},
            "data.known: .*weather.csv has no column 'winds'; did you mean 'wind'",
        ),
        (
            WEATHER.assign(time=WEATHER["time"] + pd.Timedelta("30D")),
            {},
            "weather.csv goes from 2024-04-02 23:00:00 to .*, but the values of client 'north' ",
        ),
        (
            WEATHER.iloc[::2],
            {},
            "has local times 2:00:00 apart .*, but client 'north' has local times 1:00:00 apart;",
        ),
        (
            WEATHER.assign(time=WEATHER["time"] + pd.Timedelta("5min")),
            {},
            "has local times 1:00:00 apart and 0:05:00 past a whole step, but client 'north' has",
        ),
        (
            WEATHER.assign(time=[f"{time}+00:00" for time in WEATHER["time"]]),
            {},
            "has times in UTC 1:00:00 apart, but client 'north' has local times 1:00:00 a",
        ),
        (
            WEATHER.assign(time=range(10)),
            {},
            "'0', whose size does not tell what it counts",
        ),
        (
            WEATHER,
            {"text": "north\n0\n1\n2\n3\n4\n5\n", "time_unit": "iso"},
            "has local times 1:00:00 apart, but client 'north' has counted steps; write both",
        ),
        (
            WEATHER.assign(client="west"),
            {},
            "weather.csv is for the clients west, but .*loads.csv has only north",
        ),
        (
            WEATHER.assign(client="north"),
            {},
            "data.covariates: .*weather.csv has no row of client 'south'",
        ),
        (
            WEATHER[["time", "sky"]],
            {},
            "data.covariates: .*weather.csv has no column of numbers beside the times",
        ),
        (
            WEATHER.assign(wind=WEATHER["wind"].mask(WEATHER["wind"].isin([13, 14]))),
            {},
            "loads.csv: client 'north': column 'wind' misses 33% of the rows up to its last value",
        ),
        (
            WEATHER.rename(columns={"time": "hour of it"}),
            {},
            "weather.csv: which column holds the times[?] set data.time-column to one of hour of",
        ),
    ],
)
def test_covariates_that_cannot_be_used(
    tmp_path: Path, weather: pd.DataFrame, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        with_weather(tmp_path, weather, **settings)


def test_covariates_that_are_no_table(tmp_path: Path) -> None:
    path = written(tmp_path, WIDE, "loads.csv")
    for name, message in (
        ("wether.csv", "data.covariates: .*wether.csv: no such file or folder"),
        ("weather.npz", "data.covariates: .*weather.npz is no table; a CSV, Parquet or Excel"),
    ):
        (tmp_path / "weather.npz").touch()
        with pytest.raises(DataError, match=message):
            load(path, "wide-csv", covariates=str(tmp_path / name))


def test_a_table_that_is_its_own_covariates_does_not_give_the_target(tmp_path: Path) -> None:
    wide = written(tmp_path, WIDE, "loads.csv")
    with pytest.raises(DataError, match=r"column 'north' of .*loads.csv is what is forecast"):
        load(wide, "wide-csv", covariates=str(wide))
    beside = saved(tmp_path, WEATHER.assign(north=WEATHER["wind"]), "both.csv")
    clients = load(beside, "wide-csv", clients="north", covariates=str(beside), known="wind")
    assert clients["north"].columns == ("wind",)
    rows = saved(tmp_path, LONG)
    with pytest.raises(DataError, match=r"column 'y' of .*a.csv is what is forecast"):
        load(rows, "long-csv", covariates=str(rows))


@pytest.mark.parametrize(
    ("time", "clock", "start"),
    [
        (pd.Timestamp("1970-01-05", tz="Asia/Tokyo"), Clock(DAY, NO_OFFSET), 4),
        (pd.Timestamp("1970-01-05", tz="Asia/Tokyo"), Clock(DAY / 24, NO_OFFSET, utc=True), 87),
        (4, None, 4),
    ],
)
def test_one_row_ahead_is_of_the_series_clock(time: Any, clock: Clock | None, start: int) -> None:
    """Midnight of 5 January in Tokyo is 15:00 of the fourth in UTC."""
    frame = pd.DataFrame({"ds": [time], "wind": [7.0]})
    data = settings_from({"data.known": "wind", "data.path": "the frame"}).data
    (row,) = future_of_frame(frame).read(data, clock)
    assert (row.start, row.known.tolist(), row.clock) == (start, [[7.0]], clock)


def test_columns_of_all_days_are_cut_to_business_days(tmp_path: Path) -> None:
    days = pd.date_range("2024-01-01", periods=40, freq="D")
    daily = saved(tmp_path, pd.DataFrame({"date": days, "wind": range(40)}), "wind.csv")
    sold = pd.DataFrame({"date": days[:28], "shop": 1.0})
    shop = saved(tmp_path, sold[days[:28].day_of_week < 5], "shop.csv")
    series = load(shop, "wide-csv", covariates=str(daily))["shop"]
    assert series.clock is not None
    assert series.clock.words == "business days, Monday to Friday"
    assert series.known[:, 0].tolist() == [day for day in range(40) if day % 7 < 5]
    monthly = pd.date_range("2020-01-31", periods=30, freq="ME")
    starts = pd.DataFrame({"date": monthly + pd.offsets.Day(1), "wind": range(30)})
    loads = saved(tmp_path, pd.DataFrame({"date": monthly, "load": 1.0}), "loads.csv")
    with pytest.raises(DataError, match=r"monthly, at the month's start, but client 'load' has"):
        load(loads, "wide-csv", covariates=str(saved(tmp_path, starts, "starts.csv")))
    with pytest.raises(DataError, match=r"data.calendar = 'week': .* step of .* is 1 month"):
        load(loads, "wide-csv", calendar="week")


def test_a_known_column_without_any_cell_is_refused(tmp_path: Path) -> None:
    text = "unique_id,ds,y,wind\na,2024-01-01,1,\na,2024-01-02,2,\n"
    with pytest.raises(DataError, match="misses 100% of the rows"):
        load(written(tmp_path, text), "long-csv", known="wind")


def test_texts_that_are_not_listed_are_0_where_others_are_allowed(tmp_path: Path) -> None:
    north = long(tmp_path, LONG, known="weather=sun|rain|*")["north"]
    assert north.columns == ("weather=sun", "weather=rain")
    assert north.known[0].tolist() == [0, 0]
    note = "column 'weather' is 0 in all its columns in the 3 rows with other texts than sun, rain"
    assert f"{note}, such as 'fog'" in north.notes
    for name, frame in (("north", NORTH), ("south", SOUTH)):
        (tmp_path / "folder").mkdir(exist_ok=True)
        saved(tmp_path / "folder", frame.drop(columns="unique_id"), f"{name}.csv")
    settings = {"known": "weather=sun|rain|*", "columns": "y"}
    south = load(tmp_path / "folder", "csv-folder", **settings)["south"]
    assert f"{note}, such as 'fog'" in south.notes


def test_clients_with_different_columns_are_refused(tmp_path: Path) -> None:
    data = settings_from({}).data
    clients = [
        ClientSeries("a", np.ones(3), known=np.ones((3, 1)), columns=("wind",)),
        ClientSeries("b", np.ones(3)),
    ]
    with pytest.raises(DataError, match="client 'b' has no column 'wind', but client 'a' has; all"):
        with_known_columns(clients, data, "mine:load")


def test_other_kinds_of_data_have_no_known_columns() -> None:
    data = settings_from({"data.holidays": "DE"}).data
    with pytest.raises(SettingsError, match=r"data.holidays = 'DE': for series, not for images"):
        loaded_from(data, "images")


def of_days(first: str, days: int, zone: str = "", **settings: str) -> ClientSeries:
    """Return zeros of noon of these days, with the columns that are functions of time."""
    times = pd.date_range(f"{first} 12:00", periods=days, freq="D").to_numpy("datetime64[us]")
    clock = Clock(DAY, np.timedelta64(12, "h"), utc=bool(zone))
    series = ClientSeries("a", np.zeros(days), int(times[0].astype("datetime64[D]").astype(int)))
    table = {f"data.{key}": value for key, value in settings.items()}
    data = settings_from({**table, "data.time-zone": zone}).data
    return with_calendar(replace(series, clock=clock), data)


@with_holidays
def test_holidays_are_0_and_1_with_the_day_before_and_after() -> None:
    """Corpus Christi, 30 May 2024, is free in Bavaria and not in Berlin, 31 December nowhere."""
    bavaria = of_days("2024-05-28", 5, holidays="DE-BY")
    assert bavaria.columns == ("holiday", "holiday-before", "holiday-after")
    expected = [[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert bavaria.known.tolist() == expected
    assert not of_days("2024-05-28", 5, holidays="DE-BE").known.any()
    year_end = of_days("2024-12-30", 3, holidays="DE").known
    assert year_end.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]
    # Noon in UTC is the next day in Auckland from 30 minutes past noon on, as it is 12 h ahead.
    auckland = of_days("2024-05-28", 5, zone="Pacific/Auckland", holidays="DE-BY").known
    assert auckland[:, 0].tolist() == [0, 1, 0, 0, 0]


def test_the_year_has_two_harmonics() -> None:
    """Noon of 2 July is half of a year of 365 days, and a quarter is 6:00 of 2 April."""
    series = of_days("2023-07-02", 2, calendar="year")
    assert series.columns == YEAR_COLUMNS
    np.testing.assert_allclose(series.known[0], [-1, 0, 1, 0], atol=1e-12)
    clock, data = series.clock, settings_from({"data.calendar": "year"}).data
    assert clock is not None
    quarter = replace(clock, offset=np.timedelta64(6, "h"))
    days = np.array([(np.datetime64("2023-04-02") - np.datetime64("1970-01-01")).astype(int)])
    np.testing.assert_allclose(calendar_columns(quarter, days, data)[0], [0, 1, -1, 0], atol=1e-12)


def test_the_time_is_known_as_far_as_it_is_asked_for() -> None:
    data = settings_from({"data.calendar": "year"}).data
    series = of_days("2023-07-01", 4, calendar="year")
    ahead = with_calendar(series, data, steps=3)
    assert len(ahead.future) == 3
    np.testing.assert_array_equal(ahead.known[:4], series.known)
    wind = replace(series, known=np.arange(5.0)[:, None], columns=("wind",))
    with_wind = with_calendar(wind, data, steps=3)
    assert with_wind.columns == ("wind", *YEAR_COLUMNS)
    np.testing.assert_array_equal(with_wind.known[:, 1:], ahead.known)
    assert len(with_wind.future) == 1  # the wind ends there


DAYS, WEEKS = "time,a\n2024-03-04,1\n2024-03-05,2\n", "time,a\n2024-03-04,1\n2024-03-11,2\n"


@with_holidays
@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (
            DAYS,
            {"holidays": "XX"},
            "holidays = 'XX': no country 'XX'; .*expected a code such as DE",
        ),
        (DAYS, {"holidays": "DE-XX"}, "holidays = 'DE-XX': DE has no part 'XX'; it has BB, BE, BW"),
        (WEEKS, {"holidays": "DE"}, "a step of 7 days is longer than the day"),
        ("a\n1\n2\n", {"holidays": "DE"}, "needs times with dates, and .*a.csv has none"),
        ("a\n1\n2\n", {"calendar": "year"}, "needs times with dates, and .*a.csv has none"),
    ],
)
def test_a_calendar_that_cannot_be_computed(
    tmp_path: Path, text: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(written(tmp_path, text), "wide-csv", **settings)


@pytest.mark.parametrize(
    ("name", "target", "weather", "clients"),
    [
        ("gefcom2012_wind_hourly.csv.gz", "power", "u,v,wind_speed", 7),
        (
            "beijing_air_weather_hourly.csv.gz",
            "pm25",
            "temperature,pressure,dew_point,rain,wind_speed",
            12,
        ),
    ],
)
def test_real_weather_is_read(name: str, target: str, weather: str, clients: int) -> None:
    series = list(load(real_data(name), "long-csv", columns=target, known=weather).values())
    assert len(series) == clients
    for client in series:
        assert client.columns == tuple(weather.split(","))
        assert len(client.known) >= len(client.values)
        assert np.isnan(client.known[1:]).sum() == 0


def test_the_points_of_a_real_compass_are_columns() -> None:
    path = real_data("beijing_air_weather_hourly.csv.gz")
    series = next(iter(load(path, "long-csv", columns="pm25", known="wind_direction").values()))
    assert len(series.columns) == 16
    assert set(series.known[1:].sum(axis=1)) == {1.0}
