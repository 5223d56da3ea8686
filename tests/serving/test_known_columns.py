"""Forecasts with columns known in advance: from a table, a frame, or the data's own rows."""

from __future__ import annotations

import csv
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app import Forecaster, Run
from fedproto_app.cli.run import _next
from fedproto_app.core.errors import DataError, FedProtoError
from fedproto_app.data.scale import TrainedSeries
from fedproto_app.data.series import ClientSeries
from fedproto_app.serving import NodeState, forecast, open_state
from fedproto_app.settings import settings_from
from fedproto_app.strategies.response.features import Response
from tests.cli.conftest import Fedproto
from tests.cli.conftest import fedproto as fedproto
from tests.cli.conftest import signals_of_a_terminal as signals_of_a_terminal
from tests.helpers.local_grid import run_small
from tests.helpers.weather import CHANGES, weather_series

PERIOD = 24
FUTURE = np.array([[5.0, 0], [15, 0], [15, 1], [25, 0]])  # temperature, promotion


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> NodeState:
    folder = tmp_path_factory.mktemp("trained")
    run_small(folder, nodes=1, **CHANGES, method="naive")
    [path] = (folder / "state").glob("*/0")
    return open_state(path)


@pytest.fixture(scope="module")
def series() -> ClientSeries:
    """A client whose values have reached their end, and columns that go on for four steps."""
    return weather_series(settings_from(CHANGES).data)[0].with_future(FUTURE)


def test_a_forecast_follows_what_is_known(state: NodeState, series: ClientSeries) -> None:
    """The last value minus the response, and the response to the future."""
    record = state.store.record(series.name)
    assert record.response["columns"] == ["temperature", "promotion"]
    std = TrainedSeries.read(record.scale, series.name).scale.std
    response = Response.read(record.response).values(series.known, series.start, PERIOD)
    expected = series.values[-1] + std * (response[-4:] - response[-5])
    [result], _ = forecast(state, [series], 4)
    np.testing.assert_allclose(result.values, expected, rtol=1e-5)
    assert result.values[2] - result.values[1] > 3  # the promotion


def test_the_order_of_columns_and_others_do_not_matter(
    state: NodeState, series: ClientSeries
) -> None:
    turned = np.insert(series.known[:, ::-1], 0, np.nan, axis=1)
    reordered = replace(series, known=turned, columns=("wind", "promotion", "temperature"))
    (first,), (second,) = (forecast(state, [of_one], 4)[0] for of_one in (series, reordered))
    assert first.values.tolist() == second.values.tolist()


def test_forecasts_end_at_0_and_empty_times_have_none(
    state: NodeState, series: ClientSeries
) -> None:
    """A promotion ends with the last value, and no value is far enough from 0 for that."""
    columns = series.known.copy()
    columns[-5:] = [[5, 1], *[[5, 0]] * 4]
    values = np.full(len(series.values), 0.1)
    values[3::PERIOD] = np.nan  # the last of the four steps is at 3 o'clock
    [result], _ = forecast(state, [replace(series, values=values, known=columns)], 4, levels=[80])
    np.testing.assert_array_equal(result.values, [0, 0, 0, np.nan])
    assert result.limits["lo-80"][0] == 0
    [below], _ = forecast(state, [replace(series, values=-values, known=columns)], 1)
    assert below.values[0] < -1


def changed(series: ClientSeries, row: int, column: int) -> ClientSeries:
    columns = series.known.copy()
    columns[row, column] = np.nan
    return replace(series, known=columns)


HINT = "; give a table that has it with --covariates (in Python: future or X_df)"


def test_what_is_missing_of_the_future_is_named(state: NodeState, series: ClientSeries) -> None:
    """The values end at 1970-01-30 23:00."""
    end = len(series.values)
    cases = [
        (changed(series, end + 2, 1), "'promotion' has no value at 1970-01-31 02:00:00"),
        (changed(series, end - 1, 0), "'temperature' has no value at 1970-01-30 23:00:00"),
        (series.with_future(FUTURE[:1]), "'temperature' has no value at 1970-01-31 01:00:00"),
    ]
    for lacking, text in cases:
        with pytest.raises(DataError) as error:
            forecast(state, [lacking], 4)
        until = "and the forecast needs it until 1970-01-31 03:00:00"
        assert str(error.value) == f"client 'site-0': column {text}, {until}{HINT}"
    begins_late = changed(series, 0, 0)
    assert np.isfinite(forecast(state, [begins_late], 4)[0][0].values).all()
    with pytest.raises(DataError, match="client 'site-0': no column 'temperature', with which"):
        forecast(state, [replace(series, known=np.empty((0, 0)), columns=())], 1)


