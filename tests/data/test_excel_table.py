from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data import files
from fedproto_app.data.formats import excel_table
from fedproto_app.data.recognition import reading_of
from tests.data.made_tables import FRAME, LONG, load, require_the_frame, values_of, written

openpyxl = pytest.importorskip("openpyxl")
FIRST_SHEET = "xl/worksheets/sheet1.xml"


def book(folder: Path, rows: list[list[Any]], name: str = "a.xlsx", **sheets: Any) -> Path:
    """Write a file with this first sheet and further sheets."""
    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(row)
    for title, cells in sheets.items():
        sheet = workbook.create_sheet(title)
        for row in cells:
            sheet.append(row)
    workbook.save(folder / name)
    return folder / name


def with_part(path: Path, part: str, content: bytes) -> Path:
    """Replace a part of the archive, as a hostile program could write it."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()} | {part: content}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def sheet_with(rows: str) -> bytes:
    namespace = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    return f'<worksheet xmlns="{namespace}"><sheetData>{rows}</sheetData></worksheet>'.encode()


@pytest.mark.parametrize("frame", [FRAME.reset_index(), LONG], ids=["wide", "long"])
def test_a_sheet_is_read_as_the_frame_it_was(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame.to_excel(path := tmp_path / "a.xlsx", index=False)
    reading = reading_of(path)
    assert reading.source == ("long-excel" if frame is LONG else "wide-excel")
    assert reading.settings == {}
    require_the_frame(load(path, reading.source))


def test_a_file_for_each_client(tmp_path: Path) -> None:
    for name in FRAME:
        column = FRAME[[name]].rename(columns={name: "load"}).reset_index()
        column.to_excel(tmp_path / f"{name}.xlsx", index=False)
    assert reading_of(tmp_path).source == "excel-folder"
    require_the_frame(load(tmp_path, "excel-folder"))


def test_texts_units_and_empty_rows_around_the_table(tmp_path: Path) -> None:
    day = pd.Timestamp("2024-01-01")
    rows = [
        [],
        [None, "time", "load", "007"],
        [None, "UTC", "kW", "kW"],
        [None, day, "1.100,5", 7],
        [None, day + pd.Timedelta("1D"), "2.200", None],
        [None, day + pd.Timedelta("2D"), 1.234, None],
        [None, day + pd.Timedelta("3D"), "#N/A", 9.5],
        [],
    ]
    clients = load(book(tmp_path, rows, notes=[["by", "hand"]]), "wide-excel")
    assert list(clients) == ["load", "007"]
    np.testing.assert_array_equal(clients["load"].values, [1100.5, 2200, 1.234])
    np.testing.assert_array_equal(clients["007"].values, [7, np.nan, np.nan, 9.5])
    sheets, units, numbers = clients["load"].notes
    assert sheets == "only the sheet 'Sheet' is read, not notes: data.sheet chooses"
    assert units.endswith("UTC, kW, kW")
    assert numbers.startswith("'1.100,5' in row 4 is read as 1100.5")


def test_the_first_sheet_with_values_is_read(tmp_path: Path) -> None:
    data = [["time", "a"], [pd.Timestamp("2024-01-01"), 1.5], [pd.Timestamp("2024-01-02"), 2.5]]
    clients = load(book(tmp_path, [["", "About"], [0, "three sites"]], data=data), "wide-excel")
    assert values_of(clients) == {"a": [1.5, 2.5]}
    assert clients["a"].notes == ("only the sheet 'data' is read, not Sheet: data.sheet chooses",)


def test_whole_numbers_may_name_clients(tmp_path: Path) -> None:
    rows = [["unique_id", "ds", "y"], [7, "2024-01-01", 1], [7, "2024-01-02", 2]]
    assert values_of(load(book(tmp_path, rows), "long-excel")) == {"7": [1, 2]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["a", "b"]], "only a header row"),
        ([], "no cell has a value"),
        ([["a"], [1], ["many"]], "column 'a', row 3: 'many' is not a number"),
        ([["a"], [1], [True]], "column 'a', row 3: 'True' is not a number"),
        ([["time", "a"], [None, 1]], "column 'time', row 2: expected a time, got nothing"),
    ],
)
def test_damaged_sheets(tmp_path: Path, rows: list[list[Any]], message: str) -> None:
    with pytest.raises(DataError, match=rf"a\.xlsx: .*{message}"):
        load(book(tmp_path, rows), "wide-excel")


def test_what_is_no_sheet_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = book(tmp_path, [["a"], [1], [2]])
    for content in (b"", b"PK\x03\x04", good.read_bytes()[:-30]):
        path = written(tmp_path, content, "damaged.xlsx")
        with pytest.raises(DataError, match=r"not a readable Excel file: .*[^\n]$"):
            load(path, "wide-excel")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"need openpyxl: pip install 'fedproto-app\[excel\]'"):
        load(good, "wide-excel")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('<row r="1"><c r="A1"><v>1</v></c></row><row r="2000000000"/>', "more than 1,048,576 row"),
        ('<row r="1"><c r="ZZ1"><v>1</v></c></row>', "702 columns, more than 100"),
        (
            '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="CV1048576"><v>2</v></c>'
            "</row>",
            "more than a quarter of this machine's memory",
        ),
        ('<row r="1"><c r="ZZZZZZ1"><v>1</v></c></row>', "not a readable Excel file"),
        ('<row r="x"><c r="A1"><v>1</v></c></row>', "not a readable Excel file"),
        ("<row", "not a readable Excel file"),
    ],
)
def test_a_sheet_of_two_distant_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, message: str
) -> None:
    """A kilobyte may claim 16 thousand million cells."""
    monkeypatch.setattr("fedproto_app.data.table.MOST_COLUMNS", 100)
    monkeypatch.setattr(files, "most_bytes", lambda: 1 << 30)
    path = with_part(book(tmp_path, [["a"]]), FIRST_SHEET, sheet_with(rows))
    with pytest.raises(DataError, match=message):
        load(path, "wide-excel")


def test_a_small_file_may_unpack_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_part(book(tmp_path, [["a"], [1]]), FIRST_SHEET, sheet_with(" " * 2_000_000))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(files, "most_bytes", lambda: 1_000_000)
    monkeypatch.setattr(excel_table, "_rows", lambda *_: pytest.fail("read too early"))
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(path, "wide-excel")


def test_the_memory_is_not_looked_at_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(files, "most_bytes", lambda: looks.append(1) or 1 << 30)
    load(book(tmp_path, [["a"], *([number] for number in range(200))]), "wide-excel")
    assert len(looks) < 50
