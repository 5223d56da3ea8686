"""Lies in masked sums: what the lying node sends, and the files beside the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.attacks import __main__ as attacks
from benchmarks.attacks.masked import opposite


def test_a_lie_is_the_opposite_so_many_times() -> None:
    sums = {"gram": 2.0, "moment": 3.0, "response-moment": 4.0, "response-seen": 5.0, "head": 7.0}
    lies = opposite(
        {name: np.array([value]) for name, value in sums.items()},
        times=10.0,
        start={"head": np.array([2.0])},
        weight=3.0,
    )
    expected = {"gram": 20, "moment": -30, "response-moment": -40, "response-seen": 5, "head": -4}
    assert {name: float(value[0]) for name, value in lies.items()} == expected


def test_a_table_becomes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "FILES", tmp_path / "attacks")
    lines = ["| attack | `mean` |", "| --- | ---: |", "| none | **1** |", "|  | 2 |", "", "Made."]
    attacks.write_csv("study", lines)
    file = tmp_path / "attacks" / "study.csv"
    assert file.read_text() == "# Made.\nattack,mean\nnone,1\nnone,2\n"
