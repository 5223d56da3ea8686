"""``fedproto try``: what it recognises, and an answer about the clients in the file."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

import fedproto_app
from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.methods import METHODS
from fedproto_app.data.series import ClientSeries
from fedproto_app.experiments.trial import (
    KNOWN_ROWS,
    SERIES_ROWS,
    Plan,
    Trial,
    Wishes,
    left_out,
    plan_of,
    try_plan,
)
from fedproto_app.report.page.document import render
from fedproto_app.report.runs import find_runs, group_runs, read_run
from fedproto_app.report.taking_part import taking_part
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import text_of
from tests.helpers import weather

SITES = ("north", "south", "east")
QUIET = Console(quiet=True)


def series(steps: int = 24 * 42, freq: str = "h", sites: tuple[str, ...] = SITES) -> pd.DataFrame:
    """Days with a swing, other ones at weekends, another level at each site, and noise."""
    times = pd.date_range("2024-01-01", periods=steps, freq=freq)
    day = np.sin(2 * np.pi * np.arange(steps) / 24)
    noise = np.random.default_rng(0).normal(size=(steps, len(sites)))
    weekend = 2 * (times.day_of_week.to_numpy() > 4)
    values = 10 + np.arange(len(sites)) + (3 * day + weekend)[:, None] + noise
    return pd.DataFrame(values.round(2), index=pd.Index(times, name="time"), columns=list(sites))


def wide(folder: Path) -> Path:
    series().to_csv(folder / "loads.csv")
    return folder / "loads.csv"


def german(folder: Path) -> Path:
    """Long, with dates such as 31.01.2024 13:00 and decimal commas."""
    rows = series().melt(ignore_index=False, var_name="site").reset_index()
    rows["time"] = rows["time"].dt.strftime("%d.%m.%Y %H:%M")
    rows.to_csv(folder / "loads.csv", sep=";", decimal=",", index=False)
    return folder / "loads.csv"


def parquet(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    series().to_parquet(folder / "loads.parquet")
    return folder / "loads.parquet"


def tables(folder: Path) -> Path:
    (folder / "loads").mkdir()
    for name, column in series().items():
        column.rename("value").to_csv(folder / "loads" / f"{name}.csv")
    return folder / "loads"


def images(folder: Path) -> Path:
    """Ten images of each class at each site, where the colour is the class."""
    rng = np.random.default_rng(0)
    for site in SITES:
        for channel, label in enumerate(("red", "green", "blue")):
            place = folder / "scans" / site / label
            place.mkdir(parents=True)
            for number in range(10):
                pixels = rng.integers(0, 60, (8, 8, 3)).astype(np.uint8)
                pixels[..., channel] += 100
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder / "scans"


def levels(folder: Path) -> Path:
    """Forty sequences at each site of two classes, which differ only in their level."""
    rng = np.random.default_rng(0)
    label, client = np.tile([0, 1], 60), np.repeat(SITES, 40)
    x = rng.normal(size=(120, 12, 2)) + 3 * label[:, None, None]
    np.savez(folder / "levels.npz", x=x, y=label, client=client)
    return folder / "levels.npz"


def plan(path: Path, **wishes: object) -> Plan:
    return plan_of(path, Wishes(**wishes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("freq", "steps", "period", "calendar"),
    [
        ("h", 24 * 42, 24, "week"),
        ("10min", 144 * 30, 144, "week"),
        ("h", 24 * 16, 24, "phase"),  # a train part of eleven days knows no weekdays
        ("D", 400, 7, "phase"),
        ("7D", 800, 52, "phase"),
        ("MS", 300, 12, "phase"),
        ("QE", 120, 4, "phase"),
        ("YS", 60, 1, "none"),
        ("B", 300, 5, "phase"),
        ("1500ms", 24 * 42, 24, "phase"),  # repeats so; it has 57,600 steps in a day
    ],
)
def test_the_clock_tells_period_and_calendar(
    freq: str, steps: int, period: int, calendar: str, tmp_path: Path
) -> None:
    series(steps, freq).to_csv(tmp_path / "x.csv")
    settings = plan(tmp_path / "x.csv").settings
    assert settings["data.period"] == settings["data.horizon"] == period
    assert settings["data.calendar"] == calendar


def test_without_a_clock_the_series_tell_the_period(tmp_path: Path) -> None:
    series().reset_index(drop=True).to_csv(tmp_path / "x.csv", index=False)
    planned = plan(tmp_path / "x.csv")
    assert planned.settings["data.period"] == 24
    assert "by autocorrelation, of 3 of 3 series" in " ".join(planned.facts)


def test_what_was_done_to_the_file_is_told(tmp_path: Path) -> None:
    rows = series()[::-1].assign(rain=["dry", "wet"] * (12 * 42))
    rows.to_csv(tmp_path / "x.csv")
    planned = plan(tmp_path / "x.csv", changes={"data.time-zone": "Asia/Tokyo"})
    assert "rows were not in the order of time and are sorted" in planned.facts
    assert planned.warnings == ("column 'rain' is left out, as it holds no numbers, such as 'dry'",)
    assert planned.settings["data.time-zone"] == "Asia/Tokyo"


def two_rows(planned: Plan, folder: Path, **changes: Any) -> Trial:
    """The trial of the plan's simplest row and of Kindred alone."""
    rows = {name: planned.rows[name] for name in ("naive", "kindred")}
    changed = dataclasses.replace(planned, rows=rows, **changes)
    return try_plan(changed, folder / "runs", QUIET)


