"""Forecasts of kept models, on the scale of training, equal to the forecasts of the run."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedproto_app.core.errors import DataError, FedProtoError
from fedproto_app.core.methods import METHODS, methods_of
from fedproto_app.data.clock import Clock
from fedproto_app.data.scale import TrainedSeries
from fedproto_app.data.series import ClientSeries, ColumnNames
from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import carry_forward
from fedproto_app.node.store import ClientRecord, ClientStore
from fedproto_app.serving import (
    ClientForecast,
    Layout,
    NodeState,
    decimals_of,
    forecast,
    kept_model,
    limits_of,
    open_run,
    open_state,
    reasons_for_gaps,
    write_csv,
)
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.forecasting.task import ForecastingTask
from tests.helpers.local_grid import sequence_settings
from tests.helpers.made_series import (
    LOOKBACK,
    PERIOD,
    ROWS,
    forecasts_have_the_reported_errors,
    histories,
    made_series,
    one_step,
    train_on,
)
from tests.node.stored import changed, copied_with

LIMITS = ("lo-80", "hi-80", "lo-95", "hi-95")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[NodeState, list[ClientSeries]]:
    """Return the state of a short run of FUELS, and the series that it was trained on."""
    folder = tmp_path_factory.mktemp("trained")
    data = folder / "sites.csv"
    made_series().to_csv(data)
    _, state = train_on(data, folder)
    return open_state(state), histories(data)


NEEDED_SETTINGS = {"fedda": {"fedda.week": 4}}  # for so short a history
WILD = {"rounds": 4, "optimizer.learning-rate": 0.3}  # early models are the best


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *(
            (method, NEEDED_SETTINGS.get(method, {}))
            for method in methods_of("forecasting")
            if not METHODS[method].cannot_predict(settings_from({"method": method}))
        ),
        ("fedavg", WILD),
        ("apfl", WILD),
    ],
)
def test_walking_over_the_test_part_gives_the_reported_error(
    tmp_path: Path, method: str, changes: dict[str, Any]
) -> None:
    reported = forecasts_have_the_reported_errors(tmp_path, method=method, **changes)
    if "rounds" in changes:
        assert reported["kept_round"].min() < changes["rounds"]


def test_further_steps_take_forecasts_for_the_newest_values(
    trained: tuple[NodeState, list[ClientSeries]],
) -> None:
    state, series = trained
    steps = PERIOD + 2  # so that a forecast also becomes a periodic value
    forecasts, left_out = forecast(state, series, steps)
    assert left_out == {}
    for history, ahead in zip(series, forecasts, strict=True):
        for value in ahead.values:
            assert one_step(state, history) == pytest.approx(value, rel=1e-5)
            history = replace(history, values=np.append(history.values, value))


def test_a_gap_at_the_end_is_carried_forward(trained: tuple[NodeState, list[ClientSeries]]) -> None:
    state, (series, *_) = trained
    open_end = replace(series, values=np.append(series.values, [np.nan, np.nan]))
    filled = replace(series, values=np.append(series.values, [series.values[-1]] * 2))
    [result], _ = forecast(state, [open_end], 1)
    assert result.values[0] == one_step(state, filled)
    assert (result.gap, result.last) == (2, series.values[-1])
    assert result.first == series.start + ROWS + 2


def test_a_file_with_an_open_end_is_read_to_its_last_row(tmp_path: Path) -> None:
    frame = made_series()
    frame.iloc[-2:, 2] = np.nan
    frame.to_csv(tmp_path / "sites.csv")
    gappy, late, steady = histories(tmp_path / "sites.csv")
    ends = [client.start + len(client.values) for client in (gappy, late, steady)]
    assert ends == [gappy.start + ROWS] * 3
    assert np.isnan(steady.values[-2:]).all()
    assert late.start == gappy.start + 9  # nothing is before the first value


def test_the_scale_is_that_of_training(trained: tuple[NodeState, list[ClientSeries]]) -> None:
    """Values before the window would change a newly computed scale, but change no forecast."""
    state, (series, *_) = trained
    newer = replace(
        series, values=np.append(1000 * series.values[:-LOOKBACK], series.values[-LOOKBACK:])
    )
    newest = replace(series, values=series.values[-LOOKBACK:])
    assert one_step(state, newer) == one_step(state, series) == one_step(state, newest)


def test_times_go_on_where_the_file_ends(trained: tuple[NodeState, list[ClientSeries]]) -> None:
    state, series = trained
    forecasts, _ = forecast(state, series, 2)
    head, *cells = written(forecasts, "long")
    assert head == ["unique_id", "ds", "y_hat", "lo-80", "hi-80", "lo-95", "hi-95"]
    assert [row[:2] for row in cells] == [
        [client, f"2024-03-09 {time}"]
        for client in ("gappy", "late", "steady")
        for time in ("05:00:00", "06:00:00")
    ]
    assert all(row[3:] == [""] * 4 for row in cells[1::2])  # models forecast one step at once
    for row in cells[::2]:
        middle, lower_80, upper_80, lower_95, upper_95 = map(float, row[2:])
        assert lower_95 <= lower_80 < middle < upper_80 <= upper_95
    values = [float(row[2]) for row in cells]
    np.testing.assert_allclose(
        values, np.concatenate([result.values for result in forecasts]), rtol=1e-9
    )


def written(forecasts: list[ClientForecast], layout: Layout = "as-data") -> list[list[str]]:
    file = io.StringIO()
    write_csv(forecasts, file, layout)
    return [row.split(",") for row in file.getvalue().splitlines()]


def two_forecasts(columns: ColumnNames | None, decimals: int | None = 1) -> list[ClientForecast]:
    """Return two steps of two clients, the second step without intervals."""
    clock = Clock(np.timedelta64(3600, "s"), np.timedelta64(0, "s"))
    values, half = np.array([1.26, -0.04]), np.array([[1.0, np.nan], [2.0, np.nan]])
    return [
        ClientForecast(
            client=name,
            values=values + number,
            limits=limits_of(values + number, half, -np.inf),
            first=10,
            clock=clock,
            last=0.0,
            gap=0,
            table=columns,
            decimals=decimals,
        )
        for number, name in enumerate(("north", "south"))
    ]


def test_a_wide_table_gives_a_wide_table() -> None:
    head, first, second = written(two_forecasts(ColumnNames("when")))
    limits = [f"{n}-{limit}" for n in ("north", "south") for limit in LIMITS]
    assert head == ["when", "north", "south", *limits]
    assert first[:4] == ["1970-01-01 10:00:00", "1.3", "2.3", "0.3"]
    assert second == ["1970-01-01 11:00:00", "0.0", "1.0", *[""] * 8]  # no -0.0


def test_a_long_table_gives_a_long_table_with_its_names() -> None:
    forecasts = two_forecasts(ColumnNames("when", "load", "site"), decimals=None)
    head, first, *_ = written(forecasts)
    assert head == ["site", "when", "load", *LIMITS]
    assert first == ["north", "1970-01-01 10:00:00", "1.26", "0.26", "2.26", "-0.74", "3.26"]
    assert written(forecasts, "long")[0] == ["unique_id", "ds", "y_hat", *LIMITS]
    assert written(two_forecasts(None))[0] == ["unique_id", "ds", "y_hat", *LIMITS]


@pytest.mark.parametrize("names", [("when",), ("when", "load", "site")])
def test_delimiter_and_decimal_sign_are_those_of_the_data(names: tuple[str, ...]) -> None:
    columns = replace(ColumnNames(*names), delimiter=";", decimal=",")
    file = io.StringIO()
    write_csv(two_forecasts(columns), file)
    head, first, *_ = file.getvalue().splitlines()
    assert head.count(";") == first.count(";") >= 6
    assert "1,3;" in first
    assert "." not in first
    assert written(two_forecasts(columns), "long")[1][2] == "1.3"


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([10.0, 200.0, np.nan], 0),
        ([10.25, 300.5], 2),
        ([0.0, 0.0, 0.0], 0),
        ([0.0, 1.0, 0.0, 0.0], 1),  # a deviation of 0.4: its forecasts would all be 0
        ([1e-7, 1.25e-7], 9),
        ([np.pi, np.e], None),
        ([np.nan], 0),
    ],
)
def test_forecasts_have_the_decimals_of_the_data(values: list[float], decimals: int | None) -> None:
    assert decimals_of(np.array(values)) == decimals


def test_forecasts_of_what_is_never_negative_end_at_zero(tmp_path: Path) -> None:
    """Both the train part and the new values must not be negative. The run's errors stay."""
    frame = made_series()
    frame["low"] = (frame["gappy"] - frame["gappy"].min()).round(1).fillna(0.0)
    frame["below"] = frame["low"] - 10
    data = tmp_path / "sites.csv"
    frame[["low", "below"]].to_csv(data)
    _, folder = train_on(data, tmp_path, method="naive")
    state, (low, below) = open_state(folder), histories(data)
    at_zero = replace(low, values=np.append(low.values, 0.0))
    [floored], _ = forecast(state, [at_zero], 1)
    assert [floored.limits[name][0] for name in ("lo-80", "lo-95")] == [0, 0]
    assert floored.limits["hi-80"][0] > 0
    assert written([floored])[1][1:3] == ["0.0", "0.0"]
    [negative], _ = forecast(state, [replace(low, values=np.append(low.values, -1.0))], 1)
    assert negative.values[0] == pytest.approx(-1)
    [free], _ = forecast(state, [replace(below, values=np.append(below.values, -10.0))], 1)
    assert free.limits["lo-80"][0] < free.values[0] < 0


