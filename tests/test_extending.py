"""The programs of docs/extending.md do what the page says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedproto_app.experiments.invariants import SmallRuns
from fedproto_app.report.runs import read_run
from tests.helpers.page_programs import write_programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return the page's programs by name, importable."""
    written = write_programs("extending.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield written
    for name in written:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize(
    ("task", "method", "module"),
    [
        ("forecasting", "fuels", "my_model:Forecaster"),
        ("sequence-classification", "fedrep", "my_sequences:recurrent"),
    ],
)
def test_the_models_train(
    tmp_path: Path, programs: dict[str, str], task: str, method: str, module: str
) -> None:
    changes = {"rounds": 2, "model.module": module}
    folder = SmallRuns(task, method, tmp_path, **changes).run("own", 2)
    assert read_run(folder).settings["model.module"] == module


def test_the_models_are_short(programs: dict[str, str]) -> None:
    assert {"my_model.py", "my_sequences.py"} <= programs.keys()
    assert all(len(programs[name].splitlines()) < 30 for name in ("my_model.py", "my_sequences.py"))
