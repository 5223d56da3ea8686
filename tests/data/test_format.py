"""A format is one module: two are written into a temporary folder, and nothing else is changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedproto_app.cli.data import data_app
from fedproto_app.core.errors import SettingsError
from fedproto_app.data import formats
from fedproto_app.data.recognition import reading_of
from fedproto_app.experiments.trial import Wishes, plan_of
from tests.data.made_tables import LONG, load, require_the_frame
from tests.helpers.page_programs import write_programs

TABLES = '''
"""Tables in JSON, a record each line."""

import re

import pandas as pd

from fedproto_app.data.table import FrameFile
from fedproto_app.data.table_format import table_format
from fedproto_app.data.table_source import TableFormat


def opened(path, settings):
    return FrameFile(pd.read_json(path, lines=True, dtype=False), str(path))


FORMAT = table_format(
    TableFormat("jsonl", re.compile(r"\\.jsonl$"), ".jsonl", opened), "a .jsonl file"
)
'''
SERIES = '''
"""A series in a text file, a number each line."""

from pathlib import Path

import numpy as np

from fedproto_app.data.format import Fit, Format, Source
from fedproto_app.data.series import ClientSeries


def lines(settings):
    yield ClientSeries("alone", np.loadtxt(settings.path))


def fit(candidate):
    return Fit.NAME if candidate.name.endswith(".numbers") else Fit.NONE


FORMAT = Format((Source("numbers", "series", lines),), "a .numbers file", fit)
'''


@pytest.fixture(autouse=True)
def _two_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "formats"
    folder.mkdir()
    (folder / "json_lines.py").write_text(TABLES)
    (folder / "numbers.py").write_text(SERIES)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(folder)])
    yield
    for name in ("json_lines", "numbers", "feather"):
        sys.modules.pop(f"{formats.__name__}.{name}", None)


def checked(*arguments: object) -> str:
    outcome = CliRunner().invoke(data_app, ["check", *map(str, arguments)])
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
    return outcome.output


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "loads.jsonl"
    LONG.assign(ds=LONG["ds"].astype(str)).to_json(path, orient="records", lines=True)
    return path


def test_a_format_of_tables_is_recognised_and_read_in_every_form(table: Path) -> None:
    reading = reading_of(table)
    assert (reading.source, reading.settings) == ("long-jsonl", {})
    require_the_frame(load(table, "long-jsonl"))
    assert "read as long-jsonl" in checked(table)
    with pytest.raises(SettingsError, match=r"for data\.source = .*, not for 'long-jsonl'"):
        load(table, "long-jsonl", header=False)
    folder = table.parent / "folder"
    folder.mkdir()
    for name, rows in LONG.assign(ds=LONG["ds"].astype(str)).groupby("unique_id"):
        rows[["ds", "y"]].to_json(folder / f"{name}.jsonl", orient="records", lines=True)
    assert reading_of(folder).source == "jsonl-folder"
    require_the_frame(load(folder, "jsonl-folder"))


def test_a_format_of_series_is_checked_and_tried(tmp_path: Path) -> None:
    path = tmp_path / "a.numbers"
    path.write_text("\n".join(str(hour % 24) for hour in range(500)))
    output = checked(path)
    assert "read as numbers" in output
    assert "train on it: fedproto run " in output
    assert plan_of(path, Wishes()).facts[0].endswith("read as numbers")


def test_the_help_names_it() -> None:
    output = " ".join(checked("--help").replace("│", " ").split())
    assert "a .jsonl file" in output
    assert "wide-jsonl" in output


def test_the_page_shows_a_format(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "page").mkdir()
    program = write_programs("extending.md", tmp_path / "page")["feather.py"]
    (tmp_path / "formats" / "feather.py").write_text(program)
    LONG.to_feather(tmp_path / "loads.feather")
    assert reading_of(tmp_path / "loads.feather").source == "long-feather"
    require_the_frame(load(tmp_path / "loads.feather", "long-feather"))
