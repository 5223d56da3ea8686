"""What guards the reader of text files: memory, lines, columns, and blocks that fit together."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.errors import DataError
from fedproto_app.data import files, table
from fedproto_app.data.formats import csv_table
from fedproto_app.data.recognition import reading_of
from fedproto_app.settings import settings_from
from tests.data.made_tables import load, values_of, written


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read 7 bytes and a line at once, so that a small file has many blocks."""
    monkeypatch.setattr(csv_table, "_PIECE", 7)


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blocks_make_the_whole_table(tmp_path: Path, quote: str, end: str) -> None:
    rows = [f"{n},{quote}{n / 4}{quote},ö{n}" for n in range(50)]
    text = end.join(["a,b,c", *rows, "", ""])
    path = written(tmp_path, gzip.compress(b"\xef\xbb\xbf" + text.encode()), "a.csv.gz")
    clients = load(path, "wide-csv", clients="a,b")
    assert values_of(clients) == {"a": list(range(50)), "b": [n / 4 for n in range(50)]}
    with pytest.raises(DataError, match="column 'c', line 2: 'ö0' is not a number"):
        load(path, "wide-csv")


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a,b\n1,2\n" * 9 + b"3\n", "line 19 has 1 cells, line 1 has 2"),
        (b'a,b\n"1",2\n' * 9 + b"3\n", "line 19 has 1 cells, line 1 has 2"),
        (b"a,b\n1,2\n\n\n3,4\n", "line 3 has 1 cells, line 1 has 2"),
        (b"a,b\n" + b"1,2\n" * 20 + b"1,\xff\n", "byte 0xff at offset 86"),
        (b"a,b\n" + b"1,2\n" * 20 + b"1,\0\n", "a zero byte after 86 bytes"),
        (b"a,b\n" + b"1,2\n" * 20 + b"1,x\n", "column 'b', line 22: 'x' is not a number"),
    ],
)
def test_faults_in_later_blocks_are_named(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(written(tmp_path, text), "wide-csv")


@given(st.lists(st.lists(st.sampled_from(["1", '"2,"', '"3\n"', "", '4"']), min_size=1)))
def test_rows_are_counted_as_csv_counts_them(rows: list[list[str]]) -> None:
    import csv
    import io

    text = "\n".join(map(",".join, rows)) + "\n"
    widths = [max(1, len(row)) for row in csv.reader(io.StringIO(text, newline=""))]
    pieces = [line.encode() for line in text.splitlines(keepends=True)]
    head = table.Head("a.csv", [""] * widths[0], None)
    checked = csv_table._checked(iter(pieces), head, ",", table.Columns([0]))
    numbered = enumerate(widths, 1)
    wrong = [f"line {row} has {width} " for row, width in numbered if width != widths[0]]
    if not wrong:
        assert b"".join(checked) == text.encode()
        return
    with pytest.raises(DataError, match=wrong[0]):
        list(checked)


@pytest.mark.usefixtures("in_small_pieces")
def test_the_style_of_numbers_is_that_of_the_whole_file(tmp_path: Path) -> None:
    """The first blocks are numbers for pandas, but only the last cell shows what points mean."""
    lines = ["a;b", *["1.100;2"] * 9, "1.100,5;2"]
    clients = load(written(tmp_path, "\n".join(lines)), "wide-csv")
    assert values_of(clients) == {"a": [*[1100] * 9, 1100.5], "b": [2] * 10}
    (note,) = clients["a"].notes
    assert note == "'1.100,5' in line 11 is read as 1100.5, and other numbers likewise"
    long = load(written(tmp_path, "\n".join(["a;b", *["1,5;2,5"] * 2000])), "wide-csv")
    assert values_of(long) == {"a": [1.5] * 2000, "b": [2.5] * 2000}
    quoted = load(written(tmp_path, 'a,b\n"1,5",2\n"1.000,5",3\n'), "wide-csv")
    assert values_of(quoted) == {"a": [1.5, 1000.5], "b": [2, 3]}
    english = written(tmp_path, 'a,b\n"1,100.5",2\n"2,200",3\n')
    assert reading_of(english).all_settings == {"data.source": "wide-csv"}
    assert values_of(load(english, "wide-csv"))["a"] == [1100.5, 2200]
    assert values_of(load(english, "wide-csv", decimal="point"))["a"] == [1100.5, 2200]


def test_a_column_that_is_no_number_is_named_with_the_reason(tmp_path: Path) -> None:
    path = written(tmp_path, "time,load,rain\n2024-01-01,1,n.d.\n2024-01-02,2,dry\n")
    reading = reading_of(path)
    assert reading.left_out == (
        "column 'rain' is left out, as it holds no numbers, such as 'n.d.'",
    )


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("time,a,b\nUTC,kW,kW\n2024-01-01,1,2\n2024-01-02,1,2\n", 1),
        ("a,b\n[kW],\n1,2\n3,4\n", 1),
        ("time,a\n2024-01-01,x\n2024-01-02,1\n", 0),  # a date: the row is of the data
        ("a,b\nx,1\n1,2\n3,4\n", 0),
        ("a,b\nx,y\nx,1\n", 0),
    ],
)
def test_a_row_of_units(text: str, units: int, tmp_path: Path) -> None:
    rows = [line.split(",") for line in text.splitlines()]
    assert table.unit_rows(rows) == units
    if units:
        (note, *_) = next(iter(load(written(tmp_path, text), "wide-csv").values())).notes
        assert note.startswith("the row below the header is taken for units: ")