def test_days_that_never_had_a_value_get_no_forecast(tmp_path: Path) -> None:
    """Forecasts beyond a Sunday equal those from a series without the Sunday."""
    days = pd.date_range("2024-01-01", periods=7 * 16, freq="D", name="date")  # from a Monday on
    shop = pd.Series(np.random.default_rng(5).uniform(20, 30, len(days)).round(1), index=days)
    shop[days.day_of_week == 6] = np.nan
    pd.DataFrame({"closed": shop, "open": shop.ffill()}).to_csv(tmp_path / "shops.csv")
    _, folder = train_on(tmp_path / "shops.csv", tmp_path, **{"data.period": 7})
    state, (closed, always_open) = open_state(folder), histories(tmp_path / "shops.csv")
    (prediction, second), _ = forecast(state, [closed, always_open], 10)
    assert np.flatnonzero(np.isnan(prediction.values)).tolist() == [6]
    assert all(np.isnan(limit[6]) for limit in prediction.limits.values())
    assert np.isfinite(second.values).all()
    assert reasons_for_gaps([prediction, second]) == {
        "closed": "no forecast on Sundays, because no value was ever there",
    }
    extended = np.concatenate([closed.values, prediction.values[:9]])
    assert one_step(state, replace(closed, values=extended)) == pytest.approx(prediction.values[9])
    text = io.StringIO()
    write_csv([prediction], text)
    assert text.getvalue().splitlines()[7] == "2024-04-28,,,,,"


