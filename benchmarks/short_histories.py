"""Coverage of the 95% intervals where clients have few days of history.

    python -m benchmarks.short_histories

Five public data sets of hours are cut to some days, at their end and 45 days before it. `fedproto
try` chooses the settings, and Kindred forecasts a day ahead. A row has the mean over the clients of
the share of test values that the intervals hold, and the days of the validation part.
`report/check/doubts.py` warns of fewer than three.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.pages import data_root
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import cut_of
from fedproto_app.experiments.trial import Wishes, make_runs, plan_of
from fedproto_app.report.runs import read_clients, read_run
from fedproto_app.settings import settings_from

DAYS = (14, 21, 30, 40, 60)
EARLIER = 45  # days


def hourly_tables() -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the table of each data set, a column per client."""
    folder = data_root()
    yield "electricity", pd.read_csv(folder / "electricity_2014_hourly.csv.gz", index_col=0)
    yield "milano", pd.read_csv(folder / "milano_internet_hourly.csv.gz")
    yield "m4", pd.read_csv(folder / "m4_hourly.csv.gz").iloc[:748, :40]
    for name, file, values in (
        ("wind", "gefcom2012_wind_hourly.csv.gz", "power"),
        ("temperature", "beijing_air_weather_hourly.csv.gz", "temperature"),
    ):
        rows = pd.read_csv(folder / file)
        yield name, rows.pivot(index="ds", columns="unique_id", values=values)


def main() -> None:
    """Print a row for each data set, length and place."""
    print("data, days of history, place, days of validation, 80%, 95%, 95% of the worst client")
    with tempfile.TemporaryDirectory() as temporary:
        for name, table in hourly_tables():
            times = pd.date_range("2013-11-01", periods=len(table), freq="h", name="time")
            if not isinstance(table.index, pd.RangeIndex):
                times = pd.DatetimeIndex(table.index, name="time")
            for days, place in ((days, place) for days in DAYS for place in ("end", "earlier")):
                end = len(table) - 24 * EARLIER * (place == "earlier")
                if end < 24 * days:
                    continue
                file = Path(temporary) / f"{name}-{days}-{place}.csv"
                table.set_axis(times)[end - 24 * days : end].to_csv(file)
                plan = plan_of(file, Wishes())
                plan = dataclasses.replace(plan, rows={"kindred": plan.rows["kindred"]})
                make_runs(plan, file.with_suffix(""), Console(quiet=True))
                run = read_run(file.with_suffix("") / "kindred")
                data = settings_from(dict(plan.settings)).data
                validated = cut_of(load_series(data)[0], data).validation / 24
                clients = read_clients(run.folder)
                held = [float(np.nanmean(clients[f"coverage_{level}"])) for level in (80, 95)]
                held.append(float(np.nanmin(clients["coverage_95"])))
                shown = ", ".join(f"{100 * share:.1f}" for share in held)
                print(f"{name}, {days}, {place}, {validated:.1f}, {shown}", flush=True)


if __name__ == "__main__":
    main()
