"""Frames that people pass to a forecaster, and what they ask of it later: a table or one line.

A forecaster is trained once for all of them, and once for each kind of ids and times that must come
back.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app import Forecaster
from fedproto_app.core.errors import FedProtoError

NAMES, HORIZON = ("a", "b", "c", "d"), 12
Change = Callable[[pd.DataFrame], Any]


def base(days: int = 14, first: str = "2024-05-06", names: tuple[str, ...] = NAMES) -> pd.DataFrame:
    """Hourly values of a day's wave, a row for each client and hour."""
    times = pd.date_range(first, periods=24 * days, freq="h")
    noise = np.random.default_rng(0).normal(size=(len(names), len(times)))
    wave = 20 + 5 * np.sin(np.arange(len(times)) * np.pi / 12)
    return pd.concat(
        [
            pd.DataFrame({"unique_id": name, "ds": times, "y": wave + 5 * number + noise[number]})
            for number, name in enumerate(names)
        ],
        ignore_index=True,
    )


def trained(frame: Any, freq: Any = "h", **parameters: Any) -> Forecaster:
    parameters = {"horizon": HORIZON, **parameters}
    return Forecaster(method="seasonal-naive", freq=freq, **parameters).fit(frame)


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    return trained(base())


def wide(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.pivot(index="ds", columns="unique_id", values="y")


class OtherFrame:
    """A frame of another library, which can make pandas' of it."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def to_pandas(self) -> pd.DataFrame:
        return self.frame


def as_texts(frame: pd.DataFrame) -> pd.DataFrame:
    comma = frame["y"].map("{:.10f}".format).str.replace(".", ",")
    return frame.assign(ds=frame["ds"].dt.strftime("%d.%m.%Y %H:%M"), y=comma)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda frame: frame.astype({"y": "Float64"}), id="nullable floats"),
        pytest.param(lambda frame: frame.assign(y=frame["y"].map(Decimal)), id="Decimal"),
        pytest.param(lambda frame: frame.set_index(["unique_id", "ds"]), id="MultiIndex"),
        pytest.param(lambda frame: frame.set_index("unique_id"), id="id as the index"),
        pytest.param(lambda frame: frame.set_index("ds", drop=False), id="ds twice, equal"),
        pytest.param(wide, id="wide"),
        pytest.param(as_texts, id="texts, decimal commas"),
        pytest.param(lambda frame: frame.sample(frac=1, random_state=0), id="shuffled"),
        pytest.param(OtherFrame, id="to_pandas"),
        pytest.param(lambda frame: Polars(frame), id="polars without pyarrow"),
    ],
)
def test_every_form_of_a_frame_gives_the_same_rows(forecaster: Forecaster, change: Change) -> None:
    expected = forecaster.predict(level=[80])
    ours = forecaster.predict(level=[80], new_df=change(base()))
    ours = ours.sort_values(["unique_id", "ds"]).reset_index(drop=True)  # shuffled frames
    pd.testing.assert_frame_equal(ours, expected, check_dtype=False)


def test_categorical_ids_come_back_as_they_were(forecaster: Forecaster) -> None:
    ids = pd.CategoricalDtype(["z", "d", "c", "b", "a", "unused"])
    ours = forecaster.predict(new_df=base().astype({"unique_id": ids}))
    assert ours["unique_id"].dtype == ids
    assert set(ours["unique_id"]) == set(NAMES)


@pytest.mark.parametrize("is_wide", [False, True])
def test_ids_that_are_numbers_come_back_as_numbers(is_wide: bool) -> None:
    numbers = base().replace({"unique_id": dict(zip(NAMES, (1, 2, 10, 30), strict=True))})
    numbers["unique_id"] = numbers["unique_id"].astype("int64")
    frame = wide(numbers) if is_wide else numbers
    forecaster = trained(frame)
    for ours in (forecaster.predict(), forecaster.predict(new_df=frame)):
        assert ours["unique_id"].dtype == "int64"
        assert ours["unique_id"].unique().tolist() == [1, 2, 10, 30]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((1, 2, "2", 10), "'unique_id' holds 2 and '2', which would both be client '2'; write"),
        (("a", "b", "b ", "c"), "holds 'b' and 'b ', which would both be client 'b'"),
    ],
)
def test_ids_that_would_be_one_client_are_refused(ids: tuple[Any, ...], message: str) -> None:
    frame = base()
    frame["unique_id"] = frame["unique_id"].map(dict(zip(NAMES, ids, strict=True)))
    with pytest.raises(FedProtoError, match=message):
        trained(frame)


@pytest.mark.parametrize("first", ["2024-03-20", "2024-10-20"])
def test_hours_come_back_in_their_zone_over_a_change_of_clocks(first: str) -> None:
    """The clocks change in the night to 31 March and to 27 October."""
    frame = base(first=first)
    local = pd.date_range(first, periods=24 * 14, freq="h", tz="Europe/Berlin")
    frame["ds"] = pd.Series(list(local) * len(NAMES), dtype=local.dtype)
    forecaster = trained(frame)
    for ours in (forecaster.predict(), forecaster.predict(new_df=frame)):
        assert str(ours["ds"].dt.tz) == "Europe/Berlin"
        assert ours["ds"].iloc[0] == local[-1] + pd.Timedelta(hours=1)


def test_days_of_a_zone_are_days_over_a_change_of_clocks() -> None:
    days = pd.date_range("2024-02-01", periods=59, freq="D", tz="Europe/Berlin")
    noise = np.random.default_rng(1).normal(size=(2, len(days)))
    frame = pd.concat(
        [
            pd.DataFrame({"unique_id": name, "ds": days, "y": noise[n]})
            for n, name in enumerate("ab")
        ]
    )
    ours = trained(frame, freq="D", horizon=3).predict()
    expected = pd.date_range("2024-03-31", periods=3, freq="D", tz="Europe/Berlin")
    assert ours["ds"].tolist() == expected.tolist() * 2


MONTHS = pd.period_range("2012-01", periods=14 * 24, freq="M")


def of_months(times: Any) -> pd.DataFrame:
    frame = base()
    frame["ds"] = pd.concat([pd.Series(times)] * len(NAMES), ignore_index=True)
    return frame


@pytest.mark.parametrize(
    ("make", "freq", "message"),
    [
        (lambda: of_months(MONTHS), "h", "step of monthly, at the month's start, from Sunday"),
        (lambda: of_months(MONTHS.to_timestamp()), "ME", "step of monthly, at the month's start"),
        (lambda: wide(base()).set_axis(["a", "a", "b", "c"], axis=1), "h", "are named 'a'"),
        (lambda: base().replace({"y": {base()["y"][5]: np.inf}}), "h", "number 6 is infinite"),
        (lambda: base().set_index("ds")["y"], "h", "the frame is a Series, expected a DataFrame"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    make: Callable[[], Any], freq: Any, message: str
) -> None:
    with pytest.raises(FedProtoError, match=message) as caught:
        trained(make(), freq)
    assert "\n" not in str(caught.value)


AFTER = pd.period_range(MONTHS[-1] + 1, periods=2, freq="M")
DAYS = pd.bdate_range("2024-01-01", periods=len(MONTHS) + 2)
YEARS = range(1600, 1602 + len(MONTHS))


@pytest.mark.parametrize(
    ("times", "freq", "further", "period"),
    [
        (MONTHS, "M", AFTER, 12),
        (MONTHS.to_timestamp(), "MS", AFTER.to_timestamp(), 12),
        (MONTHS.to_timestamp(how="E").normalize(), "ME", AFTER.to_timestamp(how="E"), 12),
        (DAYS[:-2], "B", DAYS[-2:], 5),
        (DAYS[:-2].tz_localize("Europe/Berlin"), "B", DAYS[-2:].tz_localize("Europe/Berlin"), 5),
        (YEARS[:-2], "YS", YEARS[-2:], 1),
        (range(len(MONTHS)), 1, range(len(MONTHS), len(MONTHS) + 2), 24),
    ],
)
def test_forecasts_go_on_by_the_calendar_as_the_frame_writes_times(
    times: Any, freq: Any, further: Any, period: int
) -> None:
    frame = of_months(times).rename(columns={"ds": "year"})
    forecaster = Forecaster(method="seasonal-naive", freq=freq, horizon=2)
    forecasts = forecaster.fit(frame, id_col="unique_id", time_col="year", target_col="y").predict()
    expected = further.normalize() if freq == "ME" else further
    assert forecasts["year"].tolist()[:2] == list(expected)
    assert forecaster.run_.settings.data.period == period


class Polars(OtherFrame):
    """A frame of polars where pyarrow is not installed."""

    columns = ("unique_id", "ds", "y")

    def to_pandas(self) -> pd.DataFrame:
        raise ModuleNotFoundError("pyarrow is required")

    def __getitem__(self, name: str) -> pd.Series:
        return self.frame[name]


# --- after training -------------------------------------------------------------------------------


def test_one_client_of_four(forecaster: Forecaster) -> None:
    newer = base(days=21)
    ours = forecaster.predict(new_df=newer[newer["unique_id"] == "b"])
    assert ours["unique_id"].tolist() == ["b"] * HORIZON
    assert ours["ds"].iloc[0] == pd.Timestamp("2024-05-27")


def test_a_client_that_did_not_train_is_named(forecaster: Forecaster) -> None:
    with pytest.warns(UserWarning, match="not forecast: e: it did not train: no kept model"):
        ours = forecaster.predict(new_df=base(days=21, names=("a", "e")))
    assert set(ours["unique_id"]) == {"a"}
    with pytest.raises(FedProtoError, match=r"'e' .* did not train: .* models of a, b, c, d"):
        forecaster.predict(new_df=base(days=21, names=("e",)))


def test_values_that_end_before_the_trainings_are_refused(forecaster: Forecaster) -> None:
    with pytest.raises(FedProtoError, match="'a' cannot be forecast: its values end at 2024-05-15"):
        forecaster.predict(new_df=base(days=10))
    short_and_long = pd.concat([base(days=10, names=("a",)), base(days=21, names=("b",))])
    with pytest.warns(UserWarning, match="not forecast: a: its values end at 2024-05-15 23:00:00,"):
        ours = forecaster.predict(new_df=short_and_long)
    assert set(ours["unique_id"]) == {"b"}


def test_later_values_after_a_gap_and_with_different_ends(forecaster: Forecaster) -> None:
    after_a_gap = forecaster.predict(new_df=base(days=10, first="2024-06-10"))
    assert after_a_gap["ds"].iloc[0] == pd.Timestamp("2024-06-20")
    newer = base(days=21)
    last = newer["ds"].max() - pd.to_timedelta(newer["unique_id"].map({"a": 5, "c": 7}), unit="h")
    ours = forecaster.predict(new_df=newer[~(newer["ds"] > last)])
    begins = ours.groupby("unique_id")["ds"].min() - pd.Timestamp("2024-05-27")
    assert (begins / pd.Timedelta(hours=1)).tolist() == [-5, 0, -7, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.iloc[::2], "has the step 2 h, but its model was trained on"),
    ],
)
def test_another_step_is_refused(forecaster: Forecaster, change: Change, message: str) -> None:
    with pytest.raises(FedProtoError, match=message):
        forecaster.predict(new_df=change(base(days=21)))


def test_other_steps_and_levels(forecaster: Forecaster) -> None:
    beyond = forecaster.predict(h=2 * HORIZON, level=[80])
    assert beyond["hi-80"].isna().sum() == HORIZON * len(NAMES)
    assert list(forecaster.predict(level=[90]).columns)[3:] == ["lo-90", "hi-90"]
    with pytest.raises(FedProtoError, match="steps = 0: expected a whole number from 1 on"):
        forecaster.predict(h=0)


def test_fit_again_on_other_clients() -> None:
    forecaster = trained(base())
    assert set(forecaster.fit(base(names=("x", "y"))).predict()["unique_id"]) == {"x", "y"}
