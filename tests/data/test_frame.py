"""Frames are read as files are, with the same refusals, and saved for other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.frame import saved_series, series_of_frame
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings

HOURS = pd.date_range("2026-01-01", periods=5, freq="h")
WIDE = pd.DataFrame({"a": range(5), "b": [1.5, 2, np.nan, 4, 5]}, index=HOURS)
LONG = WIDE.rename_axis("ds").reset_index().melt("ds", var_name="unique_id", value_name="y")
RENAMED = LONG.rename(columns={"ds": "when", "unique_id": "site", "y": "load"}).assign(rain=0)
NAMES = {"id_col": "site", "time_col": "when", "target_col": "load"}


def equal(first: list[ClientSeries], second: list[ClientSeries]) -> bool:
    about = [[(c.name, c.start, c.clock) for c in clients] for clients in (first, second)]
    return about[0] == about[1] and all(
        np.array_equal(*(client.values for client in pair), equal_nan=True)
        for pair in zip(first, second, strict=True)
    )


@pytest.mark.parametrize(
    ("frame", "names"),
    [
        (LONG, {}),
        (RENAMED, NAMES),
        (LONG.set_index(["unique_id", "ds"]), {}),
        (LONG.set_index("unique_id"), {}),
        (LONG.astype({"unique_id": "category"}), {}),
        (LONG.astype({"ds": str, "y": "Float64"}), {}),
        (WIDE.to_period("h"), {}),
        (WIDE.rename_axis("time").reset_index(), {}),
        (WIDE.rename_axis("Zeit").reset_index(), {"time_col": "Zeit"}),
        (WIDE.set_axis(HOURS.astype(str)), {}),
    ],
)
def test_every_form_gives_the_same_series(frame: pd.DataFrame, names: dict[str, str]) -> None:
    before = frame.copy()
    assert equal(series_of_frame(frame, **names), series_of_frame(WIDE))
    pd.testing.assert_frame_equal(frame, before)  # it is not changed


@pytest.mark.parametrize("source", ["wide-csv", "long-csv"])
def test_a_frame_gives_what_its_file_gives(tmp_path: Path, source: str) -> None:
    path = tmp_path / "x.csv"
    frame = WIDE if source == "wide-csv" else LONG
    frame.to_csv(path, index=source == "wide-csv")
    assert equal(load_series(DataSettings(source=source, path=str(path))), series_of_frame(frame))


def test_days_of_two_weekdays_are_read_in_both_forms() -> None:
    days = pd.date_range("2024-01-01", periods=140)
    rows = pd.DataFrame({"ds": days[np.isin(days.day_of_week, [0, 3])], "y": 1.0})
    [wide], [long] = series_of_frame(rows), series_of_frame(rows.assign(unique_id="a"))
    assert wide.clock == long.clock
    assert long.clock.words == "days on Mondays and Thursdays"


def test_steps_zones_and_rows_count_as_in_files() -> None:
    of_steps = series_of_frame(LONG.assign(ds=[*range(3, 8)] * 2))
    assert [(c.start, c.clock) for c in of_steps] == [(3, None)] * 2
    [berlin, _] = series_of_frame(WIDE.tz_localize("Europe/Berlin"))
    assert berlin.clock is not None
    assert (berlin.clock.utc, berlin.clock.time(berlin.start)) == (
        True,
        "2025-12-31 23:00:00+00:00",
    )
    assert series_of_frame(WIDE.reset_index(drop=True))[1].clock is None
    digits = [20260130, 20260131, 20260201, 20260202, 20260203]
    [in_digits, _] = series_of_frame(LONG.assign(ds=digits * 2))
    assert in_digits.clock is not None
    assert in_digits.clock.time(in_digits.start) == "2026-01-30"


@pytest.mark.parametrize(
    ("frame", "names", "message"),
    [
        ([1, 2], {}, "the frame is a list, expected a DataFrame of pandas"),
        (WIDE.iloc[:0], {}, "the frame has 0 rows"),
        (RENAMED, {}, "row 0: 'a' is not a number; of a long frame, name the columns: id_col"),
        (
            RENAMED,
            {"id_col": "site"},
            "2 columns of values (load, rain).*choose it with target_col",
        ),
        (RENAMED, {**NAMES, "id_col": "sit"}, "id_col: .*'sit'; did you mean 'site'?"),
        (RENAMED, {"target_col": "load"}, "target_col = 'load': only for long frames"),
        (LONG[["unique_id", "y"]], {}, "which column holds the times? set time_col"),
        (LONG.assign(unique_id=None), {}, "row 0: no client is named"),
        (LONG.assign(ds=pd.NaT), {}, "row 0: expected a time"),
        (WIDE.assign(a=np.inf), {}, "client 'a': value number 1 is infinite"),
        (pd.concat([WIDE, WIDE], axis=1), {}, "two columns are named 'a'"),
        (pd.concat([LONG, LONG[["y"]]], axis=1), {}, "two columns are named 'y'; rename one"),
        (pd.concat([LONG, LONG[["unique_id"]]], axis=1), {}, "columns are named 'unique_id'"),
        (pd.concat([LONG, LONG[["ds"]]], axis=1), {}, "two columns are named 'ds'"),
        (pd.concat([WIDE, WIDE.tail(1) + 1]), {}, "comes twice with different values"),
    ],
)
def test_refusals_name_column_row_and_argument(
    frame: Any, names: dict[str, str], message: str
) -> None:
    pattern = message.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")
    with pytest.raises(DataError, match=pattern) as caught:
        series_of_frame(frame, **names)
    assert "\n" not in str(caught.value)


def test_saved_series_are_read_by_other_processes(tmp_path: Path) -> None:
    series = series_of_frame(WIDE.tz_localize("UTC"))
    path = saved_series(series, tmp_path / "frames")
    assert path.stat().st_mode & 0o077 == 0  # the values are for this user alone
    settings = DataSettings(source="npz", path=str(path))
    assert equal(load_series(settings), series)
    assert saved_series(series, tmp_path / "frames") == path
    assert saved_series(series_of_frame(WIDE), tmp_path / "frames") != path
    of_steps = series_of_frame(LONG.assign(ds=[*range(5)] * 2))
    settings = DataSettings(source="npz", path=str(saved_series(of_steps, tmp_path)))
    assert equal(load_series(settings), of_steps)


def test_saved_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    arrays = dict(np.load(saved_series(series_of_frame(WIDE), tmp_path)))
    about = arrays["series"].tolist()
    changed = [
        about[1].replace(old, new) for old, new in ((" 5,", " 6,"), ("[", "[-1,"), ("]", "]]"))
    ]
    wrong_arrays = [{"series": np.array([about[0], text])} for text in changed]
    for wrong in wrong_arrays:
        np.savez(tmp_path / "wrong.npz", allow_pickle=False, **{**arrays, **wrong})
        with pytest.raises(DataError, match="do not fit together"):
            load_series(DataSettings(source="npz", path=str(tmp_path / "wrong.npz")))