def test_clients_that_cannot_be_forecast_are_left_out_with_the_reason(
    trained: tuple[NodeState, list[ClientSeries]],
) -> None:
    state, (gappy, late, _) = trained
    forecasts, left_out = forecast(state, [gappy, late.part(0, 0), replace(gappy, name="new")], 1)
    assert [result.client for result in forecasts] == ["gappy"]
    assert left_out == {
        "late": "no value is present",
        "new": f"it did not train: no kept model in {state.folder}",
        "steady": "not in the data",
    }


def test_a_short_history_reaches_before_its_first_value(
    trained: tuple[NodeState, list[ClientSeries]],
) -> None:
    """Values before the first are replaced by the first value of the same phase."""
    state, (gappy, late, _) = trained
    short = late.part(len(late.values) - PERIOD - 1)
    places = np.arange(PERIOD + 1 - LOOKBACK, PERIOD + 1)
    phases = np.where(places < 0, places % PERIOD, places)
    long_enough = replace(short, values=short.values[phases], start=short.end - LOOKBACK)
    # In one cohort with a client that has enough.
    (_, by_reach), (_, by_values) = (
        forecast(state, [gappy, client], 9)[0] for client in (short, long_enough)
    )
    assert by_reach.values == pytest.approx(by_values.values)
    newest = late.part(len(late.values) - 1)  # a single value
    assert np.isfinite(forecast(state, [newest], 9)[0][0].values).all()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("late", "no value is present"),
        ("steady", "not in the data"),
        ("new", "it did not train: no kept model in .*; there are models of gappy, late, steady"),
        ("nobody", "neither in the data nor in the state"),
    ],
)
def test_a_client_asked_for_must_be_forecast(
    trained: tuple[NodeState, list[ClientSeries]], name: str, reason: str
) -> None:
    state, (gappy, late, _) = trained
    series = [gappy, late.part(0, 0), replace(gappy, name="new")]
    with pytest.raises(DataError, match=f"^client '{name}' cannot be forecast: {reason}"):
        forecast(state, series, 1, clients=[name])
    forecasts, left_out = forecast(state, series, 1, clients=["gappy"])
    assert ([result.client for result in forecasts], left_out) == (["gappy"], {})


