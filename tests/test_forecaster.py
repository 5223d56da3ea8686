"""The forecaster's habits: parameters, fit and predict, and its refusals."""

from __future__ import annotations

import pickle
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import joblib
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
    between = fitted.predict(h=2, level=90)
    assert ((day["hi-80"] < between["hi-90"]) & (between["hi-90"] < day["hi-95"])).all()
    with pytest.raises(FedProtoError, match="level = 100: expected a whole number from 1 to 99"):
        fitted.predict(level=[100])


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


COPIES = {"pickle": lambda forecaster: pickle.loads(pickle.dumps(forecaster)), "copy": deepcopy}


@pytest.mark.parametrize("way", list(COPIES))
def test_a_copy_outlives_the_original(way: str) -> None:
    forecaster = Forecaster(method="naive").fit(LONG, **COLUMNS)
    expected, original = forecaster.predict(level=90), forecaster.run_.path
    copied = COPIES[way](forecaster)
    again = COPIES[way](copied)
    del forecaster
    assert not original.exists()
    folder = copied.run_.path.parent
    assert folder.stat().st_mode & 0o077 == 0
    pd.testing.assert_frame_equal(copied.predict(level=90), expected)
    assert set(copied.run_.predictions()["unique_id"]) == set("abc")
    del copied
    assert not folder.exists()
    pd.testing.assert_frame_equal(again.predict(level=90), expected)


def test_another_process_reads_a_forecaster(tmp_path: Path) -> None:
    forecaster = Forecaster(method="naive").fit(LONG, **COLUMNS)
    joblib.dump(forecaster, tmp_path / "forecaster.joblib")
    expected = forecaster.predict()["y_hat"].tolist()
    del forecaster
    program = "import joblib, sys; print(joblib.load(sys.argv[1]).predict()['y_hat'].tolist())"
    command = [sys.executable, "-c", program, str(tmp_path / "forecaster.joblib")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.strip() == str(expected)


def test_a_copy_has_what_forecasts_need_and_no_more() -> None:
    trained = Forecaster(method="solo", settings={"rounds": 1}).fit(LONG, **COLUMNS)
    files = trained.__getstate__()["_files"]
    assert {name.split("/")[-1] for name in files} == {
        *("summary.json", "settings.toml", "clients.csv", "rounds.jsonl"),
        *("state.sqlite", "shape.json", "series.npz"),
    }  # fmt: skip
    state = next(content for name, content in files.items() if name.endswith("state.sqlite"))
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(state)
        counts = [
            database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
            for table in ("models", "training")
        ]
    assert counts[0] > 0
    assert counts[1] == 0


def test_a_copy_of_a_run_that_is_gone_is_refused() -> None:
    forecaster = Forecaster(method="naive").fit(LONG, **COLUMNS)
    shutil.rmtree(forecaster.run_.path.parent)
    with pytest.raises(FedProtoError, match=r"models cannot be copied: .*No such file"):
        pickle.dumps(forecaster)


def test_a_file_outside_its_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match=r"'\.\./x': a file of the forecaster lies outside"):
        Forecaster().__setstate__({"_files": {"../x": b""}})


def test_with_a_folder_the_models_stay_in_it(tmp_path: Path) -> None:
    forecaster = Forecaster(method="naive", folder=tmp_path).fit(LONG, **COLUMNS)
    copied = deepcopy(forecaster)
    assert copied.run_.path == forecaster.run_.path
    assert copied.predict().equals(forecaster.predict())


@pytest.mark.parametrize(
    ("freq", "frame", "message"),
    [
        ("30min", LONG, "freq = '30min': the series have a step of 0 days 01:00:00"),
        ("MS", LONG, "freq = 'MS': the series have a step of 0 days 01:00:00"),
        ("M", LONG, "freq = 'M': the series have a step of 0 days 01:00:00"),
        ("H", LONG, "freq = 'H': pandas writes 'h'"),
        (
            "W",
            LONG.assign(when=[*pd.date_range("2026-01-05", periods=len(HOURS), freq="7D")] * 3),
            "from Monday, 2026-01-05 00:00 on; 'W' are weeks from Sunday on, write 'W-MON' or '7D'",
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
