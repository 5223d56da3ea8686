"""The table of a data check in a narrow terminal."""

from __future__ import annotations

import pytest
from rich.text import Text

from fedproto_app.report.check.findings import Cell, Findings


def test_long_names_and_notes_are_wrapped_and_numbers_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    notes = "3 outliers, train part constant, test mean +2.0, test spread ×2.3"
    titles: list[Cell] = ["client", "steps", "start", "period", "missing", "verdict", "notes"]
    numbers = ["1680000", "28385705", "168", "0.123%"]
    row: list[Cell] = ["substation-north-" * 3, *numbers, Text("constant"), Text(notes)]
    Findings([titles, row], []).print(all_rows=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert set(numbers) <= set(out.split())
    assert set(notes.split()) <= set(out.split())