# --- files and frames -----------------------------------------------------------------------------

HOURS = pd.date_range("2024-03-04", periods=15 * 24 + 3, freq="h")


def made_frame(number: int) -> pd.DataFrame:
    """A client whose load answers to rain and temperature, and three hours of the future."""
    rng = np.random.default_rng(number)
    heat, sky = rng.normal(10, 5, len(HOURS)), rng.choice(["rain", "sun"], len(HOURS))
    load = 50 + 2 * heat + 9 * (sky == "rain") + rng.normal(0, 0.1, len(HOURS))
    load[-3:] = np.nan
    return pd.DataFrame(
        {"unique_id": f"c{number}", "ds": HOURS, "y": load, "heat": heat, "sky": sky}
    )


WITH = pd.concat([made_frame(number) for number in range(3)])
IS_FUTURE = WITH["ds"] >= HOURS[-3]
PAST, FUTURE_ROWS = WITH[~IS_FUTURE], WITH[IS_FUTURE].drop(columns="y")


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    settings = {"data.known": "heat,sky"}
    return Forecaster(method="naive", freq="h", horizon=3, settings=settings).fit(PAST)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name, frame in (("past", PAST), ("with", WITH), ("future", FUTURE_ROWS)):
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def values(forecasts: pd.DataFrame) -> list[float]:
    return forecasts["y_hat"].round(6).tolist()


def test_frames_of_the_future(fitted: Forecaster) -> None:
    day = fitted.predict(X_df=FUTURE_ROWS)
    assert list(day.columns) == ["unique_id", "ds", "y_hat"]
    assert set(day["ds"]) == set(HOURS[-3:])
    assert day["y_hat"].std() > 3
    assert values(fitted.predict(new_df=WITH)) == values(day)
    assert values(fitted.predict(new_df=PAST, X_df=FUTURE_ROWS)) == values(day)
    assert values(fitted.run_.forecast(future=FUTURE_ROWS)) == values(day)
    first = fitted.predict(h=1, X_df=FUTURE_ROWS[FUTURE_ROWS["ds"] == HOURS[-3]])
    assert values(first) == values(day)[::3]
    for_all = FUTURE_ROWS[FUTURE_ROWS["unique_id"] == "c1"].drop(columns="unique_id")
    assert values(fitted.predict(X_df=for_all))[3:6] == values(day)[3:6]


def test_past_rows_fill_what_newer_values_lack(fitted: Forecaster) -> None:
    """The past of a table does not replace the past of the data."""
    other_past = WITH.assign(heat=WITH["heat"].where(IS_FUTURE, 99)).drop(columns="y")
    assert values(fitted.predict(new_df=PAST, X_df=other_past)) == values(
        fitted.predict(X_df=FUTURE_ROWS)
    )
    lacking = PAST.assign(heat=PAST["heat"].mask(PAST["ds"] >= HOURS[-7]))
    with pytest.raises(FedProtoError, match=f"column 'heat' has no value at {HOURS[-7]}, and the"):
        fitted.predict(new_df=lacking, X_df=FUTURE_ROWS)
    filled = fitted.predict(new_df=lacking, X_df=WITH.drop(columns="y"))
    assert values(filled) == values(fitted.predict(X_df=FUTURE_ROWS))


def test_texts_that_the_training_never_saw_are_a_note(fitted: Forecaster) -> None:
    only = FUTURE_ROWS.assign(sky="sun")
    sun = fitted.predict(X_df=only)
    with pytest.warns(UserWarning, match="column 'sky' is 0 in all its columns in the 9 rows with"):
        hail = fitted.predict(X_df=FUTURE_ROWS.assign(sky="hail"))
    assert np.isfinite(hail["y_hat"]).all()
    assert values(sun) != values(fitted.predict(X_df=FUTURE_ROWS.assign(sky="rain")))


@pytest.mark.parametrize(
    ("future", "message"),
    [
        (None, f"client 'c0': column 'heat' has no value at {HOURS[-3]}, and"),
        (
            FUTURE_ROWS[FUTURE_ROWS["unique_id"] != "c1"],
            f"client 'c1': column 'heat' has no value at {HOURS[-3]}, and",
        ),
        (
            FUTURE_ROWS[FUTURE_ROWS["unique_id"] == "c0"].assign(unique_id="x"),
            "future: the frame of the future is for the clients x, but ",
        ),
        (FUTURE_ROWS.drop(columns="sky"), "the frame has no column 'sky'; it has heat"),
        (
            FUTURE_ROWS.assign(heat="warm"),
            "the frame of the future: no column 'heat', with which the models were trained; it has",
        ),
        (
            FUTURE_ROWS.assign(ds=FUTURE_ROWS["ds"].dt.tz_localize("UTC")),
            "future: the frame of the future has times in UTC 1:00:00 apart, but client 'c0' has",
        ),
        ([1], "the frame is a list, expected a DataFrame of pandas or polars"),
    ],
)
def test_frames_that_cannot_be_used(fitted: Forecaster, future: Any, message: str) -> None:
    with pytest.raises(FedProtoError, match=message):
        fitted.predict(X_df=future)


