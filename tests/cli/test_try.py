"""``fedproto try``: what it prints."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedproto_app.experiments import trial
from tests.cli.conftest import Fedproto


def test_brackets_in_names_are_no_markup(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    times = pd.date_range("2024-01-01", periods=24 * 8, freq="h")
    values = times.hour.to_numpy() + 1.0
    rows = {"unique_id": "a", "time": times, "y": values, "rate [/min]": values}
    pd.DataFrame(rows).to_csv("loads[old].csv", index=False)
    monkeypatch.setattr(
        trial,
        "try_plan",
        lambda plan, folder, console: trial.Trial(folder, "with [/a]", [], folder / "r.html", None),
    )
    outcome = fedproto("try", "loads[old].csv")
    assert outcome.code == 0, outcome.err
    assert "reading loads[old].csv" in outcome.err
    assert "not known in advance: rate [/min] (is the values themselves)" in outcome.err
    assert "fedproto compare 'runs/try-loads[old]' --pairs" in outcome.err
    assert outcome.out.startswith("with [/a]\n")
    assert "report: runs/try-loads[old]/r.html" in outcome.out