def test_sharing_does_not_pay_where_values_are_noise(tmp_path: Path) -> None:
    """Kindred gains by sharing there, but a client's mean forecasts noise as well as anything."""
    noise = np.random.default_rng(0).normal(size=(24 * 42, 8))
    frame = series(sites=tuple("abcdefgh"))
    (frame * 0 + 20 + noise).round(2).to_csv(tmp_path / "x.csv")
    planned = plan(tmp_path / "x.csv", quick=True)
    rows = {name: planned.rows[name] for name in ("mean", "kindred-alone", "kindred")}
    trial = try_plan(dataclasses.replace(planned, rows=rows), tmp_path / "runs", QUIET)
    assert "pays for" not in trial.verdict
    titles = [score.title for score in trial.scores]  # best first
    assert titles == ["mean of the past", "Kindred (federated)", "Kindred (local)"]


def test_constant_clients_have_no_part_in_the_medians_and_alone_nothing_to_gain(
    tmp_path: Path,
) -> None:
    series(sites=("north", "south")).assign(still=5.0, quiet=1.0).to_csv(tmp_path / "x.csv")
    trial = two_rows(plan(tmp_path / "x.csv", quick=True), tmp_path)
    assert np.isfinite([list(score.figures.values()) for score in trial.scores]).all()
    series(24 * 8, sites=("still",)).assign(still=5.0, quiet=1.0).to_csv(tmp_path / "y.csv")
    alone = two_rows(plan(tmp_path / "y.csv", quick=True), tmp_path / "alone")
    assert "hardly ever change" in alone.verdict


def test_a_file_without_values_is_refused(tmp_path: Path) -> None:
    (series() * np.nan).to_csv(tmp_path / "x.csv")
    with pytest.raises(DataError, match="no value is present"):
        plan(tmp_path / "x.csv")


def test_short_series_are_forecast_one_step_ahead(tmp_path: Path) -> None:
    """Seven days are too few for a validation part of one day."""
    series(24 * 7).to_csv(tmp_path / "x.csv")
    assert plan(tmp_path / "x.csv").settings["data.horizon"] == 1
    series(10).to_csv(tmp_path / "y.csv")
    with pytest.raises(DataError, match="longest series has 10 steps, but a period of 24 needs"):
        plan(tmp_path / "y.csv")


def test_newcomers_are_named(tmp_path: Path) -> None:
    table = series(24 * 30)
    table.iloc[: 24 * 27, 1] = np.nan
    table.to_csv(tmp_path / "x.csv")
    planned = plan(tmp_path / "x.csv", horizon=1)
    assert (
        f"newcomer {table.columns[1]}, 72 steps: trains on 49 values, validates on 7 and is "
        "tested on 15"
    ) in planned.facts


def test_wishes_come_first(tmp_path: Path) -> None:
    settings = plan(wide(tmp_path), horizon=6, period=12, quick=True).settings
    chosen = [settings[f"data.{key}"] for key in ("horizon", "period", "history")]
    assert chosen == [6, 12, 28]
    changes = {"data.calendar": "none", "data.history": 9, "data.periodic-window": 2}
    planned = plan(wide(tmp_path), changes=changes, quick=True)
    assert changes.items() <= planned.settings.items()
    assert planned.facts[-1].endswith("no calendar, as you say")


