"""Examples of docs/tables.md: below each file stands what `data check` tells, which reads it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedproto_app.data.recognition import flags, reading_of
from fedproto_app.data.sources import load_series
from fedproto_app.experiments.run_settings import told
from fedproto_app.settings import settings_from

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
EXAMPLES = re.findall(r"```csv\n(.*?)```\n\n```\n(--set .*?)\n```", PAGE, re.DOTALL)


def test_every_file_has_its_line() -> None:
    assert len(EXAMPLES) == PAGE.count("```csv") > 6


@pytest.mark.parametrize(("text", "line"), EXAMPLES)
def test_an_example(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    told_of_it = set(flags(reading_of(path).all_settings).split("--set "))
    assert {part.strip() for part in told_of_it} == {part.strip() for part in line.split("--set ")}
    changes = [word for word in shlex.split(line) if word != "--set"]
    data = settings_from({**told(None, changes), "data.path": str(path)}).data
    clients = load_series(data)
    assert 1 <= len(clients) <= 2
    assert all(len(one.values) for one in clients)
