"""``fedproto init``: a settings file that runs as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from fedproto_app.cli.init import commented_settings
from fedproto_app.experiments.run_settings import read_toml, unclaimed_settings
from fedproto_app.experiments.trial import Wishes, plan_of
from fedproto_app.settings.reading import flat
from tests.cli.conftest import Fedproto


def test_the_options_of_a_trial_are_those_of_init(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    days = pd.date_range("2024-01-01", periods=200).repeat(2)
    rows = {"day": days, "shop": [1, 2] * 200, "units": range(400), "price": range(9, 409)}
    pd.DataFrame(rows).to_csv("sales.csv", index=False)
    assert "which column is to be forecast" in fedproto("init", "sales.csv").err
    names = ["--target", "units", "--clients-from", "shop", "--known", "price"]
    steps = ["--horizon", 3, "--period", 14, "--holidays", "DE-BY"]
    outcome = fedproto("init", "sales.csv", *names, *steps, "--set", "data.time-column=day")
    assert outcome.code == 0, outcome.err
    settings = flat(read_toml(tmp_path / "sales.toml"))
    option_names = ("columns", "client-column", "known", "horizon", "period", "holidays")
    chosen = [settings[f"data.{name}"] for name in option_names]
    assert chosen == ["units", "shop", "price", 3, 14, "DE-BY"]


def test_the_file_holds_what_a_trial_would_choose(
    fedproto: Fedproto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    times = pd.date_range("2024-01-01", periods=24 * 42, freq="h", name="time")
    values = times.hour.to_numpy() + 1.0
    pd.DataFrame({"north": values, "süd": 2 * values}, index=times).to_csv("loads.csv")
    outcome = fedproto("init", "loads.csv")
    assert outcome.code == 0, outcome.err
    assert outcome.out == "loads.toml\n"
    assert "fedproto run loads.toml" in outcome.err
    text = (tmp_path / "loads.toml").read_text(encoding="utf-8")
    assert "# period 24 (a day)" in text
    assert "# how many values a forecast predicts (H)\n" in text
    assert "# seed = 0 " in text
    settings = flat(read_toml(tmp_path / "loads.toml"))
    assert settings == {"method": "kindred", **plan_of(Path("loads.csv"), Wishes()).settings}
    unclaimed_settings(settings, 2)
    second = fedproto("init", "loads.csv")
    assert second.code == 2
    assert "loads.toml: exists already and is never overwritten; --out names another" in second.err


def test_a_line_break_in_a_name_stays_in_the_comment() -> None:
    text = commented_settings({"method": "naive"}, ["other columns of values: load\n[kW]"])
    assert tomllib.loads(text)["method"] == "naive"
