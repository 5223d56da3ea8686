"""From the file to the forecast: the dates of months, quarters, years, weeks and business days, and
what was done to the data."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedproto_app
from fedproto_app import Forecaster
from fedproto_app.core.charts import Lines
from fedproto_app.experiments.trial import Wishes, plan_of
from fedproto_app.report.drawing import chart_svg
from fedproto_app.report.forecasting.charts import sections
from fedproto_app.report.page.document import report_of
from fedproto_app.report.runs import read_clients
from tests.cli.conftest import Fedproto
from tests.helpers.local_grid import run_locally, small_settings

PER_CLOCK = pytest.mark.parametrize(
    ("freq", "last", "steps", "period", "words", "next_dates"),
    [
        ("MS", "2023-12-01", 60, 12, "monthly, at the month's start", "2024-01-01 2024-02-01"),
        ("ME", "2023-12-31", 60, 12, "monthly, at the month's end", "2024-01-31 2024-02-29"),
        ("QS", "2023-10-01", 48, 4, "quarterly from January on", "2024-01-01 2024-04-01"),
        ("YS", "2023-01-01", 40, 1, "yearly", "2024-01-01 2025-01-01"),
        ("W-MON", "2023-12-25", 260, 52, "260 steps of 7 days", "2024-01-01 2024-01-08"),
        ("B", "2024-02-29", 120, 5, "business days, Monday to Friday", "2024-03-01 2024-03-04"),
    ],
)


@PER_CLOCK
def test_every_command_keeps_the_dates(
    freq: str,
    last: str,
    steps: int,
    period: int,
    words: str,
    next_dates: str,
    tmp_path: Path,
    fedproto: Fedproto,
) -> None:
    days = pd.date_range(end=last, periods=steps, freq=freq)
    expected = pd.to_datetime(next_dates.split()).tolist()
    wave = 10 + np.sin(np.arange(steps) * 2 * np.pi / max(period, 3))
    units = {name: wave + n for n, name in enumerate("ab")}
    frame = pd.DataFrame(units, index=pd.Index(days, name="date"))
    frame = frame.melt(var_name="shop", value_name="units", ignore_index=False).reset_index()
    frame.to_csv(tmp_path / "sales.csv", index=False)

    plan = plan_of(tmp_path / "sales.csv", Wishes(clients_from="shop", horizon=2))
    assert plan.settings["data.period"] == period
    assert words in plan.facts[0]

    model = Forecaster(method="seasonal-naive", freq=freq, horizon=2, folder=tmp_path / "fits")
    model.fit(frame, id_col="shop", time_col="date", target_col="units")
    assert model.predict()["date"].tolist() == expected * 2

    (charts,) = [
        section.charts
        for section in sections({"run": model.run_.path}, "run")
        if section.title == "Forecasts and true values"
    ]
    chart = charts[0]
    assert isinstance(chart, Lines)
    assert set(chart.lines[0].x) <= {day.timestamp() for day in days}
    assert re.search(r">20\d\d", chart_svg(chart))

    site = tmp_path / "site.toml"
    site.write_text(
        'name = "shop"\nstate-dir = "state"\n[data]\nsource = "long-csv"\npath = "sales.csv"\n'
        'client-column = "shop"\n'
    )
    changes = {
        "method": "seasonal-naive",
        "data.period": period,
        "data.horizon": 2,
        "data.source": "long-csv",
    }
    folder, _ = run_locally(small_settings(tmp_path, **changes), [{"site": str(site)}])
    assert (read_clients(folder.path)["samples"] > 0).all()
    assert not (folder.path / "data-notes.txt").exists()
    (state,) = (tmp_path / "state").glob("*/shop")
    outcome = fedproto("forecast", "--state", state, "--site", site, "--steps", 2)
    forecasts = pd.read_csv(io.StringIO(outcome.out), parse_dates=["date"])
    assert forecasts["date"].tolist() == expected * 2


def test_what_was_done_to_the_data_is_said_once_and_stays_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    days = pd.date_range("2024-01-01", periods=80).strftime("%Y-%m-%d").tolist()
    rows = [f"{name},{day},{n % 7}" for name in "ab" for n, day in enumerate(days)]
    (tmp_path / "shops.csv").write_text("\n".join(["shop,date,units", *rows, *rows[:3]]) + "\n")
    note = "rows left out that repeat the time and values of another: 3"
    data = {"source": "long-csv", "path": str(tmp_path / "shops.csv"), "client-column": "shop"}
    config = {"data": {**data, "period": 7}, "output.dir": str(tmp_path / "runs")}
    run = fedproto_app.run(config, method="naive", workers=1)
    assert capsys.readouterr().err.count(note) == 1
    assert (run.path / "data-notes.txt").read_text() == f"{note}\n"
    assert f"<li>{note}</li>" in report_of(run.path).read_text("utf-8")