@pytest.mark.parametrize(
    ("make", "wishes", "message"),
    [
        (wide, {"horizon": 0}, "--horizon 0: must be at least 1"),
        (
            wide,
            {"changes": {"data.period": 48}},
            "data.period = 48: fedproto try takes this from --period",
        ),
        (images, {"windows": 3}, "--windows 3: for series, but .* holds images"),
        (wide, {"clients_from": "site"}, "client-column: .* has no column 'site'"),
        (wide, {"clients": 5}, "--clients 5: .* holds series"),
        (images, {"horizon": 5}, "--horizon 5: for series, but .* holds images"),
    ],
)
def test_wishes_that_do_not_fit_are_refused(
    make: Callable[[Path], Path], wishes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises((DataError, SettingsError), match=message):
        plan(make(tmp_path), **wishes)


def test_images_are_dealt_by_their_sites_and_never_to_invented_clients(tmp_path: Path) -> None:
    planned = plan(images(tmp_path))
    assert planned.settings["data.partition.scheme"] == "given"
    assert planned.settings["rounds"] == 1
    assert "3 clients, named in the data" in planned.facts
    with pytest.raises(DataError, match="name no clients; --clients 10"):
        plan(tmp_path / "scans" / "north")
    assert plan(tmp_path / "scans" / "north", clients=4).settings["data.partition.clients"] == 4


def test_a_corrupt_image_leaves_out_its_client_alone(tmp_path: Path) -> None:
    folder = images(tmp_path)
    (folder / "north" / "red" / "0.png").write_bytes(b"broken")
    settings = {
        **plan(folder).settings,
        "data.path": str(folder),
        "data.partition.scheme": "given",
        "analytic.features": 1,
        "output.dir": str(tmp_path / "runs"),
    }
    run = fedproto_app.run(settings, method="analytic", nodes=1, workers=1, progress=False)
    assert run.clients["client"].tolist() == ["east", "south"]
    (line,) = left_out([read_run(run.path)])
    assert line.startswith("north: scans/north/red/0.png: not a JPEG, PNG or BMP image (1 corrupt")


@pytest.mark.exhaustive
def test_levels_that_tell_the_classes_are_seen(tmp_path: Path) -> None:
    """These classes differ in level, which scaling each sequence by itself would remove."""
    trial = try_plan(plan(levels(tmp_path)), tmp_path / "runs", QUIET)
    right = {score.title: score.figures["right answers %"] for score in trial.scores}
    assert right["closed form (federated)"] > 95


def test_classes_are_tried_in_clusters_unless_noise_rules_these_out(tmp_path: Path) -> None:
    rows = ["naive", "analytic-alone", "analytic", "analytic-clustered"]
    assert list(plan(levels(tmp_path)).rows) == rows
    noise = {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}
    assert list(plan(levels(tmp_path), changes=noise).rows) == rows[:-1]


@pytest.mark.parametrize(
    "make",
    [
        wide,
        *(pytest.param(m, marks=pytest.mark.exhaustive) for m in (german, parquet, tables, images)),
    ],
)
def test_every_file_gets_an_answer_about_its_clients(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    printed = io.StringIO()
    file = make(tmp_path)
    planned = plan(file, quick=True, windows=2 if make is wide else 1)
    trial = try_plan(planned, tmp_path / "runs", Console(file=printed, width=200))
    assert re.search(r"\d of 3 clients|the mean over 3 clients[:,] ", trial.verdict)
    assert len(trial.scores) == len(planned.rows)
    assert sum(score.best_for for score in trial.scores) == 3
    assert [score.title for score in trial.scores][-1] in ("last value", "most frequent class")
    assert trial.report.read_text().startswith("<!DOCTYPE html>")
    assert "left" in printed.getvalue()
    assert list(trial.table["best for"]) == [score.best_for for score in trial.scores]
    if trial.forecast is None:
        return
    signs = {"sep": ";", "decimal": ","} if make is german else {}
    forecasts = pd.read_csv(trial.forecast, **signs)  # in the layout of the file
    long = {german: ["site", "time", "value"], tables: ["unique_id", "ds", "y_hat"]}
    columns = long.get(make, ["time", *SITES])
    assert list(forecasts.columns)[: len(columns)] == columns
    assert forecasts[columns[1] if make in long else "time"].iloc[0] == "2024-02-12 00:00:00"
    assert len(forecasts) == (3 * 24 if make in long else 24)
    assert (forecasts.iloc[:, -1] == forecasts.iloc[:, -1].round(2)).all()
    if planned.windows > 1:
        assert "last value, window 2of2" in printed.getvalue()
        verdict = trial.report.stat().st_mtime_ns
        resumed = try_plan(planned, tmp_path / "runs", QUIET)
        assert (resumed.verdict, resumed.scores) == (trial.verdict, trial.scores)
        assert trial.report.stat().st_mtime_ns > verdict
        os.utime(file, (time.time() + 60,) * 2)
        with pytest.raises(SettingsError, match=r"its run is older than .*loads"):
            try_plan(planned, tmp_path / "runs", QUIET)
        with pytest.raises(SettingsError, match=r"with data\.horizon = 24, not 12; choose another"):
            try_plan(plan(file, quick=True, windows=2, horizon=12), tmp_path / "runs", QUIET)


def waves(settings: DataSettings) -> Iterator[ClientSeries]:
    """A person's own source, which reads the path itself."""
    for name, column in series().items():
        yield ClientSeries(f"{settings.path} {name}", column.to_numpy())


def test_a_trial_of_a_persons_own_source_recognises_nothing() -> None:
    planned = plan(Path("plants.db"), changes={"data.source": f"{__name__}:waves"})
    assert planned.settings["data.period"] == 24
    assert planned.facts[0].endswith(f"read as {__name__}:waves")


def test_the_target_is_named_in_the_facts_and_on_top_of_the_answer(tmp_path: Path) -> None:
    rows = series(24 * 8).melt(ignore_index=False, var_name="site").reset_index()
    rows.assign(rain=0.5).to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(DataError, match="which column is to be forecast: value, rain"):
        plan(tmp_path / "x.csv")
    planned = plan(tmp_path / "x.csv", target="value", quick=True)
    assert planned.settings["data.columns"] == planned.target == "value"
    assert planned.facts[0].endswith("read as long-csv, forecasting value, clients from site")
    assert "not known in advance: rain (is constant at every client)" in planned.facts
    wide(tmp_path)
    alone = plan(tmp_path / "loads.csv", target="south")
    assert (alone.settings["data.clients"], "data.columns" in alone.settings) == ("south", False)
    but = "But some are copies."
    strange = "left out: \udce9"  # as in a file's name that is no UTF-8
    trial = two_rows(planned, tmp_path, warnings=["left out", strange], provisos=[but])
    assert repr(trial).startswith("warning: left out\n")
    assert "\nForecasting value. " in repr(trial)
    assert trial.verdict.endswith(f" {but}")
    page = trial.report.read_text()
    lead = page[page.index('<p class="lead">') : page.index("</header>")]
    assert f"{but}</p>" in lead
    assert '<p class="warning">left out</p>' in lead
    assert "Check the data before you decide" in lead
    runs, _ = find_runs([trial.folder])  # as compare and report read them later
    assert [verdict.endswith(f" {but}") for verdict in taking_part(group_runs(runs)[0])] == [True]
    assert lead in render(runs)
    assert but not in render(runs[:1])  # which has no verdict
    assert "data check --config" in lead


def test_the_answer_says_that_most_test_parts_have_another_level(tmp_path: Path) -> None:
    rows = series(24 * 20)
    rows.iloc[-24 * 3 :] += 100.0
    rows.to_csv(tmp_path / "x.csv", index_label="when")
    planned = plan(tmp_path / "x.csv", quick=True)
    assert any("the mean of the test part lies over 1" in line for line in planned.warnings)
    [proviso] = planned.provisos
    assert proviso.startswith("But for at least half of the clients, the test part differs")
    series(24 * 20).to_csv(tmp_path / "y.csv", index_label="when")
    assert plan(tmp_path / "y.csv", quick=True).provisos == []


HOURS = 24 * 14


def with_weather(folder: Path, ahead: int = 24, **columns: Any) -> Path:
    """Two weeks of each site in long form, followed by hours that have only a weather forecast."""
    rows = series(HOURS + ahead)
    rows.iloc[HOURS:] = np.nan
    rows = rows.melt(ignore_index=False, var_name="site", value_name="load").reset_index()
    heat = np.random.default_rng(1).normal(size=len(rows)).round(2)
    rows.assign(**{"heat": heat, **columns}).to_csv(folder / "x.csv", index=False)
    return folder / "x.csv"


def test_columns_that_go_on_as_far_as_the_forecast_are_known_in_advance(tmp_path: Path) -> None:
    file, wishes = with_weather(tmp_path), {"target": "load", "horizon": 24, "quick": True}
    planned = plan(file, **wishes)
    assert "known in advance: heat" in planned.facts
    assert list(planned.rows)[-2:] == ["kindred-alone-known", "kindred-known"]
    assert planned.together == planned.forecast == "kindred-known"
    assert "data.known" not in planned.settings
    assert [row.changes.get("data.known") for row in planned.rows.values()] == [
        *(None,) * 5,
        *("heat",) * 2,
    ]
    assert planned.rows["kindred-alone-known"].changes["response.sharing"] == "none"
    without = plan(file, changes={"data.known": ""}, **wishes)
    assert (list(without.rows), without.together) == (list(planned.rows)[:5], "kindred")
    assert plan(with_weather(tmp_path, ahead=23), **wishes).together == "kindred"


def test_columns_that_end_with_the_values_are_used_if_they_are_named(tmp_path: Path) -> None:
    file, wishes = with_weather(tmp_path, ahead=0), {"target": "load", "quick": True}
    planned = plan(file, **wishes)
    assert planned.together == "kindred"
    assert any(
        fact.startswith("could be known in advance: heat (only if you know them before")
        and fact.endswith("the gain is an upper bound): --known heat")
        for fact in planned.facts
    )
    with_heat = plan(file, changes={"data.known": "heat"}, **wishes)
    assert (with_heat.together, with_heat.forecast) == ("kindred-known", "kindred")
    assert any("what they bring is an upper bound" in fact for fact in with_heat.facts)


def test_a_table_of_covariates_and_the_year_are_columns_too(tmp_path: Path) -> None:
    heat = series(24 * 44, sites=("heat",))
    heat.to_csv(tmp_path / "weather.csv")
    table = {"data.covariates": str(tmp_path / "weather.csv")}
    planned = plan(wide(tmp_path), changes=table, horizon=24)
    assert table.items() <= planned.rows["kindred-known"].changes.items()
    assert planned.forecast == "kindred-known"
    year = plan(wide(tmp_path), changes={"data.calendar": "year"})
    assert (year.settings["data.calendar"], year.forecast) == ("week", "kindred-known")
    assert year.rows["kindred-known"].changes["data.calendar"] == "year"


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ("wind", "data.known: .*x.csv has no column 'wind'"),
        ("load", "column 'load' is forecast"),
        ("heat,heat", "'heat' is named twice"),
        ("height", "x.csv: column 'height' is constant at every client; leave it out"),
        ("code", "column 'code' holds .* different texts"),
    ],
)
def test_columns_that_cannot_be_known_are_refused_before_work_starts(
    known: str, message: str, tmp_path: Path
) -> None:
    rows = 3 * (HOURS + 24)
    file = with_weather(tmp_path, height=80, code=[f"c{number}" for number in range(rows)])
    with pytest.raises((DataError, SettingsError), match=message):
        plan(file, target="load", changes={"data.known": known})


