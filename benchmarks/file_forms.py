"""Write small files in forms that people have, and say what each of them gets.

    python -m benchmarks.file_forms           # prints the table, two minutes at most
    python -m benchmarks.file_forms --page    # writes it to docs/file-forms.csv
    python -m benchmarks.file_forms --try     # also `fedproto try --quick` on what is read

Most files hold the same three hourly series. "Read" means that `fedproto data check` ends well and
that names, values and times are those that were written.
"""

from __future__ import annotations

import re
import sys
import tempfile
from calendar import month_abbr
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from typer.testing import CliRunner

from benchmarks.pages import ROOT, write_table
from benchmarks.parts import parser_of
from fedproto_app.cli.commands import app
from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.series import ClientSeries, notes_of
from fedproto_app.data.sources import load_series
from fedproto_app.report.check.doubts import doubts_about_gain, doubts_about_series
from fedproto_app.settings import settings_from
from fedproto_app.tasks.table import record_of_source

FILE = ROOT / "docs" / "file-forms.csv"
BERLIN = "Europe/Berlin"


def made_frame(zone: str | None = None) -> pd.DataFrame:
    """Return three hourly series of 60 days with a daily rhythm, around the end of summer time."""
    hours = pd.date_range("2024-10-14", periods=60 * 24, freq="h", name="time", tz=zone)
    rng, phase = np.random.default_rng(0), np.sin(np.arange(len(hours)) * np.pi / 12)
    sizes = {"north": 1200.0, "south": 2400.0, "west": 5200.0}
    noise = rng.normal(0, 20, (len(hours), len(sizes)))
    values = {name: size * (1.5 + phase) for name, size in sizes.items()}
    return pd.DataFrame(values, index=hours).add(noise).round(1)


FRAME = made_frame()
HOURS = pd.DatetimeIndex(FRAME.index)


@dataclass(frozen=True)
class Form:
    """One form of file.

    write: makes it in a folder and returns its path. expected: the series that it holds, None for
    other data, or if it can only be refused. settings: of data check. note: pattern of the words
    that a person must get if the file is read. refusal: pattern of a line that helps if the file is
    refused, "" if it must be read. answer: the settings that such a line gives to have it read.
    must: whether a form that is neither read nor helped ends the command with an error.
    """

    title: str
    write: Write
    expected: pd.DataFrame | None = field(default_factory=lambda: FRAME)
    settings: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    refusal: str = ""
    answer: Mapping[str, str] = field(default_factory=dict)
    must: bool = True


Write = Callable[[Path], Path]  # a folder → the path of what was written into it


def _file(save: Callable[[Path], object], name: str = "a.csv") -> Write:
    def write(folder: Path) -> Path:
        save(folder / name)
        return folder / name

    return write


def _text(text: str, name: str = "a.csv") -> Write:
    return _file(lambda path: path.write_text(text, encoding="utf-8"), name)


def _csv(frame: pd.DataFrame, **options: Any) -> Write:
    """options: of `DataFrame.to_csv`."""
    return _file(lambda path: frame.to_csv(path, **options))


