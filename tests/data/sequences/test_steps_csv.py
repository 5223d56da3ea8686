from __future__ import annotations

import gzip

import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.csv_files import parse_steps
from fedproto_app.settings import DataSettings

PLAIN = DataSettings()


def test_a_header_and_a_row_a_step() -> None:
    names, values = parse_steps(b"\xef\xbb\xbfx, y\r\n1,2\r\n-3.5,4e1\r\n\r\n", "a.csv", PLAIN)
    assert names == ("x", "y")
    assert values.tolist() == [[1, 2], [-3.5, 40]]


def test_a_gzipped_file_with_a_time_column() -> None:
    names, values = parse_steps(
        gzip.compress(b"Time,x\n2014-01-01,1\nlater,2\n"), "a.csv.gz", PLAIN
    )
    assert names == ("x",)
    assert values.tolist() == [[1], [2]]


def test_only_the_first_column_can_be_the_time() -> None:
    assert parse_steps(b"x,time\n1,2\n", "a.csv", PLAIN)[0] == ("x", "time")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"time\n1\n", "no column of values in the header"),
        (b"x,y\n", "only a header line, no values"),
        (b"x,,y\n1,2,3\n", "a column of values has no name in the header"),
        (b"x,x\n1,2\n", "two columns are named 'x'"),
        (b"1,2\n3,4\n", "line 1 has values where names are expected"),
        (b"x,y\n1,2\n3\n", "line 3 has 1 cells, line 1 has 2"),
        (b"x,y\n1,2\n\n3,4\n", "line 3 has 1 cells, line 1 has 2"),
        (b"x,y\n1,2\n3,four\n", "column 'y', line 3: 'four' is not a number"),
        (b"x,y\n1,2\n3,\n", "column 'y', line 3: no value"),
        (b"time,x,y\n1,2,3\n3,4,nan\n", "column 'y', line 3: no value"),
        (b"x\n\xff\n", "not UTF-8 text: byte 0xff at offset 2"),
        (b"\x1f\x8b\x08", "cannot be read"),
        (b"x\n" + b"1" * 200_000, "not a readable CSV file"),
    ],
)
def test_bad_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^a.csv: .*{message}"):
        parse_steps(content, "a.csv", PLAIN)


def test_cells_between_semicolons_with_decimal_commas() -> None:
    settings = DataSettings(decimal="comma", header="false")
    names, values = parse_steps(b"1,5;2\n3;-4,25\n", "a.csv", settings)
    assert names == ("column-1", "column-2")
    assert values.tolist() == [[1.5, 2], [3, -4.25]]