def test_a_wide_table_has_columns_known_in_advance_beside_its_clients(tmp_path: Path) -> None:
    planned = plan(wide(tmp_path), changes={"data.known": "south"})
    other_clients = text_of([name for name in series(2).columns if name != "south"])
    assert planned.settings["data.clients"] == other_clients
    changes_of_row = planned.rows[planned.together].changes
    assert changes_of_row["data.covariates"] == planned.settings["data.path"]
    assert "known in advance: south" in planned.facts
    with pytest.raises(DataError, match="has no column 'heat'"):
        plan(wide(tmp_path), changes={"data.known": "heat"})


def test_the_answer_says_what_columns_bring_alone_and_what_sharing_adds(tmp_path: Path) -> None:
    planned = plan(
        Path("x"),
        changes={"data.source": weather.SOURCE, "data.known": "temperature,promotion"},
        quick=True,
    )
    rows = {name: planned.rows[name] for name in planned.rows if name.startswith("kindred")}
    trial = try_plan(dataclasses.replace(planned, rows=rows, forecast=""), tmp_path / "runs", QUIET)
    columns = "the columns temperature and promotion"
    assert f"ocal models gain from {columns}" in trial.verdict
    assert f"with Kindred (federated) and {columns} the median client" in trial.verdict
    assert "best local model with the same columns" in trial.verdict
    best = {score.title: score.best_for for score in trial.scores}
    assert best["Kindred (local)"] == best["Kindred (federated)"] == 0
    assert sum(best.values()) == 8


def test_rows_have_the_titles_that_the_methods_declare() -> None:
    for row in (SERIES_ROWS | KNOWN_ROWS).values():
        assert row.title.startswith(METHODS[str(row.changes["method"])].title_for("forecasting"))


@pytest.mark.exhaustive
def test_the_forecast_uses_columns_that_reach_far_enough(tmp_path: Path) -> None:
    planned = plan(with_weather(tmp_path), target="load", horizon=24, quick=True)
    rows = {name: planned.rows[name] for name in ("kindred-alone-known", "kindred-known")}
    trial = try_plan(dataclasses.replace(planned, rows=rows), tmp_path / "runs", QUIET)
    assert trial.forecast is not None
    forecasts = pd.read_csv(trial.forecast)
    assert len(forecasts) == 3 * 24
    assert forecasts["time"].iloc[0] == "2024-01-15 00:00:00"