def _long(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the frame with a row for each client and time."""
    site, when, load = names or ("unique_id", "ds", "y")
    rows = frame.rename_axis(when).reset_index().melt(when, var_name=site, value_name=load)
    return rows[[site, when, load]]


def _with_times(form: str) -> pd.DataFrame:
    return FRAME.set_axis(pd.Index(HOURS.strftime(form), name="time"))


def _as_written(form: str, decimal: str = ".", thousands: str = "") -> pd.DataFrame:
    """Return the numbers as texts. form: of a number in Python."""
    signs = str.maketrans({".": decimal, ",": thousands})
    return FRAME.map(lambda value: format(value, form).translate(signs))


def _with_a_bad_cell() -> pd.DataFrame:
    cells = FRAME.astype(str)
    cells.iloc[300, 1] = "n.d."
    return cells


SPARSE = FRAME[:-3].mul(np.arange(len(FRAME) - 3) ** 2 % 7 < 2, axis=0)  # three of seven hours
LOCAL = made_frame(BERLIN)
# The hour that comes twice is averaged, and later hours are as clocks show them.
AVERAGED = LOCAL.tz_localize(None).groupby(level=0).mean()
MONTHS = FRAME[:12].set_axis(pd.Index([f"01/{month:02d}/2024" for month in range(1, 13)]))


def _timed(times: pd.Index, frame: pd.DataFrame = FRAME) -> pd.DataFrame:
    """Return the first rows at these times."""
    return frame[: len(times)].set_axis(times)


def _days(freq: str, periods: int) -> pd.DataFrame:
    return _timed(pd.date_range("2014-01-01", periods=periods, freq=freq, name="date"))


def _dated(frame: pd.DataFrame, form: str) -> pd.DataFrame:
    return frame.set_axis(pd.DatetimeIndex(frame.index).strftime(form).rename("date"))


def _rows(frame: pd.DataFrame, *names: str) -> Write:
    return _csv(_long(frame, *names), index=False)


def _folder_of(frame: pd.DataFrame, ending: str = "csv") -> Write:
    def write(folder: Path) -> Path:
        for name in frame:
            frame[[name]].set_axis(["load"], axis=1).to_csv(folder / f"{name}.{ending}")
        return folder

    return write


def _sheet(above: list[list[str]], total: bool = False, cover: bool = False) -> Write:
    """Write the frame below these rows of an Excel sheet, behind a sheet about it if asked."""
    rows = FRAME.reset_index()
    if total:
        rows = pd.concat([rows, FRAME.sum().to_frame("Total").T.assign(time="Total")])

    def save(path: Path) -> None:
        with pd.ExcelWriter(path) as book:
            if cover:
                pd.DataFrame({"About": ["three sites", "hourly"]}).to_excel(
                    book, sheet_name="About"
                )
            options: dict[str, Any] = {"sheet_name": "Data", "index": False}
            pd.DataFrame(zip_longest(*above)).T.to_excel(book, header=False, **options)
            rows.to_excel(book, startrow=len(above), **options)

    return _file(save, "a.xlsx")


def _meters() -> pd.DataFrame:
    """Return half-hourly meters with blanks, seven decimals of seconds, a stray and a twin row."""
    value = "KWH/hh (per half hour) "
    rows = _long(HALF_HOURS, "LCLid", "DateTime", value).assign(Acorn="A")
    rows["DateTime"] = rows["DateTime"].dt.strftime("%Y-%m-%d %H:%M:%S.0000000")
    rows[value] = rows[value].map(" {} ".format)
    stray = rows[30:31].assign(DateTime="2024-10-14 15:13:41.0000000", **{value: "Null"})
    return pd.concat([rows[:31], stray, rows[50:51], rows[31:]])


def _with_more_columns(**more: float) -> pd.DataFrame:
    rows = _long(FRAME, "station", "time", "pm25").assign(**more)
    return rows[["station", *more, "time", "pm25"]]


def _in_parts(with_year: bool = True) -> pd.DataFrame:
    """Return the frame with its times in columns: all parts in numbers, or a date and an hour."""
    times = {part: getattr(HOURS, part) for part in ("year", "month", "day", "hour")}
    if not with_year:
        times = {"date": HOURS.strftime("%Y-%m-%d"), "hour": HOURS.hour}
    return pd.concat([pd.DataFrame(times), FRAME.reset_index(drop=True)], axis=1)


def _day_rows() -> pd.DataFrame:
    table = FRAME.assign(day=HOURS.strftime("%Y-%m-%d"), hour=HOURS.hour)
    table = table.melt(["day", "hour"], var_name="site")
    return table.pivot(index=["site", "day"], columns="hour", values="value").add_prefix("hh_")


def _year_rows() -> pd.DataFrame:
    """Return the first client's values with a row per year and a column per month."""
    months = [name.lower() for name in month_abbr[1:]]
    values = FRAME["north"].to_numpy()[:360].reshape(30, 12)
    return pd.DataFrame(values, pd.Index(range(1990, 2020), name="year"), months)


def _series_in_rows() -> pd.DataFrame:
    table = FRAME[:200].T.set_axis([f"d_{n}" for n in range(1, 201)], axis=1)
    return table.rename_axis("id").assign(dept="food").set_index("dept", append=True)


def _gappy() -> pd.DataFrame:
    frame = FRAME.copy()
    frame.iloc[300:900, 0], frame.iloc[1200:, 1], frame.iloc[::2, 2] = np.nan, np.nan, np.nan
    return frame


def _changed(column: int, rows: slice, value: float) -> pd.DataFrame:
    frame = FRAME.copy()
    frame.iloc[rows, column] = value
    return frame


def _images(**sites: tuple[int, str]) -> Write:
    """Write 24 images of two classes for each site. sites: the pixels of a side, and Pillow's mode.

    One in eight has the site's size and mode. The others are 12 grey pixels wide and high.
    """

    def write(folder: Path) -> Path:
        rng = np.random.default_rng(0)
        for site, (side, mode) in sites.items():
            for name in ("bars", "spot"):
                (folder / site / name).mkdir(parents=True)
                for number in range(12):
                    pixels = rng.integers(0, 255, (side, side), dtype=np.uint8)
                    image = Image.fromarray(pixels)
                    if mode == "I;16":
                        image = Image.fromarray(pixels.astype(np.uint16) * 257)
                    image.convert(mode).save(folder / site / name / f"{number}.png")
        return folder

    return write


def _arrays(
    labels: tuple[str, ...] = ("walk", "sit"), missing: bool = False, images: bool = False
) -> Write:
    """Write labelled sequences of three clients, or grey images, as x, y and client."""
    rng = np.random.default_rng(0)
    moves, pixels = rng.normal(size=(60, 16, 2)), rng.integers(0, 255, (60, 8, 8))
    moves[7, 3, 1] = np.nan if missing else 0.0
    values = pixels.astype(np.uint8) if images else moves.astype(np.float32)
    clients = np.repeat(["a", "b", "c"], 20)
    arrays: dict[str, Any] = {"x": values, "y": np.resize(labels, 60), "client": clients}
    return _file(lambda path: np.savez(path, **arrays), "a.npz")


HALF_HOURS = _timed(pd.date_range("2024-10-14", periods=len(FRAME), freq="30min", name="time"))
DAILY, MONTH_STARTS = _days("D", 480), _days("MS", 132)
SHOPS, QUARTERS = DAILY[pd.DatetimeIndex(DAILY.index).day_of_week < 6], _days("QS", 104)
OF_QUARTERS = pd.PeriodIndex(QUARTERS.index, freq="Q")
YEARS = _timed(pd.Index(range(1900, 2024), name="year")).set_axis(["DE", "NA", "NO"], axis=1)
LATE = HOURS + pd.to_timedelta(np.random.default_rng(0).choice([0, 0, 1, 2, 4], len(HOURS)), "s")
EXCEL_DAYS = ((HOURS - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)).to_numpy().round(9)
SUBSET = _long(FRAME)[::97]
STORES = FRAME.set_axis(["1", "2", "3"], axis=1)
COPIES = FRAME.assign(west=FRAME["north"])
PARTS = FRAME.assign(total=FRAME.sum(axis=1).round(1))
GIANT = pd.concat(
    [FRAME, FRAME.add_suffix(" 2") + 100, FRAME[["west"]].set_axis(["plant"], axis=1) * 100], axis=1
).round(1)
TWO_NAMES = _long(FRAME, "store", "date", "units").assign(item="tea")
TWO_NAMES = pd.concat([TWO_NAMES, TWO_NAMES.assign(item="milk", units=TWO_NAMES["units"] + 1)])
WEATHER = _long(FRAME).assign(temperature=np.tile(10 + 5 * np.sin(HOURS.hour / 4), 3).round(1))
WEATHER.loc[WEATHER["ds"] >= HOURS[-24], "y"] = np.nan
LOGGER = (
    '"TOA5","st7","CR1000","77","OS.32","CPU:x.CR1","9","hourly"\n"TIMESTAMP","north","south","west"\n'
    '"TS","kW","kW","kW"\n"","Avg","Avg","Avg"\n' + FRAME.to_csv(header=False)
)
MATLAB_DAYS = (HOURS.as_unit("s").asi8 / 86_400 + 719_529).round(6)
ABSENT = _changed(0, slice(9, 12), np.nan)
INFLUX = _long(FRAME.tz_localize("UTC"), "host", "_time", "_value").assign(
    result=None, table=0, _start=HOURS[0], _stop=HOURS[-1]
)[["result", "table", "_start", "_stop", "_time", "_value", "host"]]
INFLUX = INFLUX.set_axis(pd.Index([None] * len(INFLUX)))
LAB = _long(STORES, "subject_id", "charttime", "valuenum").assign(unit="mmHg").astype(str)
LAB.iloc[7, 2] = "<5"
PROFILE = FRAME.set_axis(HOURS.strftime("%d.%m.%Y %H:%M").rename("Von")).assign(Status="W")
PROFILE.insert(0, "Bis", (HOURS + pd.Timedelta(hours=1)).strftime("%d.%m.%Y %H:%M"))
AS_STEPS = "data.time-unit=step"
LINES = FRAME.to_csv(lineterminator="\n").splitlines()

# Situations that people report of tools like this, with files of our making.
REPORTED = (
    Form("months, dated on the 1st", _rows(MONTH_STARTS), MONTH_STARTS, refusal=AS_STEPS),
    Form("months: `2014-01`", _rows(_dated(MONTH_STARTS, "%Y-%m")), MONTH_STARTS, refusal=AS_STEPS),
    Form(
        "quarters: `1998Q1`, with other names",
        _rows(_timed(OF_QUARTERS.astype(str)), "region", "quarter", "visitors"),
        QUARTERS,
        refusal=AS_STEPS,
    ),
    Form("shops that are closed on Sundays", _csv(_dated(SHOPS, "%d.%m.%Y"), sep=";"), SHOPS),
    Form("years, and a country `NA`", _rows(YEARS, "country", "year", "tonnes"), YEARS),
    Form("a logger that is late by seconds", _rows(_timed(LATE)), FRAME, note="rounded"),
    Form(
        "meters: `Null`, blanks, `.0000000`, a stray row and a row twice",
        _csv(_meters(), index=False),
        HALF_HOURS.rename_axis("DateTime"),
        note="left out",
    ),
    Form(
        "date and time in two columns, `?` for missing",
        _text(
            _changed(0, slice(9, 12), np.nan)
            .set_axis(HOURS.strftime("%d/%m/%Y;%H:%M:%S").rename("Date;Time"))
            .to_csv(sep=";", na_rep="?", quoting=3, escapechar="\\")
            .replace("\\", "")
        ),
        _changed(0, slice(9, 12), np.nan),
        refusal="join them into one, such as",
    ),
    Form("a folder of .txt files", _folder_of(FRAME, "txt"), refusal="rename them to .csv"),
    Form(
        "a row per day: `hh_0`, `hh_1`, …",
        _csv(_day_rows()),
        refusal="a row for each time|data.unfold=",
    ),
    Form(
        "a row per series: `d_1`, `d_2`, …",
        _csv(_series_in_rows()),
        None,
        refusal="turn the table|data.unfold=",
    ),
    Form(
        "offsets that change: `+02:00`, `+01:00`",
        _csv(LOCAL),
        LOCAL.tz_convert(None),
        note="offset from UTC changes",
    ),
    Form(
        "decimal commas, and zeros before a client existed",
        _csv(_changed(2, slice(0, 360), 0.0), sep=";", decimal=","),
        _changed(2, slice(0, 360), 0.0),
        note="15 days of zeros",
    ),
    Form(
        "Excel's days: `45579.041666667`",
        _csv(_timed(pd.Index(EXCEL_DAYS, name="Datum")), sep=";"),
        note="Excel's days",
    ),
    Form(
        "Excel with a title above and a total below",
        _sheet([["Consumption, all sites"], [], ["", "printed", "2024-12-31"], []], total=True),
        refusal="names seem to stand in row 5",
    ),
    Form(
        "`North` and `North ` at the same times",
        _rows(FRAME.set_axis(["North", "North ", "West"], axis=1), "site", "time", "load"),
        None,
        refusal="is written 'North' and 'North '",
    ),
    Form(
        "two columns that name a client",
        _csv(TWO_NAMES, index=False),
        None,
        note="join",
        refusal="join",
    ),
    Form(
        "comments above the names",
        _text("# simulated\n# lat,47.1,lon,8.5\n" + FRAME.to_csv()),
        refusal="seem to stand in line 3",
    ),
    Form("a logger's four lines above", _text(LOGGER), refusal="in line 2"),
    Form(
        "-9999 where a value is missing",
        _csv(_changed(0, slice(400, 412), -9999.0)),
        _changed(0, slice(400, 412), -9999.0),
        note="if it stands for a missing value",
    ),
    Form(
        "counters that only rise",
        _csv(FRAME.cumsum().round(1)),
        FRAME.cumsum().round(1),
        note="only rise",
    ),
    Form("long gaps", _csv(_gappy()), _gappy(), note="values are missing"),
    Form("some rows twice", _csv(pd.concat([_long(FRAME), SUBSET]), index=False), note="repeat"),
    Form(
        "some rows twice, with other values",
        _csv(pd.concat([_long(FRAME), SUBSET.assign(y=SUBSET["y"] + 1)]), index=False),
        None,
        refusal="comes twice with different values",
    ),
    Form(
        "a single series: `timestamp,value`",
        _csv(FRAME[["north"]].set_axis(["value"], axis=1).rename_axis("timestamp")),
        FRAME[["north"]].set_axis(["value"], axis=1),
    ),
    Form("60 hours", _rows(FRAME[:60]), FRAME[:60], note="too little history"),
    Form("weather after the last value", _csv(WEATHER, index=False), FRAME[:-24]),
    Form("a copy of another client", _folder_of(COPIES), COPIES, note="has the values of"),
    Form(
        "images of two sizes",
        _images(north=(12, "L"), south=(16, "L")),
        None,
        refusal="data.image-size",
    ),
    Form(
        "images of 16 bits at a site",
        _images(north=(12, "L"), south=(12, "I;16")),
        None,
        refusal="more than 8 bits a pixel",
    ),
    Form(
        "a site in colour among grey ones",
        _images(north=(12, "L"), south=(12, "RGB")),
        None,
        note="are read as colour",
    ),
    Form(
        "classes `walk`, `Walk` and `nan`",
        _arrays(("walk", "Walk", "nan")),
        None,
        note="spelt almost alike",
    ),
    Form("a missing reading in a sequence", _arrays(missing=True), None, refusal="is nan"),
    Form(
        "`station,lat,lon,time,pm25`",
        _csv(_with_more_columns(lat=50.0, lon=8.0), index=False),
        refusal="which column is to be forecast: lat, lon, pm25",
        answer={"data.columns": "pm25"},
    ),
    Form("`year,month,day,hour`", _csv(_in_parts(), index=False), refusal="pd.to_datetime"),
    Form(
        "`date,store,sales`, stores 1 to 3",
        _csv(
            _long(_timed(DAILY.index, STORES), "store", "date", "sales")[
                ["date", "store", "sales"]
            ],
            index=False,
        ),
        _timed(DAILY.index, STORES),
    ),
    Form("pandas' index in the first column", _csv(_long(FRAME)), note="numbers the rows"),
    Form(
        "Excel with a title above",
        _sheet([["Load 2024"], [], []]),
        refusal="names seem to stand in row 4",
    ),
    Form(
        "features, a label and a site in each row",
        _csv(
            pd.DataFrame(np.random.default_rng(0).normal(size=(90, 4)).round(3))
            .add_prefix("x")
            .assign(label=[0, 1, 2] * 30)
            .set_axis(pd.Index(["oslo", "rome"] * 45, name="site"))
        ),
        None,
        refusal="a table of features with a label",
    ),
    Form("images of several sites in an npz: `x, y, client`", _arrays(images=True), None),
    # Forms like these that nobody reported.
    Form("business days", _csv(_days("B", 480)), _days("B", 480)),
    Form("weeks, dated on Sundays", _rows(_days("W-SUN", 300)), _days("W-SUN", 300)),
    Form(
        "month ends: `31.01.2014`",
        _csv(_dated(_days("ME", 132), "%d.%m.%Y"), sep=";"),
        _days("ME", 132),
        refusal=AS_STEPS,
    ),
    Form(
        "quarters: `1998-Q1`",
        _csv(_timed(OF_QUARTERS.strftime("%Y-Q%q").rename("date"))),
        QUARTERS,
        refusal=AS_STEPS,
        must=False,
    ),
    Form(
        "hours 1 to 24: `14.10.2024 24:00`",
        _csv(
            FRAME[1:].set_axis(
                (HOURS[1:] - pd.Timedelta(hours=1)).strftime("%d.%m.%Y ")
                + pd.Index([f"{hour or 24:02d}:00" for hour in HOURS[1:].hour], name="time")
            )
        ),
        FRAME[1:],
        must=False,
    ),
    Form("`date,hour`", _csv(_in_parts(with_year=False), index=False), refusal="join", must=False),
    Form("`14-Oct-2024 13:00`", _csv(_with_times("%d-%b-%Y %H:%M")), must=False),
    Form(
        "milliseconds since 1970",
        _csv(FRAME.set_axis(HOURS.as_unit("ms").asi8).rename_axis("time")),
    ),
    Form(
        "umlauts in the encoding of Windows",
        _csv(FRAME.rename(columns={"south": "Süd"}), encoding="cp1252"),
        FRAME.rename(columns={"south": "Süd"}),
        refusal="UTF-8",
    ),
    Form(
        "a byte order mark, and lines of Windows",
        _csv(FRAME, lineterminator="\r\n", encoding="utf-8-sig"),
    ),
    Form("blanks after the commas", _text(FRAME.to_csv().replace(",", ", ")), must=False),
    Form(
        "`-` where a value is missing",
        _csv(_changed(1, slice(9, 12), np.nan), na_rep="-"),
        _changed(1, slice(9, 12), np.nan),
        refusal="data.missing-values=-",
        answer={"data.missing-values": "-"},
    ),
    Form(
        "a unit in each cell: `10.2 kW`",
        _csv(FRAME.map("{} kW".format)),
        None,
        refusal="leave 'kW' out of the cells",
    ),
    Form("Excel whose second sheet has the data", _sheet([], cover=True), note="data.sheet"),
    Form(
        "the names again in the middle, as of joined files",
        _text("\n".join([*LINES[:700], LINES[0], *LINES[700:], ""])),
        note="repeat the names of the columns: 1, at line 701",
    ),
    Form(
        "a semicolon at the end of each line",
        _text(FRAME.to_csv(sep=";").replace("\n", ";\n")),
        note="is empty: left out",
    ),
    Form(
        "a row per year: `year,jan,…,dec`",
        _csv(_year_rows()),
        _timed(pd.date_range("1990-01-01", periods=360, freq="MS"))[["north"]].set_axis(
            ["a"], axis=1
        ),
        refusal="data.unfold=jan,dec",
        answer={"data.unfold": "jan,dec"},
    ),
    Form("a total beside its parts", _csv(PARTS), PARTS, note="is the sum of"),
    Form("a giant beside small ones", _csv(GIANT), GIANT, note="of the median client"),
    Form(
        "a load and its weather: `time,load,temperature`",
        _csv(FRAME[["north", "south"]].set_axis(["load", "temperature"], axis=1)),
        FRAME[["north"]].set_axis(["load"], axis=1),
        {"data.columns": "load", "data.known": "temperature"},
    ),
    # As programs of several trades export them.
    Form(
        "Home Assistant: `unavailable`",
        _csv(
            _long(ABSENT, "entity_id", "last_changed", "state"), index=False, na_rep="unavailable"
        ),
        ABSENT,
        refusal="data.missing-values=unavailable",
        answer={"data.missing-values": "unavailable"},
    ),
    Form(
        "InfluxDB's annotated CSV",
        _text(f"#group{',false' * 7}\n#datatype{',string' * 7}\n{INFLUX.to_csv()}"),
        refusal="which column is to be forecast: result, table, _value",
        answer={"data.columns": "_value"},
    ),
    Form(
        "Prometheus: `1728864000.000`",
        _csv(
            _long(
                FRAME.set_axis(HOURS.as_unit("s").asi8 / 1.0), "instance", "timestamp", "value"
            ).assign(metric="load"),
            index=False,
        ),
    ),
    Form(
        "Grafana: `sep=;` above, all cells quoted",
        _text("sep=;\n" + FRAME.to_csv(sep=";", quoting=1)),
        note="left out above the names of the columns: line 1",
    ),
    Form(
        "a meter operator's profile: titles, `Von;Bis;…;Status`",
        _text("Lastgang;;;;;\nEinheit;kWh;;;;\n" + PROFILE.to_csv(sep=";", decimal=",")),
        refusal="data.clients=north,south,west",
        answer={"data.clients": "north,south,west"},
    ),
    Form(
        "a hospital's readings: `<5`", _csv(LAB, index=False), None, refusal="'<5' is not a number"
    ),
    Form(
        "MATLAB's days: `739539.041667`",
        _csv(_timed(pd.Index(MATLAB_DAYS, name="t"))),
        None,
        refusal="'t' rises by 0.0416",
    ),
    Form("R's write.table", _csv(FRAME, sep=" ", quoting=2), None, refusal="write.csv"),
    Form(
        "JSON",
        _text(_long(FRAME).to_json(date_format="iso"), "a.json"),
        None,
        refusal="write it with DataFrame.to_csv",
    ),
)

FORMS = (
    Form("a column per client", _csv(FRAME)),
    Form("a row per client and time: `unique_id,ds,y`", _csv(_long(FRAME), index=False)),
    Form(
        "the same with other names, by time",
        _csv(_long(FRAME, "site", "when", "kW").sort_values("when", kind="stable"), index=False),
    ),
    Form("a folder with a file per client", _folder_of(FRAME)),
    Form("gzipped", _file(FRAME.to_csv, "a.csv.gz")),
    Form("Parquet", _file(_long(FRAME).to_parquet, "a.parquet")),
    Form("Excel", _file(FRAME.to_excel, "a.xlsx")),
    Form("`10,2;20,1`", _csv(FRAME, sep=";", decimal=",")),
    Form('`"1,100.5"`', _csv(_as_written(",.1f", ".", ","))),
    Form("`1.100,5`", _csv(_as_written(",.1f", ",", "."), sep=";")),
    Form(
        '`"1,100"` in all cells',
        _csv((FRAME.round() + 1000).map("{:,.0f}".format)),
        None,
        refusal="set data.decimal to point or comma",
    ),
    Form("`31.01.2024 13:00`", _csv(_with_times("%d.%m.%Y %H:%M"))),
    Form("`1/31/2024 1:00 PM`", _csv(_with_times("%m/%d/%Y %I:%M %p"))),
    Form(
        "`01/02/2024`, never a day above 12",
        _csv(MONTHS.rename_axis("time")),
        None,
        refusal="write the year first",
    ),
    Form(
        "times with an offset: `+01:00`",
        _csv(FRAME.tz_localize("Etc/GMT-1")),
        FRAME.shift(-1, freq="h"),
    ),
    Form("seconds since 1970", _csv(FRAME.set_axis(HOURS.as_unit("s").asi8).rename_axis("time"))),
    Form("rows in any order", _csv(FRAME.sample(frac=1, random_state=0))),
    Form("a row of units", _text(FRAME.to_csv().replace("\n", "\n,kW,kW,kW\n", 1))),
    Form(
        "no header",
        _csv(FRAME, header=False),
        FRAME.set_axis([f"column-{n}" for n in (2, 3, 4)], axis=1),
    ),
    Form(
        "rows left out that mean zero",
        _csv(_long(SPARSE).query("y > 0"), index=False),
        SPARSE,
        {"data.missing": "zero"},
    ),
    Form("local times, summer time ends", _csv(LOCAL.tz_localize(None)), AVERAGED),
    Form(
        "local times with their zone",
        _csv(LOCAL.tz_localize(None)),
        LOCAL.tz_convert(None),
        {"data.time-zone": BERLIN},
    ),
    Form("a column of texts", _csv(FRAME.assign(note=["dry", "wet"] * 720))),
    Form(
        "a cell that is no number, further down",
        _csv(_with_a_bad_cell()),
        None,
        refusal="line 302: 'n.d.' is not a number",
    ),
    *REPORTED,
)


GRADES = ("read", "read, with a note", "refused in one line", "not good")
READ, NOTED, REFUSED, BAD = GRADES


@dataclass(frozen=True)
class Outcome:
    """What a form gets. grade: one of the constants above. says: the lines for a person."""

    form: Form
    grade: str
    says: str

    @property
    def row(self) -> list[str]:
        """The form's row in the file."""
        settings = " ".join(f"--set {key}={value}" for key, value in self.form.settings.items())
        return [self.form.title.replace("`", ""), settings, self.grade, self.says]


def outcome_of(form: Form, folder: Path, with_trial: bool = False) -> Outcome:
    """Write a file of this form into an empty folder and read it."""
    path = form.write(folder)
    changes = [word for key, value in form.settings.items() for word in ("--set", f"{key}={value}")]
    run = CliRunner().invoke(app, ["data", "check", str(path), *changes], env={"COLUMNS": "9999"})
    lines = [line.strip() for line in run.output.splitlines()]
    if isinstance(run.exception, FedProtoError) or run.exit_code:
        refused = next((line for line in lines if line.startswith("refused")), "")
        reason = refused.removeprefix("refused ") or str(run.exception)
        is_good = bool(form.refusal and re.search(form.refusal, reason))
        if is_good and form.answer:
            is_good = form.expected is not None and _equal(
                _read(path, form.answer)[0], form.expected
            )
        return Outcome(form, REFUSED if is_good else BAD, _shown(reason, path))
    notes = [line.removeprefix("warning ") for line in lines if line.startswith("warning")]
    is_right = form.expected is not None or bool(form.note) or not form.refusal
    if form.expected is not None:
        clients, notes = _read(path, form.settings)
        is_right = _equal(clients, form.expected)
    is_right &= bool(re.search(form.note, "; ".join(notes)))
    if with_trial and is_right:
        trial = ["try", str(path), "--quick", "--folder", str(folder / "runs"), *changes]
        is_right = CliRunner().invoke(app, trial).exit_code == 0
    says = "; ".join(notes) or ("" if is_right else "other names, times or values")
    return Outcome(form, BAD if not is_right else NOTED if notes else READ, _shown(says, path))


def _shown(text: str, path: Path) -> str:
    """Return a message in one line, without the folder's name."""
    for name in (f"{path}: ", f"{path}/", f"{path.name}/" if path.is_dir() else ""):
        text = text.replace(name, "") if name else text
    return " ".join(text.replace(str(path), path.name).split())


def _read(path: Path, settings: Mapping[str, str]) -> tuple[list[ClientSeries], list[str]]:
    """Return the clients of a file and the notes that a person gets about them."""
    reading = reading_of(path, settings)
    table = {**reading.all_settings, **reading.fitting(settings), "data.path": str(path)}
    data = settings_from(table).data
    if not record_of_source(data).forecasts:
        return [], []
    clients = load_series(data)
    doubts = [*doubts_about_gain(clients), *doubts_about_series(clients, data)]
    return clients, [*reading.notes, *notes_of(clients), *reading.left_out, *doubts]


def _equal(clients: list[ClientSeries], expected: pd.DataFrame) -> bool:
    """Return whether the clients have the expected names, and values at the expected times."""
    if [client.name for client in clients] != list(expected):
        return False
    for client in clients:
        column = expected[client.name].dropna()
        places = np.flatnonzero(np.isfinite(client.values))
        positions = (client.start + places).tolist()
        times: list[object] = [*positions]
        if client.clock is not None:
            texts = map(client.clock.time, positions)
            stamps = [pd.Period(t).start_time if "Q" in t else pd.Timestamp(t) for t in texts]
            is_year = column.index.dtype.kind == "i"
            times = [time.year if is_year else time.tz_localize(None) for time in stamps]
        if times != column.index.tolist():
            return False
        if not np.array_equal(client.values[places], column):
            return False
    return True


def main() -> int:
    """Return 1 if a form that must be read or helped is not."""
    parser = parser_of(__doc__)
    parser.add_argument("--page", action="store_true", help=f"write the table to {FILE.name}")
    parser.add_argument("--try", action="store_true", dest="trial", help="also run a trial of each")
    arguments = parser.parse_args()
    outcomes = []
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(
                outcome_of(form, Path(folder), arguments.trial and form.expected is not None)
            )
    rows = [o.row for o in sorted(outcomes, key=lambda o: GRADES.index(o.grade))]
    print(*map(" | ".join, rows), sep="\n")
    if wrong := [o.form.title for o in outcomes if o.grade == BAD and o.form.must]:
        print(f"not as expected: {', '.join(wrong)}", file=sys.stderr)
        return 1
    if arguments.page:
        write_table(FILE, [["form", "settings", "outcome", "message"], *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