def test_long_lines_and_many_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "LONGEST_LINE", 1000)
    monkeypatch.setattr(csv_table, "_PIECE", 100)
    with pytest.raises(DataError, match="line 3 is longer than 0 MiB"):
        load(written(tmp_path, "a\n1\n" + "1" * 2000), "wide-csv")
    monkeypatch.setattr(table, "MOST_COLUMNS", 10)
    with pytest.raises(DataError, match="11 columns, more than 10"):
        load(written(tmp_path, "a," * 10 + "b\n"), "wide-csv")
    rows = "".join(f"c{number},2024-01-01,1\n" for number in range(11))
    with pytest.raises(DataError, match="11 clients, more than 10"):
        load(written(tmp_path, f"unique_id,ds,y\n{rows}"), "long-csv")


def test_the_cost_of_reading_is_estimated_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8,000 bytes of text are 4,000 numbers of 24 bytes each."""
    path = written(tmp_path, "a\n" + "1\n" * 4000)
    monkeypatch.setattr(files, "most_bytes", lambda: 50_000)
    monkeypatch.setattr(pd, "read_csv", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(DataError, match="more than a quarter of this machine's memory"):
        load(path, "wide-csv")


class Growing(table.TableFile):
    """A file that has one row more whenever it is read."""

    head, rows = table.Head("a.csv", ["a"], None), 0

    def blocks(self, columns: table.Columns, style: str) -> list[pd.DataFrame]:
        self.rows += 1
        return [pd.DataFrame({0: ["1,5"] * self.rows})]


def test_a_file_that_changes_is_not_read_halfway() -> None:
    with pytest.raises(DataError, match="changed while it was read"):
        Growing().read(table.Columns([0]))


def test_hardly_a_number_ends_early(tmp_path: Path) -> None:
    path = written(tmp_path, "unique_id,ds,y\n" + "a,2024-01-01,x\n" * 3000)
    with pytest.raises(DataError, match="line 2: 'x' is not a number"):
        load(path, "long-csv")


LIMIT = 4 << 30  # bytes of address space; torch and numpy take more than one


def test_the_limit_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (LIMIT, LIMIT))
    assert files.most_bytes() <= LIMIT // 4


@pytest.mark.integration
def test_a_small_archive_ends_in_one_line_within_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", 9) as file:
        file.write(b"a,b\n")
        for _ in range(500):
            file.write(b"1,2\n" * 100_000)
    program = "from fedproto_app.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "data", "check", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "more than a quarter of this machine's memory" in done.stderr


def test_numbers_are_those_of_pandas(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 5)) * 10.0 ** np.arange(-6, 9, 3)
    frame = pd.DataFrame(values, columns=list("abcde"))
    path = written(tmp_path, frame.to_csv(index=False))
    for name, client in load(path, "wide-csv").items():
        np.testing.assert_array_equal(client.values, pd.read_csv(path)[name])
    assert settings_from({}).data.decimal == "auto"
