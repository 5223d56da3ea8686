"""The programs, files and settings in docs/your-data.md and docs/sequences.md work as these say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.data.recognition import flags, reading_of
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.data.sources import load_series
from fedproto_app.experiments.run_settings import changed_settings
from fedproto_app.report.check.forecasting import facts_of, period_votes
from fedproto_app.settings import DataSettings, settings_from
from tests.helpers.page_programs import DOCS, write_programs

PAGE = (DOCS / "your-data.md").read_text()
EXAMPLES = re.findall(r"```csv\n(.*?)```\n\n```\n(--set .*?)\n```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the pages' programs in it."""
    for page in ("your-data.md", "sequences.md"):
        write_programs(page, tmp_path)
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


def test_the_weekly_table_is_read_as_the_page_says(folder: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "write_shops.py"], cwd=folder, check=True)
    settings = reading_of(folder / "shops.csv").all_settings
    clients = load_series(settings_from({**settings, "data.path": str(folder / "shops.csv")}).data)
    assert f"shops.csv: {len(clients)} series of {len(clients[0].values)} steps of 7 days," in PAGE


def test_every_file_has_its_settings() -> None:
    assert len(EXAMPLES) == PAGE.count("```csv") > 5


@pytest.mark.parametrize(("text", "line"), EXAMPLES)
def test_an_example_file_is_read_with_its_settings(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    changes = [word for word in shlex.split(line) if word != "--set"]
    settings = changed_settings(None, changes)
    answers = {key: settings.get(key, "") for key in ("data.columns", "data.unfold")}
    printed = set(flags(reading_of(path, answers).all_settings).split("--set "))
    of_the_person = ("data.known", "data.unfold")
    lines = {part.strip() for part in line.split("--set ") if not part.startswith(of_the_person)}
    assert {part.strip() for part in printed} == lines
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


# Two lines as UCI's files have them.
LINES = (
    " 47,100, 27, 81, 57, 37, 26,  0,  0, 23, 56, 53,100, 90, 40, 98, 8\n"
    "  0, 89, 27,100, 42, 75, 29, 45, 15, 15, 37,  0, 69,  2,100,  6, 2\n"
)


def written(folder: Path, name: str) -> SequencePool:
    subprocess.run([sys.executable, f"write_{name}.py"], cwd=folder, check=True)
    return load_sequences(DataSettings(source="sequence-npz", path=str(folder / f"{name}.npz")))


def test_pen_digits_become_eight_positions_in_two_splits(folder: Path) -> None:
    (folder / "pendigits.tra").write_text(LINES)
    (folder / "pendigits.tes").write_text(LINES)
    pool = written(folder, "pendigits")
    assert pool.classes == ("2", "8")
    assert pool.targets.tolist() == [1, 0, 1, 0]
    assert pool.is_test.tolist() == [False, False, True, True]
    assert [steps.shape for steps in pool.sequences] == [(8, 2)] * 4
    assert pool.sequences[0][:3].tolist() == [[47, 100], [27, 81], [57, 37]]