def test_columns_that_the_training_did_not_have_change_nothing(
    trained: tuple[NodeState, list[ClientSeries]],
) -> None:
    state, (series, *_) = trained
    weather = replace(series, known=np.zeros((len(series.values), 1)), columns=("weather",))
    expected = forecast(state, [series], 2)[0][0].values
    assert forecast(state, [weather], 2)[0][0].values.tolist() == expected.tolist()


def test_nothing_to_forecast_is_an_error(trained: tuple[NodeState, list[ClientSeries]]) -> None:
    state, (gappy, *_) = trained
    with pytest.raises(DataError, match="client 'gappy' cannot be forecast: no value is present"):
        forecast(state, [gappy.part(0, 0)], 1)


def test_values_that_end_before_the_trainings_are_left_out(
    trained: tuple[NodeState, list[ClientSeries]],
) -> None:
    state, (gappy, late, steady) = trained
    older = late.part(0, len(late.values) - 1)
    forecasts, left_out = forecast(state, [gappy, older, steady], 1)
    assert [result.client for result in forecasts] == ["gappy", "steady"]
    assert left_out["late"] == (
        "its values end at 2024-03-09 03:00:00, before those that it was trained on, which end at "
        "2024-03-09 04:00:00; give its values up to now"
    )
    with pytest.raises(DataError, match="client 'late' cannot be forecast: its values end at"):
        forecast(state, [older], 1)


@pytest.mark.parametrize("level", [0, 100, 90.5, "90"])
def test_a_level_that_is_no_percentage_is_refused(
    trained: tuple[NodeState, list[ClientSeries]], level: Any
) -> None:
    state, series = trained
    with pytest.raises(FedProtoError, match=f"level = {level!r}: expected a whole number from 1"):
        forecast(state, series, 1, levels=[level])


def test_a_higher_level_has_a_wider_interval(trained: tuple[NodeState, list[ClientSeries]]) -> None:
    state, series = trained
    levels = range(1, 100)
    [result, *_], _ = forecast(state, series, 1, levels=levels)
    assert result.levels == list(levels)
    widths = [result.limits[f"hi-{n}"][0] - result.limits[f"lo-{n}"][0] for n in levels]
    assert all(narrow < wide for narrow, wide in pairwise(widths))
    [usual, *_], _ = forecast(state, series, 1)
    assert all(result.limits[name] == usual.limits[name] for name in LIMITS)


