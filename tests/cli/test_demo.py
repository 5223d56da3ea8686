"""``fedproto demo`` in an empty folder, with its runs cut short."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.cli import demo
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import cut_of
from fedproto_app.experiments import trial
from fedproto_app.settings import settings_from
from tests.cli.conftest import Fedproto

TINY = """rounds = 1
[data]
horizon = 2
history = 1
[data.synthetic]
clients = 4
days = 14
[model]
representation-dim = 8
"""


def test_it_runs_compares_and_says_what_to_try(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.setattr(demo, "CONFIG", tmp_path / "tiny.toml")
    rows = {name: trial.SERIES_ROWS[name] for name in ("naive", "kindred-alone", "kindred")}
    monkeypatch.setattr(trial, "SERIES_ROWS", rows)
    monkeypatch.setattr(demo, "TRAINED", ())
    outcome = fedproto("demo")
    assert outcome.code == 0, outcome.err
    for cell in ("history 1", "history 26"):
        assert f"synthetic-traffic, {cell}" in outcome.out
    assert demo.CELLS in outcome.out
    assert "federated learning" in " ".join(outcome.out.lower().split())
    assert f"fedproto forecast {Path('runs/demo/kindred')}" in outcome.err
    finished = {run.parent.name for run in (tmp_path / "runs" / "demo").glob("*/summary.json")}
    assert finished == {*rows, *(f"{name}-all-days" for name in rows)}
    before = (tmp_path / "runs/demo/kindred/summary.json").stat().st_mtime_ns
    (tmp_path / "runs/demo/naive").rename(tmp_path / "elsewhere")
    assert fedproto("demo").code == 0  # it makes what is not there
    assert (tmp_path / "runs/demo/naive/summary.json").exists()
    assert (tmp_path / "runs/demo/kindred/summary.json").stat().st_mtime_ns == before
    (tmp_path / "tiny.toml").write_text(TINY.replace("horizon = 2", "horizon = 3"))
    outcome = fedproto("demo")
    assert outcome.code == 2
    assert "holds a run with data.horizon = 2, not 3; choose another folder" in outcome.err


def test_its_settings_are_in_the_package() -> None:
    settings = tomllib.loads(demo.CONFIG.read_text())
    assert f"history {settings['data']['history']}: all methods" in demo.CELLS
    assert f"history {demo.ALL_DAYS}: only" in demo.CELLS
    linked = Path(__file__).parents[2] / "configs" / "demo.toml"
    assert linked.resolve() == demo.CONFIG.resolve()


def test_the_second_cell_has_all_days() -> None:
    """Without a limit a client trains on the same values, and a day less is not all of them."""
    changes = demo.demo_plan().settings
    series = load_series(settings_from(changes).data)[0]

    def trained(history: int) -> np.ndarray:
        return cut_of(series, settings_from({**changes, "data.history": history}).data).trained

    assert np.array_equal(trained(demo.ALL_DAYS), trained(0))
    assert len(trained(demo.ALL_DAYS - 1)) < len(trained(0))
