"""docs/covariates.svg: what a wind farm with two weeks of data learns from six others.

    python -m benchmarks.response_picture       # ten minutes of a core

Each of the seven farms of the GEFCom 2012 wind data is the newcomer once. It has 14 days before the
test part, and their last fifth is its validation part, while the others have eleven months. The
test part is the next 120 days, forecast 24 hours at once. The newcomer forecasts with Kindred and
the weather forecasts, alone and then together with the others. The picture is of the newcomer with
the median ratio of the two errors. Runs are kept in runs/results/response and are not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import fedproto_app
from benchmarks.pages import ROOT, data_root, picture
from benchmarks.parts import geometric_mean, parser_of
from fedproto_app.report.drawing import look
from fedproto_app.report.forecasting.examples import kept_responses
from fedproto_app.strategies.response.curve import curve
from fedproto_app.strategies.response.features import Floats

PICTURE = ROOT / "docs" / "covariates.svg"
OUTPUT = ROOT / "runs" / "results" / "response"
DATA = "gefcom2012_wind_hourly.csv.gz"
START, DAYS, TEST_DAYS, PERIOD = pd.Timestamp("2010-05-26"), 14, 120, 24
MEANS = {"u": 1.05, "v": -0.17, "wind_speed": 4.45}  # m/s, of all farms: where curves are 0
COLUMNS = tuple(MEANS)
ALONE = {"kindred.sharing": "none", "response.sharing": "none"}
SETTINGS = {
    "method": "kindred",
    "data.known": ",".join(COLUMNS),
    "data.horizon": PERIOD,
    "data.train-share": 0.64,
    "data.validation-share": 0.16,
    "data.test-start": str(START),
    "output.dir": str(OUTPUT),
    "output.pictures": False,
}
TITLES = {"u": "west wind", "v": "south wind", "wind_speed": "speed"}
GREY, BAND, LATER = "#59636e", "80% of the other farms", "local, with eleven months"


@dataclass(frozen=True)
class Newcomer:
    """A farm's two runs with 14 days of data."""

    name: str
    alone: fedproto_app.Run
    together: fedproto_app.Run

    @property
    def ratio(self) -> float:
        """The test MSE together, relative to alone."""
        return self.error(self.together) / self.error(self.alone)

    def error(self, run: fedproto_app.Run) -> float:
        """The newcomer's test MSE."""
        clients = run.clients
        return float(clients["mse"][clients["client"] == self.name].iloc[0])


def table_of_farms() -> pd.DataFrame:
    table = pd.read_csv(data_root() / DATA, parse_dates=["ds"])
    return table[table.ds < START + pd.Timedelta(days=TEST_DAYS)]


def run_of(table: pd.DataFrame, name: str, changes: Mapping[str, object]) -> fedproto_app.Run:
    """Return the run of this name, and make it if it is not there yet."""
    if (OUTPUT / name / "summary.json").exists():
        return fedproto_app.load(OUTPUT / name)
    settings = {**SETTINGS, **changes, "output.name": name}
    return fedproto_app.run(table, settings, target_col="power", progress=False)


def newcomer(table: pd.DataFrame, name: str) -> Newcomer:
    """Return the runs that give this farm 14 days of data."""
    is_earlier = (table.unique_id == name) & (table.ds < START - pd.Timedelta(days=DAYS))
    runs = {
        way: run_of(table[~is_earlier], f"{name}-{way}", changes)
        for way, changes in {"alone": ALONE, "together": {}}.items()
    }
    return Newcomer(name, **runs)


def curve_of(run: fedproto_app.Run, name: str, column: str, points: Floats) -> Floats:
    """Return a farm's curve at these points as power, which is 0 at the mean of all farms."""
    response, place = kept_responses(run.path, [name])[name], COLUMNS.index(column)
    values = curve(response, place, np.append(points, MEANS[column]), PERIOD)
    return np.asarray(run.model(name).scale["std"] * (values[:-1] - values[-1]))


def draw(
    newcomers: Sequence[Newcomer], complete: fedproto_app.Run, table: pd.DataFrame, file: Path
) -> None:
    """Draw all newcomers' errors, and what the median newcomer learned of each column."""
    shown = sorted(newcomers, key=lambda farm: farm.ratio)[len(newcomers) // 2]
    ways = {"local": (shown.alone, look(1)), "federated": (shown.together, look(0))}
    with picture(file, 10, 3.8) as figure:
        first, *panels = figure.subplots(1, 1 + len(COLUMNS), width_ratios=(1.2, 1, 1, 1))
        for row, farm in enumerate(newcomers):
            errors = farm.error(farm.alone), farm.error(farm.together)
            first.plot(errors, (row, row), color=GREY)
            for error, (_, style) in zip(errors, ways.values(), strict=True):
                first.plot(error, row, "o", color=style["color"])
        first.set_yticks(range(len(newcomers)), [farm.name for farm in newcomers])
        first.set(ylim=(len(newcomers) - 0.5, -0.5), xlim=(0, None), xlabel="test MSE")
        first.set_title("error with 14 days")
        had = table[(table.unique_id == shown.name) & (table.ds < START)].tail(DAYS * PERIOD)
        for axes, column in zip(panels, COLUMNS, strict=True):
            ends = table[column].quantile([0.005, 0.995])
            points = np.linspace(ends.iloc[0], ends.iloc[1], 60)
            of_others = [
                curve_of(shown.together, farm.name, column, points)
                for farm in newcomers
                if farm is not shown
            ]
            low, high = np.percentile(of_others, [10, 90], axis=0)
            axes.fill_between(points, low, high, color=GREY, alpha=0.3, linewidth=0, label=BAND)
            later = curve_of(complete, shown.name, column, points)
            axes.plot(points, later, color="black", linewidth=1, label=LATER)
            for label, (run, style) in ways.items():
                of_run = curve_of(run, shown.name, column, points)
                axes.plot(points, of_run, label=f"{label}, with 14 days", **style)
            bottom, top = axes.get_ylim()
            strokes = np.repeat(had[column].to_numpy(), 3)
            heights = np.tile([bottom, bottom + 0.03 * (top - bottom), np.nan], len(had))
            axes.plot(strokes, heights, color=GREY, linewidth=0.7)
            axes.set(xlabel="m/s", title=f"{shown.name}: {TITLES[column]}")
        panels[0].set_ylabel("change of power")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)


def main() -> None:
    parser_of(__doc__).parse_args()
    table = table_of_farms()
    farms = sorted(set(table.unique_id))
    complete = run_of(table, "complete", ALONE)
    newcomers = []
    for name in farms:
        newcomers.append(newcomer(table, name))
        print(f"{name}: {newcomers[-1].ratio:.3f}", flush=True)
    ratios = np.array([of_farm.ratio for of_farm in newcomers])
    print(f"all: {geometric_mean(ratios):.3f}, {(ratios < 1).sum()} of {len(ratios)} better")
    draw(newcomers, complete, table, PICTURE)


if __name__ == "__main__":
    main()