def test_zoned_times_are_of_the_same_moments(tmp_path: Path) -> None:
    def zoned(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(ds=frame["ds"].dt.tz_localize("Asia/Tokyo"))

    forecaster = Forecaster(method="naive", horizon=3, known=["heat"]).fit(zoned(PAST))
    day = forecaster.predict(X_df=zoned(FUTURE_ROWS))
    assert set(day["ds"]) == set(HOURS[-3:].tz_localize("Asia/Tokyo"))
    first = zoned(FUTURE_ROWS[FUTURE_ROWS["ds"] == HOURS[-3]])
    assert values(forecaster.predict(h=1, X_df=first)) == values(day)[::3]
    with pytest.raises(FedProtoError, match=r"settings: data.known is the parameter known"):
        Forecaster(known=["heat"], settings={"data.known": "sky"}).fit(PAST)


def test_a_copy_has_its_table_of_covariates(tmp_path: Path) -> None:
    wide = PAST.pivot(index="ds", columns="unique_id", values="y")
    weather = tmp_path / "weather.csv"
    WITH[WITH["unique_id"] == "c0"][["ds", "heat"]].to_csv(weather, index=False)
    settings = {"data.covariates": str(weather), "data.holidays": "", "data.calendar": "year"}
    forecaster = Forecaster(method="naive", horizon=3, settings=settings).fit(wide)
    expected = forecaster.predict()
    copied = pickle.loads(pickle.dumps(forecaster))
    weather.unlink()
    pd.testing.assert_frame_equal(copied.predict(), expected)
    with pytest.raises(FedProtoError, match=r"weather.csv: no such file"):
        forecaster.predict()


def forecast_csv(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out)))


def test_a_table_on_the_command_line(fedproto: Fedproto, fitted: Forecaster, folder: Path) -> None:
    command = ("forecast", fitted.run_.path, "--steps", 3, "--layout", "long")
    outcome = fedproto(*command, "--covariates", folder / "future.csv")
    assert outcome.code == 0, outcome.err
    rows = forecast_csv(outcome.out)
    expected = fitted.predict(X_df=FUTURE_ROWS)
    np.testing.assert_allclose([float(row["y_hat"]) for row in rows], expected["y_hat"], rtol=1e-6)
    assert fedproto(*command, "--data", folder / "with.csv").out == outcome.out
    for option, message in (
        ((), "column 'heat' has no value at 2024-03-19 00:00:00, and the forecast needs it until"),
        (("--covariates", folder / "none.csv"), "--covariates: "),
        (
            ("--covariates", folder / "future.csv", "--out", folder / "future.csv"),
            "part of the data",
        ),
    ):
        refused = fedproto(*command, *option)
        assert (refused.code, message in refused.err) == (2, True), refused.err


def test_runs_without_such_columns_need_no_table(
    fedproto: Fedproto,
    folder: Path,
) -> None:
    for calendar, except_time in (("none", ""), ("year", " other than those of the time")):
        plain = Forecaster(method="naive", calendar=calendar).fit(PAST)
        assert np.isfinite(plain.predict()["y_hat"]).all()
        option = ("--covariates", folder / "future.csv")
        refused = fedproto("forecast", plain.run_.path, *option)
        assert refused.code == 2
        assert refused.err == (
            "error: --covariates: the models were trained without columns known in advance"
            f"{except_time}; leave it out\n"
        )
        assert hint(plain.run_) == "--out next.csv"


def hint(run: Run) -> str:
    """Return the end of the command that a run suggests."""
    command, _ = _next(run.settings, run.path)
    return command.partition(f" --steps {run.settings.data.horizon} ")[2]


def test_the_suggested_command_names_a_table_where_one_is_needed(fitted: Forecaster) -> None:
    assert hint(fitted.run_) == "--out next.csv --covariates future.csv"
    forecaster = Forecaster(method="naive", horizon=3, known=["heat"]).fit(WITH)
    assert hint(forecaster.run_) == "--out next.csv"
    assert values(forecaster.predict()) == values(forecaster.predict(X_df=FUTURE_ROWS))
