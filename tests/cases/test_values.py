"""Reports about values, images and sequences, each answered in one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_histories
from fedproto_app.experiments.trial import Plan, Trial, Wishes, plan_of, try_plan
from fedproto_app.settings import settings_from
from tests.cli.conftest import Fedproto
from tests.helpers.reported_cases import reported_case


def planned(case: Path) -> Plan:
    return plan_of(case, Wishes(quick=True))


def tried(case: Path, *rows: str) -> Trial:
    """Return a trial with these rows only. One of them makes the forecast."""
    plan = planned(case)
    plan = dataclasses.replace(plan, rows={row: plan.rows[row] for row in rows})
    return try_plan(plan, case.parent / "trial", Console(quiet=True))


def histories_of(case: Path) -> list[tuple[ClientSeries, str]]:
    """Return the series that a forecast starts from, and the time at which it begins."""
    series = load_histories(settings_from(planned(case).settings).data)
    return [
        (client, client.clock.time(client.start + len(client.values)))
        for client in series
        if client.clock is not None
    ]


def warned(case: Path, check: Fedproto) -> str:
    """Return the warnings of `try`, which `data check` prints too."""
    plan, outcome = planned(case), check(case)
    assert outcome.code in (0, 1), outcome.err
    shown = " ".join(outcome.out.split())
    # What begins the test part depends on the horizon, which `try` chooses.
    assert all(line in shown for line in plan.warnings if " test " not in line)
    return "\n".join(plan.warnings)


def test_r05_sundays_are_no_steps_and_said_so(check: Fedproto, tmp_path: Path) -> None:
    case = reported_case("r05-closed-on-sundays.csv", tmp_path)
    assert not warned(case, check)
    assert "times days but Sundays" in " ".join(check(case).out.split())
    trial = tried(case, "naive", "kindred")
    assert trial.forecast is not None
    table = pd.read_csv(trial.forecast, sep=";", index_col=0, parse_dates=[0])
    assert table.index.day_of_week.tolist() == [0, 1, 2, 3, 4, 5]
    assert table.notna().all(axis=None)


def test_r17_zeros_before_a_client_existed_are_named(check: Fedproto, tmp_path: Path) -> None:
    lines = warned(reported_case("r17-load-diagrams.txt", tmp_path), check)
    assert "MT_004 begins with 10 days of zeros" in lines
    assert "MT_008 begins with 59 days of zeros: if the client did not exist then" in lines
    assert "MT_001" not in lines


def test_r31_a_value_far_outside_is_named_with_its_number(check: Fedproto, tmp_path: Path) -> None:
    lines = warned(reported_case("r31-missing-is-999.csv", tmp_path), check)
    assert "-999 comes 72 times in station_0, -9999 comes 72 times in station_1, 999.9" in lines
    assert "-99 comes 72 times in station_3" in lines
    assert "--set data.missing-values=-999,-9999,999.9,-99 leaves it out" in lines
    assert "station_4" not in lines


def test_r32_totals_that_only_rise_are_named(check: Fedproto, tmp_path: Path) -> None:
    lines = warned(reported_case("r32-counters.csv", tmp_path), check)
    assert lines.startswith("total_0, total_1, total_2, total_3, total_4: the values only rise")
    assert "the differences between neighbouring rows" in lines


def test_r38_each_reason_is_named(check: Fedproto, tmp_path: Path) -> None:
    lines = warned(reported_case("r38-long-gaps.csv", tmp_path), check).split("\n")
    assert [line.partition(",")[0] for line in lines] == [
        "every_2nd: never a value at 12 times of the day",
        "nights: never a value from 22:00 to 05:00",
        "no_test",
        "no_train: up to 950 steps shorter than the longest",
        "every_2nd",
        "no_train: too little history for 95% intervals",
    ]
    assert "no_test, last_3_days: the last value is up to 290 steps older" in lines[2]
    assert "every_2nd, middle_40%: up to 50% of the values are missing" in lines[4]


def test_r38_forecasts_begin_at_one_time(tmp_path: Path) -> None:
    histories = histories_of(reported_case("r38-long-gaps.csv", tmp_path))
    assert {begin for _, begin in histories} == {"2024-07-05 00:00:00"}


def test_r41_one_client_has_nobody_to_share_with(check: Fedproto, tmp_path: Path) -> None:
    """`data check` says nothing of it, as other sites may hold other clients."""
    case = reported_case("r41-one-series.csv", tmp_path)
    assert "warning" not in check(case).out
    trial = tried(case, "naive", "kindred")
    assert trial.verdict == (
        "Forecasting value. value is the only client, so there is nobody to share with."
    )
    assert trial.forecast is not None
    assert pd.read_csv(trial.forecast)["value"].notna().sum() == 24


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("r44-sixty-hours.csv", "60 steps: trains on"),
        ("r44-twenty-five-days.csv", "25 steps: trains on"),
    ],
)
def test_r44_short_clients_take_part(
    name: str, sentence: str, check: Fedproto, tmp_path: Path
) -> None:
    outcome = check(reported_case(name, tmp_path))
    assert outcome.code == 0
    assert sentence in " ".join(outcome.out.split())


def test_r45_the_day_without_a_value_is_forecast(tmp_path: Path) -> None:
    case = reported_case("r45-weather-after-the-end.csv", tmp_path)
    assert any("temperature, is_holiday" in fact for fact in planned(case).facts)
    histories = histories_of(case)
    assert {begin for _, begin in histories} == {"2024-06-24 00:00:00"}
    assert all(np.isfinite(series.values[-1]) for series, _ in histories)


def test_r46_copies_are_named(check: Fedproto, tmp_path: Path) -> None:
    case = reported_case("r46-copies", tmp_path)
    lines = warned(case, check)
    assert lines.startswith(
        "site1 has the values of site0, site2 has the values of site0 24 steps later: the gain "
        "of such clients from sharing is not real"
    )
    [proviso] = planned(case).provisos
    assert proviso.startswith("But some clients have the same values as others")


def test_r49_a_site_in_colour_is_not_made_grey(check: Fedproto, tmp_path: Path) -> None:
    case = reported_case("r49-colour", tmp_path)
    assert "north: grey images such as north/bars/" in warned(case, check)
    assert "12 × 12, colour" in check(case).out


def test_r49_other_sizes_and_depths_are_one_line(check: Fedproto, tmp_path: Path) -> None:
    sizes = check(reported_case("r49-sizes", tmp_path))
    assert sizes.code == 2
    assert sizes.err.count("\n") == 1
    assert "16 × 16 pixels, but north/bars/0.png 12 × 12; scale or crop" in sizes.err
    deep = check(reported_case("r49-deep", tmp_path))
    assert deep.code == 1
    assert "more than 8 bits a pixel; save it with 8 bits a channel" in deep.out


def test_r52_labels_alike_and_a_dead_sensor_are_named(check: Fedproto, tmp_path: Path) -> None:
    lines = warned(reported_case("r52-labels-alike.npz", tmp_path), check).split("\n")
    assert lines == [
        "classes spelt almost alike are different classes: 'SIT' and 'sit', "
        "'Walk' and 'walk' and 'walk '",
        "'None', 'nan': read as classes of that name; leave such samples out if their class is not "
        "known (sequences of unknown class have '?')",
        "dimension-2 never changes for person 3: is the sensor dead?",
    ]


def test_r52_a_missing_reading_is_named_with_its_sequence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sequence 12: dimension-2 at step 4 is nan"):
        planned(reported_case("r52-a-missing-reading.npz", tmp_path))


def test_u13_images_of_sites_in_one_archive(check: Fedproto, tmp_path: Path) -> None:
    outcome = check(reported_case("u13-images-one-split.npz", tmp_path))
    assert outcome.code == 0, outcome.err
    assert "read as image-npz" in outcome.out
    assert "8 × 8, grey" in outcome.out
    assert "if these are sequences, set data.source=sequence-npz" in " ".join(outcome.out.split())


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
