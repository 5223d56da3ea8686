"""``fedproto check-method``: what it prints of methods that keep the rules, and of one without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Fedproto
from tests.test_invariants import LAWLESS


def test_a_method_of_the_app_passes(fedproto: Fedproto) -> None:
    done = fedproto("check-method", "naive", "--task", "forecasting", "--set", "data.horizon=2")
    assert (done.code, done.err) == (0, "")
    title, *rows = done.out.splitlines()
    assert title.split() == ["task", "invariant", "largest", "relative", "difference"]
    assert len(rows) == 5
    assert all(row.startswith(" forecasting ") and " held " in row for row in rows)


def test_what_does_not_hold_is_told_with_its_size(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lawless_method.py").write_text(LAWLESS)
    monkeypatch.syspath_prepend(tmp_path)
    done = fedproto("check-method", "lawless_method:METHOD", "--task", "forecasting")
    assert done.code == 1
    rows = done.out.splitlines()[1:]
    assert len(rows) == 5
    for row in rows:
        size = re.search(r"did not hold +(\S+) \(allowed 0", row)
        assert size, row
        assert float(size[1]) > 1e-3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fuel"], "error: method = 'fuel': unknown method; did you mean 'fuels'"),
        (["no_module:METHOD"], "No module named 'no_module'"),
        (["gldp", "--task", "forecasting"], "works with task = 'classification' only"),
        (["solo", "--task", "chess"], "task = 'chess': unknown"),
        (["solo", "--set", "rounds=0"], "rounds = 0"),
    ],
)
def test_what_cannot_be_checked_is_told_before_a_run(
    fedproto: Fedproto, words: list[str], message: str
) -> None:
    done = fedproto("check-method", *words)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
