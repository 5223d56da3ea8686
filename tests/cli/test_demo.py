"""``fedproto demo`` in an empty folder, with its runs cut short."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedproto_app.cli import demo
from fedproto_app.experiments import trial
from tests.cli.conftest import Fedproto

TINY = """rounds = 1
[data]
horizon = 2
[data.synthetic]
clients = 4
days = 14
[model]
representation-dim = 8
[output]
pictures = false
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
    assert "too few for them: their rows are no verdict" in outcome.out
    assert "federated learning" in " ".join(outcome.out.lower().split())
    assert f"fedproto forecast {Path('runs/demo/kindred')}" in outcome.err
    finished = {run.parent.name for run in (tmp_path / "runs" / "demo").glob("*/summary.json")}
    assert finished == set(rows)
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
    assert settings["data"]["history"] == 7
    linked = Path(__file__).parents[2] / "configs" / "demo.toml"
    assert linked.resolve() == demo.CONFIG.resolve()
