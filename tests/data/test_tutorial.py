"""The programs that docs/tutorial-your-data.md prints do what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.data.recognition import flags, reading_of
from fedproto_app.data.sources import load_series
from fedproto_app.report.check.forecasting import facts_of, period_votes
from fedproto_app.settings import DataSettings
from tests.page_programs import write_programs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tutorial's programs in it."""
    write_programs("tutorial-your-data.md", tmp_path)
    return tmp_path


def test_both_ways_give_the_same_clients(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("write_csv.py", "write_readings.py"):
        subprocess.run([sys.executable, program], cwd=folder, check=True)
    csv = DataSettings(source="wide-csv", path=str(folder / "sites.csv"))
    monkeypatch.syspath_prepend(folder)
    own = DataSettings(source="my_data:readings", path=str(folder / "readings.csv"))
    columns = {series.name: series for series in load_series(csv)}
    functions = {series.name: series for series in load_series(own)}
    assert columns.keys() == functions.keys() == {"north", "south", "harbour"}
    for name, series in columns.items():
        assert series.start == functions[name].start == 474864
        np.testing.assert_array_equal(series.values, functions[name].values)
    clients = [facts_of(series, csv) for series in columns.values()]
    assert period_votes(clients) == [(24, 3)]
    assert {client.refused for client in clients} == {None}


def test_the_function_is_short(folder: Path) -> None:
    assert len((folder / "my_data.py").read_text().splitlines()) < 30


def test_the_long_form_is_read_as_the_page_says(folder: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "write_sites.py"], cwd=folder, check=True)
    page = (Path(__file__).parents[2] / "docs" / "tutorial-your-data.md").read_text()
    line = flags(reading_of(folder / "loads.csv").settings)
    assert f"read as long-csv, with {line}\n" in page
    own = {"client_column": "site", "time_column": "when"}
    clients = load_series(DataSettings(source="long-csv", path=str(folder / "loads.csv"), **own))
    assert [len(series.values) for series in clients] == [8 * 7 * 24] * 20
    assert "site-00,2024-03-04 01:00:00,24.087" in (folder / "loads.csv").read_text()
