"""The forecaster's habits: parameters, fit and predict, and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from fedproto_app import Forecaster
from fedproto_app.core.errors import FedProtoError

HOURS = pd.date_range("2026-01-05", periods=24 * 14, freq="h")
WAVE = 10 + 8 * np.sin(np.arange(len(HOURS)) * np.pi / 12)
LONG = pd.concat(
    [pd.DataFrame({"site": name, "when": HOURS, "load": WAVE + n}) for n, name in enumerate("abc")]
)
COLUMNS = {"id_col": "site", "time_col": "when", "target_col": "load"}


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return Forecaster(method="seasonal-naive", freq="h", horizon=24).fit(LONG, **COLUMNS)


def test_it_forecasts_a_day_under_the_frames_names(fitted: Forecaster) -> None:
    day = fitted.predict()
    assert list(day.columns) == ["site", "when", "y_hat"]
    assert day["when"].iloc[0] == HOURS[-1] + pd.Timedelta(hours=1)
    expected = np.concatenate([WAVE[-24:] + n for n in range(3)])
    np.testing.assert_allclose(day["y_hat"], expected, rtol=1e-5)


def test_levels_add_intervals(fitted: Forecaster) -> None:
    names = ["lo-95", "hi-95", "lo-80", "hi-80"]
    day = fitted.predict(h=2, level=[95, 80])
    assert list(day.columns)[3:] == names
    assert len(day) == 6
    assert (day["lo-95"] <= day["y_hat"]).all()
    assert list(fitted.predict(level=80).columns) == [*day.columns[:3], "lo-80", "hi-80"]
    assert fitted.predict(level=np.array([95, 80])).columns.equals(day.columns)
    with pytest.raises(FedProtoError, match="level = 90: known are 80, 95"):
        fitted.predict(level=[90])


@pytest.mark.parametrize(
    ("h", "message"),
    [(2.5, "steps = 2.5: expected a whole number"), (10**12, "0 steps ahead: at least")],
)
def test_steps_that_cannot_be_forecast(fitted: Forecaster, h: Any, message: str) -> None:
    with pytest.raises(FedProtoError, match=message):
        fitted.predict(h=h)


def test_newer_values_are_taken(fitted: Forecaster) -> None:
    newer = LONG.assign(when=LONG["when"] + pd.Timedelta(days=1))
    day = fitted.predict(new_df=newer)
    assert day["when"].iloc[0] == HOURS[-1] + pd.Timedelta(hours=25)


def test_times_of_another_kind_are_refused_where_hours_count(fitted: Forecaster) -> None:
    zoned = LONG.assign(when=LONG["when"].dt.tz_localize("Asia/Tokyo"))
    assert fitted.run_.settings.data.calendar == "phase"
    with pytest.raises(FedProtoError, match="has times with an offset from UTC, but its model was"):
        fitted.predict(new_df=zoned)


def test_parameters_are_as_scikit_learn_knows_them(fitted: Forecaster) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert copy.set_params(horizon=2).horizon == 2
    with pytest.raises(FedProtoError, match="call fit first"):
        copy.predict()
    with pytest.raises(FedProtoError, match="'steps' is no parameter; known are method, freq"):
        copy.set_params(steps=2)


def test_its_runs_are_removed_with_it() -> None:
    forecaster = Forecaster(method="naive").fit(LONG, **COLUMNS)
    folder = forecaster.run_.path
    assert folder.exists()
    del forecaster
    assert not folder.exists()


@pytest.mark.parametrize(
    ("freq", "frame", "message"),
    [
        ("30min", LONG, "freq = '30min': the series have a step of 0 days 01:00:00"),
        ("MS", LONG, "freq = 'MS': the series have a step"),
        (
            "W",
            LONG.assign(when=[*pd.date_range("2026-01-05", periods=len(HOURS), freq="7D")] * 3),
            "freq = 'W': the series have a step of 7 days 00:00:00, from Monday, 2026-01-05",
        ),
        ("hour-ish", LONG, "freq = 'hour-ish': pandas knows no such step"),
        (1, LONG, "freq = 1: the series have times"),
        (2, LONG.assign(when=[*range(len(HOURS))] * 3), "freq = 2: the series count by 1"),
        ("h", LONG.assign(when=[*range(len(HOURS))] * 3), "freq = 'h': the series have no times"),
    ],
)
def test_another_step_than_the_datas_is_refused(
    freq: Any, frame: pd.DataFrame, message: str, tmp_path: Path
) -> None:
    with pytest.raises(FedProtoError, match=message):
        Forecaster(freq=freq, folder=tmp_path / "runs").fit(frame, **COLUMNS)
    assert not (tmp_path / "runs").exists()


def test_a_setting_that_is_a_parameter_is_refused() -> None:
    for settings in ({"data.horizon": 3}, {"data": {"horizon": 3}}):
        with pytest.raises(FedProtoError, match=r"data\.horizon is the parameter horizon"):
            Forecaster(method="naive", settings=settings).fit(LONG, **COLUMNS)


def test_a_folder_that_is_no_path_is_refused() -> None:
    with pytest.raises(FedProtoError, match=r"output\.dir = 5: the path of a folder is needed"):
        Forecaster(method="naive", settings={"output.dir": 5}).fit(LONG, **COLUMNS)
