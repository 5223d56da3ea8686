"""The programs, files and settings in docs/your-data.md work as the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.data.recognition import flags, reading_of
from fedproto_app.data.sources import load_series
from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.report.check.forecasting import facts_of, period_votes
from fedproto_app.settings import DataSettings, settings_from
from tests.page_programs import DOCS, write_programs

PAGE = (DOCS / "your-data.md").read_text()
EXAMPLES = re.findall(r"```csv\n(.*?)```\n\n```\n(--set .*?)\n```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's programs in it."""
    write_programs("your-data.md", tmp_path)
    return tmp_path


def test_the_first_table_is_read_as_the_page_says(folder: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "write_sites.py"], cwd=folder, check=True)
    path = str(folder / "loads.csv")
    line = flags(reading_of(Path(path)).settings)
    assert f"read as long-csv, with {line}\n" in PAGE
    data = DataSettings(source="long-csv", path=path, client_column="site", time_column="when")
    clients = load_series(data)
    assert [(len(series.values), series.start) for series in clients] == [(1344, 474864)] * 20
    assert period_votes([facts_of(series, data) for series in clients]) == [(24, 20)]


def test_every_file_has_its_settings() -> None:
    assert len(EXAMPLES) == PAGE.count("```csv") > 6


@pytest.mark.parametrize(("text", "line"), EXAMPLES)
def test_an_example_file_is_read_with_its_settings(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    printed = set(flags(reading_of(path).all_settings).split("--set "))
    assert {part.strip() for part in printed} == {part.strip() for part in line.split("--set ")}
    changes = [word for word in shlex.split(line) if word != "--set"]
    clients = load_series(
        settings_from({**changed_settings(None, changes), "data.path": str(path)}).data
    )
    assert 1 <= len(clients) <= 2
    assert all(len(series.values) for series in clients)


def test_the_function_makes_hourly_means(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "readings.csv").write_text(
        "site,when,load\nnorth,2024-03-04 00:10,1\nnorth,2024-03-04 00:50,3\n"
        "north,2024-03-04 02:05,5\nsouth,2024-03-05 01:00,7\n"
    )
    monkeypatch.syspath_prepend(folder)
    north, south = load_series(
        DataSettings(source="my_data:readings", path=str(folder / "readings.csv"))
    )
    assert (north.name, north.start) == ("north", 474864)
    assert (south.name, south.start) == ("south", 474864 + 25)
    np.testing.assert_array_equal(north.values, [2, np.nan, 5])
    np.testing.assert_array_equal(south.values, [7])