def test_another_step_is_refused(trained: tuple[NodeState, list[ClientSeries]]) -> None:
    state, (gappy, *_) = trained
    assert gappy.clock is not None
    minutes = replace(gappy.clock, step=np.timedelta64(300, "s"))
    for clock, problem in ((minutes, "has the step 5 min"), (None, "has no times")):
        with pytest.raises(DataError, match=f"^client 'gappy' {problem}.*the step 1 h, 6 of"):
            forecast(state, [replace(gappy, clock=clock)], 1)


def test_without_times_steps_are_counted(tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    made_series()[["steady"]].to_csv(data, index=False)
    _, folder = train_on(data, tmp_path, method="solo")
    forecasts, _ = forecast(open_state(folder), histories(data), 2)
    assert [row[0] for row in written(forecasts)] == ["step", str(ROWS), str(ROWS + 1)]
    assert [row[:2] for row in written(forecasts, "long")[1:]] == [
        ["steady", str(ROWS)],
        ["steady", str(ROWS + 1)],
    ]


DAY = {"data.horizon": PERIOD, "method": "fedavg"}


@pytest.mark.parametrize("calendar", ["phase", "week"])
def test_a_period_at_once_is_what_the_model_says_by_hand(tmp_path: Path, calendar: str) -> None:
    """Two blocks of H with their times, where the second uses the values of the first."""
    data = tmp_path / "sites.csv"
    made_series().to_csv(data)
    _, folder = train_on(data, tmp_path, **DAY, **{"data.calendar": calendar})
    state, series = open_state(folder), histories(data)
    forecasts, _ = forecast(state, series, PERIOD + 2)
    task = ForecastingTask(state.settings)
    learner = make_learner(state.settings, task)
    for history, ours in zip(series, forecasts, strict=True):
        record = state.store.record(history.name)
        model = {n: v[None] for n, v in kept_model(state.store, history.name, learner).items()}
        scale = TrainedSeries.read(record.scale, history.name).scale
        values_so_far = list(carry_forward(scale.standardised(history.values)))
        for _ in range(2):
            hour = history.start + len(values_so_far)
            periods = (2, 1) if calendar == "phase" else (7, 2, 1)
            periodic = [values_so_far[len(values_so_far) - n * PERIOD :][:PERIOD] for n in periods]
            times = [hour % PERIOD, hour // PERIOD % 7][: 1 if calendar == "phase" else 2]
            sample = [*values_so_far[-3:], *chain(*periodic), *times]
            ahead = task.forecast(model, torch.tensor(sample, dtype=torch.float32)[None, None])
            values_so_far += ahead[0, 0].tolist()
        expected = scale.original(np.array(values_so_far[len(history.values) :][: PERIOD + 2]))
        np.testing.assert_allclose(ours.values, expected, rtol=1e-6)
        for level in (80, 95):
            half = [record.private[f"half-width-{level}/step-{h + 1}"] for h in range(PERIOD)]
            upper = ours.limits[f"hi-{level}"]
            np.testing.assert_allclose(
                upper[:PERIOD], expected[:PERIOD] + np.array(half) * scale.std
            )
            assert np.isnan(upper[PERIOD:]).all()


def test_a_state_without_half_widths_still_forecasts(
    trained: tuple[NodeState, list[ClientSeries]], tmp_path: Path
) -> None:
    """The run is older than intervals, so the limits are empty."""
    state, series = trained
    shutil.copytree(state.folder, tmp_path / "old")
    changed(tmp_path / "old", "UPDATE records SET record = json_remove(record, '$.private')")
    [result, *_], _ = forecast(open_state(tmp_path / "old"), series, 1)
    assert result.values == forecast(state, series, 1)[0][0].values
    assert written([result])[1][2:] == [""] * 4


def test_without_times_the_calendar_needs_the_data_from_their_beginning(tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    made_series()[["steady"]].to_csv(data, index=False)
    _, folder = train_on(data, tmp_path, **DAY, **{"data.calendar": "phase"})
    [series], state = histories(data), open_state(folder)
    longer = replace(series, values=np.append(series.values, series.values[-1]))
    assert forecast(state, [longer], 1)[0][0].first == ROWS + 1
    newest = replace(series, values=series.values[-LOOKBACK:])
    with pytest.raises(DataError, match=r"'steady' .* no times and ends at step 12, but .* 120;"):
        forecast(state, [newest], 1)


def test_a_whole_run_is_forecast_in_the_order_of_its_series(tmp_path: Path) -> None:
    """Two nodes with a client each: the forecasts are the same as of each node alone."""
    data = tmp_path / "sites.csv"
    made_series().to_csv(data)
    _, folder = train_on(data, tmp_path)
    series = histories(data)
    for node, client in (("0", "late"), ("1", "gappy")):
        copied_with(client, folder, tmp_path / "run/state" / node)
    states = open_run(tmp_path / "run")
    forecasts, left_out = forecast(states, series, 2)
    assert [result.client for result in forecasts] == ["gappy", "late"]
    assert left_out == {"steady": f"it did not train: no kept model in {tmp_path / 'run/state'}"}
    for ours, alone in zip(forecasts, forecast(open_state(folder), series, 2)[0], strict=False):
        assert np.array_equal(ours.values, alone.values)
        for name, limit in ours.limits.items():
            assert np.array_equal(limit, alone.limits[name], equal_nan=True)
    with pytest.raises(FedProtoError, match="no nodes' state in it"):
        open_run(tmp_path)


def node_with_a_model(folder: Path) -> ClientStore:
    store = ClientStore(folder)
    store.keep("steady", ClientRecord(1))
    store.settle()
    return store


def test_the_only_state_below_is_found_and_several_are_told(tmp_path: Path) -> None:
    first, second = (tmp_path / run / "harbour" for run in ("first-1", "second-2"))
    for folder in (first, second):
        node_with_a_model(folder).write_settings(
            {"task": "forecasting", "method": "fuels"}, DataShape()
        )
    assert open_state(first).folder == open_state(first.parent).folder == first
    with pytest.raises(FedProtoError, match="several nodes") as error:
        open_state(tmp_path)
    assert str(error.value).endswith(f"{first}, {second}")


def test_folders_without_a_state_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match="no such folder"):
        open_state(tmp_path / "nowhere")
    with pytest.raises(FedProtoError, match="no node's state with a kept model in it"):
        open_state(tmp_path)
    node_with_a_model(tmp_path)
    with pytest.raises(FedProtoError, match=r"settings\.toml: no such file"):
        open_state(tmp_path)
    (tmp_path / "settings.toml").write_text("task = ")
    with pytest.raises(FedProtoError, match=r"settings or shape are damaged: "):
        open_state(tmp_path)
    (tmp_path / "settings.toml").write_text("")
    with pytest.raises(FedProtoError, match=r"shape\.json: no such file"):
        open_state(tmp_path)
    for damaged in ("{}", "[]", "{", '{"inputs": 1}'):
        (tmp_path / "shape.json").write_text(damaged)
        with pytest.raises(FedProtoError, match=r"settings or shape are damaged: "):
            open_state(tmp_path)


def test_another_task_is_refused(tmp_path: Path) -> None:
    settings = sequence_settings(tmp_path).model_dump(by_alias=True, exclude={"output"})
    node_with_a_model(tmp_path).write_settings(settings, DataShape())
    with pytest.raises(FedProtoError, match="of task = 'sequence-classification'"):
        open_state(tmp_path)


@pytest.mark.parametrize("missing", ["shared", "rest"])
def test_half_a_model_forecasts_nothing(tmp_path: Path, missing: str) -> None:
    data = tmp_path / "sites.csv"
    made_series().to_csv(data)
    _, folder = train_on(data, tmp_path, method="apfl")
    if missing == "shared":
        changed(folder, "DELETE FROM shared")
        reason = "^client 'gappy': its kept model lacks 'encoder"
    else:
        file = folder / "state.sqlite"
        file.write_bytes(file.read_bytes()[:20000])
        reason = r"state\.sqlite: is damaged"
    with pytest.raises(FedProtoError, match=reason):
        forecast(open_state(folder), histories(data), 1)
