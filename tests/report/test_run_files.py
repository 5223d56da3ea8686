"""The tables of a run, read back as they were written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.messages import name_fault
from fedproto_app.report.run_files import csv_text, read_records, read_table

HEAD = "client,node,group,samples,mse\n"


def test_texts_and_numbers_by_column(tmp_path: Path) -> None:
    file = tmp_path / "clients.csv"
    file.write_text(HEAD + "NA,n0,,100,0.5\nb,n1,office,,\n")
    table = read_table(file, ("client", "node", "group"))
    assert (table.clients, table.nodes, table.groups) == (["NA", "b"], ["n0", "n1"], ["", "office"])
    np.testing.assert_array_equal(table["samples"], [100.0, np.nan])
    assert table.finite("mse") == [0.5]
    assert table.by_client("samples")["NA"] == 100.0
    with pytest.raises(FedProtoError, match=r"clients\.csv: no column 'mae'"):
        table["mae"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (HEAD + "a,n0,,100,0.5\nb,n0,,100,0.5x\n", "line 3, column 'mse': '0.5x' is not a number"),
        (HEAD + "a,n0,,100\n", "line 2 has 4 cells, and the first 5"),
        ("client,mse\na,0.5\n", "no column 'node'"),
        ("", "no column 'client'"),
    ],
)
def test_a_damaged_table_is_refused_with_its_place(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "clients.csv").write_text(text)
    with pytest.raises(FedProtoError) as error:
        read_table(tmp_path / "clients.csv", ("client", "node"))
    assert str(error.value) == f"{tmp_path / 'clients.csv'}: cannot be read: {fault}"


def test_a_line_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n[2]\n')
    with pytest.raises(FedProtoError, match=r"rounds\.jsonl: cannot be read: '\[2\]' is not "):
        read_records(tmp_path / "rounds.jsonl")


@given(st.lists(st.text(max_size=9).filter(lambda text: not name_fault(text))))
def test_every_name_is_read_as_it_was_and_no_spreadsheet_runs_it(names: list[str]) -> None:
    names += ["=1+1", "'=1+1", "''@a", "-a(b)", "'a'", "-1"]
    text = csv_text([("client", "mse"), *((name, 0.5) for name in names)])
    with TemporaryDirectory() as folder:
        file = Path(folder) / "clients.csv"
        file.write_text(text, encoding="utf-8")
        assert read_table(file).clients == names
    assert not any(line.startswith(("=", "@")) for line in text.splitlines())
