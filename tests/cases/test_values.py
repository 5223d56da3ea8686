"""What `try` and `data check` say about values, images and sequences."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedproto_app.core.errors import DataError
from fedproto_app.data.sources import load_histories
from fedproto_app.experiments.trial import Plan, Wishes, plan_of, try_plan
from fedproto_app.settings import settings_from
from tests.cli.conftest import Fedproto


def planned(case: Path) -> Plan:
    return plan_of(case, Wishes(quick=True))


def waves(*names: str) -> pd.DataFrame:
    """Six weeks of hourly values with a daily rhythm, a column for each client."""
    hours = pd.date_range("2024-05-06", periods=24 * 42, freq="h", name="time")
    noise = np.random.default_rng(0).normal(size=(len(hours), len(names)))
    wave = 20 + 5 * np.sin(np.arange(len(hours)) * np.pi / 12)
    return pd.DataFrame(wave[:, None] + noise, index=hours, columns=list(names)).round(2)


def test_a_client_that_ends_early_is_forecast_for_the_days_of_the_others(
    check: Fedproto, tmp_path: Path
) -> None:
    """`try` and `data check` warn of it in the same words."""
    frame = waves("whole", "early")
    frame.loc["2024-06-14":, "early"] = np.nan
    frame.to_csv(tmp_path / "a.csv")
    plan, shown = planned(tmp_path / "a.csv"), " ".join(check(tmp_path / "a.csv").out.split())
    assert any("early: the last value, from which" in line for line in plan.warnings)
    # What begins the test part depends on the horizon, which `try` chooses.
    assert all(line in shown for line in plan.warnings if " test " not in line)
    histories = load_histories(settings_from(plan.settings).data)
    begins = {c.clock.time(c.start + len(c.values)) for c in histories if c.clock is not None}
    assert begins == {"2024-06-17 00:00:00"}


def test_a_single_client_has_nobody_to_share_with(check: Fedproto, tmp_path: Path) -> None:
    """`data check` says nothing of it, as other sites may hold other clients."""
    case = tmp_path / "a.csv"
    waves("value").to_csv(case)
    assert "warning" not in check(case).out
    plan = planned(case)
    rows = {row: plan.rows[row] for row in ("naive", "kindred")}
    trial = try_plan(dataclasses.replace(plan, rows=rows), tmp_path / "trial", Console(quiet=True))
    assert trial.verdict == (
        "Forecasting value. value is the only client, so there is nobody to share with."
    )
    assert trial.forecast is not None
    assert pd.read_csv(trial.forecast)["value"].notna().sum() == 24


def test_numbers_that_may_be_years_or_steps_are_a_question(tmp_path: Path) -> None:
    years, tonnes = range(1900, 2024), np.random.default_rng(0).normal(900, 9, (2, 124)).round(1)
    of_countries = [
        pd.DataFrame({"country": c, "t": years, "tonnes": y})
        for c, y in zip("ab", tonnes, strict=True)
    ]
    pd.concat(of_countries).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match="such as 1900, may be years"):
        planned(tmp_path / "a.csv")


def test_steps_of_ten_minutes_have_a_day_of_144(check: Fedproto, tmp_path: Path) -> None:
    """Most clients show no period, but the clock does, and `try` takes it too."""
    times = pd.date_range("2024-01-01", periods=144 * 8, freq="10min", name="time")
    rng = np.random.default_rng(0)
    columns = {f"farm {k}": rng.normal(size=len(times)).cumsum() for k in range(4)}
    pd.DataFrame(columns, index=times).to_csv(tmp_path / "wind.csv")
    outcome = check(tmp_path / "wind.csv")
    assert "at period 144 (a day)" in outcome.out
    assert outcome.out.splitlines()[-1].endswith(" --set data.period=144")
    assert planned(tmp_path / "wind.csv").settings["data.period"] == 144


def test_real_targets_are_checked_with_the_sources_clients(check: Fedproto, tmp_path: Path) -> None:
    """Only classes can be dealt, so the printed command has the setting."""
    values = np.random.default_rng(0).normal(size=(40, 12, 2)).astype(np.float32)
    np.savez(tmp_path / "months.npz", x=values, y=values[:, 0, 0].astype(np.float64))
    outcome = check(tmp_path / "months.npz")
    assert outcome.code == 0, outcome.out
    assert "--set data.clusters.scheme=given" in outcome.out.splitlines()[-1]
