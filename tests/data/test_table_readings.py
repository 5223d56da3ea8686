"""Forms of tables that people have. Each is read as its author means it, with notes on what was
done to it, or refused in one line with the option that reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from tests.data import made_tables
from tests.data.made_tables import written

Rows = Callable[[int, int], str]  # of a client and an hour since 2024-01-01 00:00
HOURS = pd.date_range("2024-01-01", periods=60, freq="h")


def read(path: Path, answers: dict[str, object]) -> tuple[list[ClientSeries], list[str]]:
    """Return the clients of a file that is read with these answers, and all notes on them."""
    return made_tables.read(path, answers)[1:]


def rows(cells: Rows, clients: int = 3) -> str:
    return "\n".join(cells(c, h) for c in range(clients) for h in range(len(HOURS))) + "\n"


def value(client: int, hour: int) -> float:
    return 10 * client + hour % 24 + 0.5


def comma(number: float) -> str:
    return str(number).replace(".", ",")


def wide(form: str = "%Y-%m-%d %H:%M", sign: str = ",") -> str:
    lines = (
        [f"{time:{form}}", *(str(value(c, h)) for c in range(3))] for h, time in enumerate(HOURS)
    )
    return "".join(sign.join(line) + "\n" for line in lines)


def hour_24(client: int, hour: int) -> str:
    time = HOURS[hour]
    shown = (
        f"{time - pd.Timedelta('1h'):%Y-%m-%d} 24:00"
        if time.hour == 0
        else f"{time:%Y-%m-%d %H:%M}"
    )
    return f"c{client},{shown},{value(client, hour)}"


LONG = "unique_id,ds,y\n"
# The text of a file, the answers of a person, and the notes on how it was read.
READ: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "comments above": (
        f"# made by hand\n# a, b, c, d\ntime,c0,c1,c2\n{wide()}",
        {},
        ["left out above the names of the columns: lines 1 to 2"],
    ),
    "a title and a blank line": (
        f"Report of loads\n\ntime,c0,c1,c2\n{wide()}",
        {},
        ["left out above the names of the columns: lines 1 to 2"],
    ),
    "a logger's lines": (
        f'"TOA5","x"\ntime,c0,c1,c2\nTS,kW,kW,kW\n,Avg,Avg,Avg\n{wide()}',
        {},
        [
            "left out above the names of the columns: line 1",
            "the rows below the header are taken for units: TS, kW, kW, kW",
        ],
    ),
    "a line of as many cells above": (
        f"a,b,c,d\ntime,c0,c1,c2\n{wide()}",
        {"data.header": 2},
        ["left out above the names of the columns: line 1"],
    ),
    "date and time of the day": (
        "Date;Time;c0;c1;c2\n" + wide("%d.%m.%Y;%H:%M:%S", ";"),
        {},
        ["'Date' and 'Time' are joined into times, such as '01.01.2024 00:00:00'"],
    ),
    "date and hour, which is no client": (
        "date,hour,c0,c1,c2\n" + wide("%Y-%m-%d,%-H"),
        {},
        ["'date' and 'hour' are joined into times, such as '2024-01-01 00:00'"],
    ),
    "year, month, day, hour": (
        "No,year,month,day,hour,pm25,station\n"
        + rows(lambda c, h: f"{h},{HOURS[h]:%Y,%-m,%-d,%-H},{value(c, h)},c{c}"),
        {"data.columns": "pm25"},
        [
            "column 'No' rises by 1 in each row, as row numbers do: left out",
            "'year' and 'month' and 'day' and 'hour' are joined into times, such as '2024-01-01 "
            "00:00'",
        ],
    ),
    "hour 24": (
        LONG + rows(hour_24),
        {},
        ["times at 24:00, read as 00:00 of the next day: 9"],
    ),
    "Excel's days": (
        "Datum;c0;c1;c2\n"
        + "".join(
            f"{45292 + h / 24:.9f};" + ";".join(str(value(c, h)) for c in range(3)) + "\n"
            for h in range(60)
        ),
        {},
        ["column 'Datum' holds Excel's days: 45292.000000000 is 2024-01-01 00:00:00"],
    ),
    "a list that SAP printed": (
        f"{'-' * 30}\n|Werk|Zeit            | Menge|\n{'-' * 30}\n"
        + rows(lambda c, h: f"|c{c}  |{HOURS[h]:%d.%m.%Y %H:%M}| {comma(value(c, h))} |")
        + "-" * 30,
        {},
        ["'0,5' in line 2 is read as 0.5, and other numbers likewise"],
    ),
    "two columns name a client": (
        "shop,item,ds,y\n" + rows(lambda c, h: f"c,{c},{HOURS[h]},{value(c, h)}"),
        {"data.client-column": "shop,item"},
        ["'shop' and 'item' are joined into names of the clients, such as 'c/0'"],
    ),
    "two columns name a client, by time": (
        "shop,item,ds,y\n"
        + "".join(
            f"{'ab'[c % 2]},{'xy'[c // 2]},{time},{value(c, h)}\n"
            for h, time in enumerate(HOURS)
            for c in range(4)
        ),
        {},
        ["'shop' and 'item' are joined into names of the clients, such as 'a/x'"],
    ),
    "a row a day with a column an hour": (
        "id,day,"
        + ",".join(f"h_{hour}" for hour in range(24))
        + "\n"
        + "".join(
            f"c{c},2024-01-{day + 1:02d}," + ",".join(str(value(c, h)) for h in range(24)) + "\n"
            for c in range(3)
            for day in range(5)
        ),
        {"data.unfold": "h_0,h_23", "data.client-column": "id"},
        ["24 columns are read as values 1:00:00 apart"],
    ),
    "blanks around names and cells, Null": (
        "unique_id , ds, y \n"
        + rows(lambda c, h: f" c{c} , {HOURS[h]} , {'Null' if h == 7 else value(c, h)} "),
        {},
        [],
    ),
    "the names again": (
        f"time,c0,c1,c2\n{wide()}time,c0,c1,c2\n",
        {},
        ["rows left out that repeat the names of the columns: 1, at line 62"],
    ),
    "a semicolon at the end of each line": (
        f"time;c0;c1;c2;\n{wide(sign=';')}".replace("5\n", "5;\n"),
        {},
        ["the last column has no name and is empty: left out"],
    ),
    "rows twice": (
        LONG + 2 * rows(lambda c, h: f"c{c},{HOURS[h]},{value(c, h)}"),
        {},
        [
            "rows left out that repeat the time and values of another: 180",
        ],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_forms_that_are_read(case: str, tmp_path: Path) -> None:
    text, answers, notes = READ[case]
    clients, notes_said = read(written(tmp_path, text), answers)
    assert notes_said == notes
    for number, client in enumerate(clients):
        assert client.start == 24 * 365 * 54 + 24 * 13  # 2024-01-01 00:00, 13 leap days since 1970
        expected = [value(number, hour) for hour in range(len(client.values))]
        is_missing = np.isnan(client.values)
        np.testing.assert_array_equal(client.values[~is_missing], np.array(expected)[~is_missing])
        assert np.flatnonzero(is_missing).tolist() == ([7] if "Null" in case else [])
        assert len(client.values) in (60, 120)


def test_codes_and_texts_that_mean_missing(tmp_path: Path) -> None:
    lines = [f"{time},{h % 24},{h % 24}" for h, time in enumerate(HOURS)]
    lines[7] = f"{HOURS[7]},-999.0,n.d."
    path = written(tmp_path, "time,a,b\n" + "\n".join(lines))
    with pytest.raises(DataError, match=r"column 'b', line 9: 'n\.d\.' is not a number"):
        read(path, {})
    clients, notes = read(path, {"data.missing-values": "-999,n.d."})
    assert notes == ["cells with -999, n.d. that are read as missing values: 2"]
    assert [np.flatnonzero(np.isnan(client.values)).tolist() for client in clients] == [[7], [7]]
    comma = written(tmp_path, path.read_text().replace(",", ";").replace(".0", ",0"), "b.csv")
    clients, _ = read(comma, {"data.missing-values": "-999,n.d."})
    assert [np.flatnonzero(np.isnan(client.values)).tolist() for client in clients] == [[7], [7]]


def test_months_in_columns_are_no_clients(tmp_path: Path) -> None:
    months = "jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec"
    years = "".join(f"{year},{','.join(map(str, range(12)))}\n" for year in range(1990, 2020))
    path = written(tmp_path, f"year,{months}\n{years}")
    with pytest.raises(DataError, match=r"in time\? --set data\.unfold=jan,dec reads"):
        read(path, {})
    (client,), _ = read(path, {"data.unfold": "jan,dec"})
    assert client.values.tolist() == 30 * list(range(12))
    assert client.clock is not None
    assert client.clock.rhythm == "1 month"
    assert client.when(0) == "1990-01-01"


def test_a_unit_in_a_cell_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "time,a\n2024-01-01,10.2 kW\n2024-01-02,9 kW\n")
    with pytest.raises(DataError, match=r"but 10\.2 and a unit: .* leave 'kW' out of the cells"):
        read(path, {"data.clients": "a"})


SERIES = "id,dept,store," + ",".join(f"d_{n}" for n in range(1, 31)) + "\n"
SERIES += "".join(
    f"s{n},x,{n % 2}," + ",".join(map(str, range(n, n + 30))) + "\n" for n in range(4)
)


@pytest.mark.parametrize("names", ["h_0 h_23", "00:00 23:00"])
def test_hours_in_columns_are_no_clients(names: str, tmp_path: Path) -> None:
    first, last = names.split()
    form = "h_{}" if first == "h_0" else "{:02d}:00"
    header = ",".join(["day", *map(form.format, range(24))])
    days = "".join(f"2024-01-{d:02d},{','.join(map(str, range(24)))}\n" for d in range(1, 31))
    path = written(tmp_path, f"{header}\n{days}")
    with pytest.raises(DataError, match=rf"in time\? --set data\.unfold={first},{last} reads"):
        read(path, {})
    (client,), _ = read(path, {"data.unfold": f"{first},{last}"})
    assert client.name == "a"  # of the file
    assert client.values.tolist() == 30 * list(range(24))


def test_series_in_rows_name_the_option_that_reads_them(tmp_path: Path) -> None:
    path = written(tmp_path, SERIES)
    with pytest.raises(DataError, match=r"--set data\.unfold=d_1,d_30 .* --clients-from id names"):
        read(path, {})
    clients, _ = read(path, {"data.unfold": "d_1,d_30", "data.client-column": "id"})
    assert [client.name for client in clients] == ["s0", "s1", "s2", "s3"]
    assert [client.values.tolist() for client in clients] == [
        list(range(n, n + 30)) for n in range(4)
    ]
    with pytest.raises(DataError, match="line 3 has the client of an earlier row"):
        read(path, {"data.unfold": "d_1,d_30", "data.client-column": "dept"})


def test_series_in_rows_below_dates(tmp_path: Path) -> None:
    dates = pd.date_range("2024-01-01", periods=30).strftime("%Y-%m-%d")
    text = SERIES.partition("\n")[2]
    path = written(tmp_path, f"id,dept,store,{','.join(dates)}\n{text}")
    with pytest.raises(DataError, match=r"--set data\.unfold=2024-01-01,2024-01-30 reads them"):
        read(path, {})
    answers = {"data.unfold": "2024-01-01,2024-01-30", "data.client-column": "id"}
    clients, _ = read(path, answers)
    assert [(client.start, len(client.values)) for client in clients] == [(19723, 30)] * 4


@pytest.mark.parametrize(
    ("text", "answers", "message"),
    [
        (
            "id,day,a,b,c,d,e\n" + "".join(f"x,2024-01-{d:02d},1,2,3,4,5\n" for d in range(1, 9)),
            {"data.unfold": "a,e", "data.time-unit": "iso"},
            "",
        ),
        (
            "id,day,a,b,c,d,e,f,g\n" + "".join(f"x,{d},1,2,3,4,5,6,7\n" for d in HOURS[:9]),
            {"data.unfold": "a,g"},
            r"7 columns do not divide the time between two rows, 1:00:00, into equal steps",
        ),
        (
            "store,item,ds,y\n" + "a/b,c,2024-01-01,1\na,b/c,2024-01-01,2\n",
            {"data.client-column": "store,item"},
            "give the same client when they are joined with a slash",
        ),
        (
            "year,day,month,y\n2024,1,2,3\n2024,2,2,3\n",
            {"data.time-column": "year,day,month", "data.clients": "y"},
            "expected the order year, month, day, hour, minute, second, without a gap",
        ),
        (
            f"time,a,b\n{wide()}".replace(",0.5,", ",0.5,").replace("\n", "\n", 1),
            {"data.header": 99},
            r"data\.header = 99: the names of the columns of .* among its rows 1 to 50",
        ),
    ],
)
def test_what_cannot_be_read_so_is_refused(
    text: str, answers: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    if not message:
        (client,), _ = read(path, answers)
        assert client.values.tolist() == 8 * [1, 2, 3, 4, 5]
        return
    with pytest.raises(DataError, match=message):
        read(path, answers)


def test_two_series_are_never_read_one_below_the_other(tmp_path: Path) -> None:
    """A column of texts that names clients is never left out, whatever the order of the rows."""
    by_client = rows(lambda c, h: f"{('north', 'south', 'west')[c]},{HOURS[h]},{value(c, h)}")
    by_time = "\n".join(sorted(by_client.splitlines(), key=lambda line: line.split(",")[1]))
    for text in (by_client, by_time):
        clients, _ = read(written(tmp_path, "place,when,load\n" + text), {})
        assert sorted(client.name for client in clients) == ["north", "south", "west"]


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_value_in_a_column_without_a_name_is_not_lost(quote: str, tmp_path: Path) -> None:
    lines = [f"{quote}2024-01-{day + 1:02}{quote};{day}.5;;" for day in range(4)] * 30
    lines[70] += "7"
    path = written(tmp_path, "\n".join(["time;a;b;", *lines, ""]))
    with pytest.raises(DataError, match=r"no name, but a value in line 72; give the column a name"):
        read(path, {"data.clients": "a"})
