"""docs/results/covariates.md: forecasts a day ahead with columns that clients know in advance.

    python -m benchmarks.response_results wind pm25         # the tables, tens of minutes of a core
    python -m benchmarks.response_results --methods         # FUELS and FedAvg on wind
    python -m benchmarks.response_results --page-only       # from existing figures

A newcomer has so many days of history, and their last fifth is its validation part, while all other
clients have all days before. Each client is the newcomer once, at two starting times, and its
test part is the next 120 days. Then every client has as few days. Both halves of the methods are
the app's own, in one process: the learners of the response's two rounds, `without_response`, and
Kindred. The others answer before the newcomer comes, so nothing that they send depends on it.

Needs the extra `lightgbm`. Figures are stored in runs/results/covariates, so a run goes on where
another ended. Delete their files after a change of the response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.history_results import (
    KINDRED,
    LAST_PERIOD,
    LAST_VALUE,
    RIDGE,
    Client,
    joined,
    learner_of,
    priors_of,
    temperatures_of,
)
from benchmarks.pages import (
    ROOT,
    UNKNOWN,
    Lines,
    Shown,
    data_root,
    made_today,
    publish,
    table_texts,
    with_origin,
)
from benchmarks.parts import geometric_mean, output_in, parser_of, require_names
from benchmarks.pooled_trees import MOST_TREES, PARAMETERS, PATIENCE
from fedproto_app.api import run
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.data.windows import ClientWindows, make_windows, scale_of
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, new_cohort
from fedproto_app.strategies.kindred.learner import GRAM, MOMENT
from fedproto_app.strategies.response.features import filled, trailing_means
from fedproto_app.strategies.response.stage import MomentsLearner, SumsLearner, without_response
from fedproto_app.tasks.forecasting.metrics import MSE, VALIDATION_MSE
from fedproto_app.tasks.forecasting.task import ForecastingTask, window_layout

Item = TypeVar("Item")

PAGE = ROOT / "docs" / "results" / "covariates.md"
MAKER = "benchmarks.response_results"
OUTPUT = ROOT / "runs" / "results" / "covariates"
DAY, TEST_DAYS = 24, 120
DAYS = ("0", "1", "3", "7", "14", "28", "60", "all")  # of the newcomer
SHORT = ("7", "28")  # of every client
ORDER = [*(f"newcomer {days}" for days in DAYS), *(f"everybody {days}" for days in SHORT)]
WITH_TREES = ("everybody 7", "newcomer 7", "newcomer 28", "newcomer all")
MOST_ROWS, FASTER = 16_000, {"learning_rate": 0.1}  # of trees

# What forecasts: which response is taken off the series, and what forecasts the rest.
NONE, LOCAL, SHARED, POOLED = "none", "own", "shared", "pooled"
TREES, ALONE = "trees", "Kindred, alone"
WITHOUT = [(NONE, name) for name in (ALONE, RIDGE, LAST_VALUE, LAST_PERIOD)]
ALONE_WITH = [(LOCAL, name) for name in (ALONE, RIDGE, TREES)]
ROWS = {  # the strongest by validation
    "without columns, alone": WITHOUT,
    "without columns, Kindred": [(NONE, KINDRED)],
    "columns, alone": ALONE_WITH,
    "shared response, alone": [(SHARED, ALONE)],
    "both shared": [(SHARED, KINDRED)],
    "all data pooled": [(POOLED, TREES)],
}
SHOWN = Shown(
    rows=[
        *(f"wind, newcomer {days}" for days in ("0", "7", "28", "all")),
        "wind, everybody 7",
        *(f"pm25, newcomer {days}" for days in ("7", "28", "all")),
        "pm25, everybody 7",
    ],
    columns=(
        "without columns, Kindred",
        "columns, alone",
        "shared response, alone",
        "both shared",
        "both / best alone",
    ),
    keys=2,
)
WIND_COLUMNS = "u,v,wind_speed"
LENGTH, ROUNDS, SEEDS = 4000, 8, (0, 1, 2)  # of methods that train: hours, rounds
Fit = tuple[float, float]  # the validation and the test MSE
Fits = dict[str, Fit]  # by case, client, response and forecast: "newcomer 7/north/shared/trees"
TreeRows = tuple[NDArray[np.float32], NDArray[np.float32]]  # inputs [R, …], targets [R]


# --- the data -------------------------------------------------------------------------------------


def wind() -> tuple[pd.DataFrame, str]:
    table = pd.read_csv(data_root() / "gefcom2012_wind_hourly.csv.gz", parse_dates=["ds"])
    return table, "power"


def pm25() -> tuple[pd.DataFrame, str]:
    """Return PM2.5, rain and speed as logarithms, and the wind's direction as two columns."""
    table = pd.read_csv(data_root() / "beijing_air_weather_hourly.csv.gz", parse_dates=["ds"])
    names = "N NNE NE ENE E ESE SE SSE S SSW SW WSW W WNW NW NNW".split()  # noqa: SIM905
    angle = np.deg2rad(22.5 * table.pop("wind_direction").map(names.index, na_action="ignore"))
    speed = np.sqrt(table.wind_speed)
    table["north"], table["east"] = np.cos(angle) * speed, np.sin(angle) * speed
    for column in ("pm25", "rain", "wind_speed"):
        table[column] = np.log1p(table[column])
    return table, "pm25"


SETS: Mapping[str, Callable[[], tuple[pd.DataFrame, str]]] = {"wind": wind, "pm25": pm25}
STARTS = {"wind": (0.6, 0.8), "pm25": (0.6, 0.75)}  # of test parts: shares of the time


def series_of(name: str) -> list[ClientSeries]:
    """Return a client for each place."""
    table, target = SETS[name]()
    step = np.timedelta64(3600, "s")
    clients = []
    for client, rows in table.groupby("unique_id"):
        times = rows["ds"].to_numpy().astype("datetime64[s]")
        assert (np.diff(times) == step).all()
        columns = rows.drop(columns=["unique_id", "ds", target])
        clients.append(
            ClientSeries(
                str(client),
                rows[target].to_numpy(dtype=float),
                int((times[0] - np.datetime64(0, "s")) // step),
                clock=Clock(step, np.timedelta64(0, "s")).shifted_to(times),
                known=columns.to_numpy(dtype=float),
                columns=tuple(columns.columns),
            )
        )
    return clients


class Start:
    """All series up to the end of the test part, which begins at hour `now`."""

    def __init__(self, series: Sequence[ClientSeries], share: float) -> None:
        first, length = series[0].start, len(series[0].values)
        self.now = int(length * share) // DAY * DAY
        self.series = [client.part(0, self.now + TEST_DAYS * DAY) for client in series]
        time = np.datetime64(0, "h") + np.timedelta64(first + self.now, "h")
        self.settings = settings_from(
            {
                "method": "kindred",
                "seed": 0,
                "data.period": DAY,
                "data.horizon": DAY,
                "data.calendar": "week",
                "data.train-share": 0.64,
                "data.validation-share": 0.16,  # a fifth of what is before the test part
                "data.test-start": str(time),
            }
        )
        self.shape = DataShape(columns=series[0].columns)
        self.task = ForecastingTask(self.settings, self.shape)
        self.kindred, self.ridge = (learner_of(self.settings, name) for name in (KINDRED, RIDGE))
        scales = [scale_of(client, self.settings.data) for client in self.series]
        self.means = np.array([(scale.mean, scale.std) for scale in scales])

    def declared(self, client: int) -> str:
        """Return the scale that a client declares where it has no values: the others' mean."""
        mean, std = np.delete(self.means, client, axis=0).mean(axis=0)
        return f"{mean},{std}"

    def windows(self, client: int, days: str) -> ClientWindows:
        """Return a client with so many days before the test part."""
        first = 0 if days == "all" else self.now - int(days) * DAY
        data = self.settings.data.model_copy(update={"scale": self.declared(client)})
        return make_windows(self.series[client].part(first), data)

    def totals(self, clients: Sequence[ClientWindows]) -> Arrays:
        """Return the totals of the two rounds that share the clients' response."""
        totals = self.sums(MomentsLearner, clients, {})
        return {**totals, **self.sums(SumsLearner, clients, totals)}

    def sums(self, kind: Any, clients: Sequence[ClientWindows], totals: Arrays) -> Arrays:
        """Return the sum of the arrays that these clients send in one of the rounds."""
        learner = kind(self.settings.training, self.settings.response, self.task)
        sums: Arrays = {}
        for client in clients:
            samples = learner.task.gather([client], 1)
            cohort = new_cohort(learner, {}, samples, server_round=1, trains=False)
            context = learner.context(Guidance(totals), cohort)
            for name, array in learner.contribution(cohort, context).arrays.items():
                sums[name] = sums.get(name, 0) + array[0].astype(np.float64)
        return {name: total.astype(np.float32) for name, total in sums.items()}

    def without_response(self, client: ClientWindows, totals: Arrays) -> ClientWindows:
        """Return a client without its response, which it learns alone if there are no totals."""
        (place,) = (n for n, series in enumerate(self.series) if series.name == client.name)
        changes = {
            "response.sharing": "all" if totals else "none",
            "data.scale": self.declared(place),
        }
        settings = settings_from({**flat_settings(self.settings), **changes})
        task = ForecastingTask(settings, self.shape)
        shard = Shard({client.name: client}, {})
        (ready,) = without_response(shard, [client.name], totals, task, _NO_STORE).clients.values()
        assert isinstance(ready, ClientWindows)
        return ready


# The totals come with every call, so nothing is stored.
_NO_STORE: Any = SimpleNamespace(write_first_phase=lambda tensors: None, read_first_phase=dict)


# --- the forecasts --------------------------------------------------------------------------------


class DayAhead(Client):
    """A client that is tested by its forecasts from midnight."""

    def __init__(self, windows: ClientWindows) -> None:
        self.windows, self.unit = windows, windows.scale.std
        self.samples = np.arange(len(windows.targets))

    def cohort(self, learner: AnyLearner) -> Cohort:
        cohort = super().cohort(learner)
        midnight = torch.from_numpy((self.windows.start + self.samples) % DAY == 0)
        samples = replace(cohort.samples, is_test=cohort.samples.is_test * midnight[:, None])
        return replace(cohort, samples=samples)

    def errors(self, learner: AnyLearner, cohort: Cohort) -> Fit:
        """Return the errors of the cohort's model."""
        return fit_of(learner.evaluate(cohort, Guidance()))

    def naive(self, learner: AnyLearner) -> dict[str, Fit]:
        """Return the errors of the two naive forecasts."""
        cohort = self.cohort(learner)
        blocks = window_layout(learner.task.settings.data).blocks(cohort.samples.inputs)
        copies = {
            LAST_VALUE: blocks.close[..., -1:].expand(-1, -1, DAY),
            LAST_PERIOD: blocks.lagged[..., -1, :],
        }
        return {n: fit_of(learner.task.judge(f, cohort.samples)) for n, f in copies.items()}

    def alone(self, learner: AnyLearner) -> tuple[Fit, Cohort, Arrays]:
        """Return the errors of the local fit, the cohort, and what it then sends."""
        cohort, arrays = self.fitted_alone(learner)
        return self.errors(learner, cohort), cohort, arrays

    def with_peers(self, kindred: AnyLearner, peers: Sequence[Arrays]) -> dict[str, Fit]:
        """Return the errors of Kindred alone, and with what the peers send."""
        alone, cohort, arrays = self.alone(kindred)
        temperatures = temperatures_of(kindred)
        if self.windows.sends:
            priors = priors_of(joined([*peers, arrays]), temperatures, slice(len(peers), None))
        else:
            means = {name: array.mean(axis=0) for name, array in joined(peers).items()}
            shape = (1, len(temperatures))
            priors = {n: np.broadcast_to(means[n], shape + means[n].shape) for n in (GRAM, MOMENT)}
        self.receive(kindred, cohort, priors)
        return {ALONE: alone, KINDRED: self.errors(kindred, cohort)}


def fit_of(metrics: Mapping[Metric, Sequence[float]]) -> Fit:
    """Return the validation and the test error of one client."""
    return metrics[VALIDATION_MSE][0], metrics[MSE][0]


class ClientRows:
    """A client's samples as rows for trees: a row for each sample and step ahead.

    Columns: the newest values, the values a day and more before the target, the newest day, the
    calendar of the target, the step, and the known columns and their trailing means.
    """

    def __init__(self, client: DayAhead, layout: WindowLayout) -> None:
        self._samples, self.windows, self._layout = client.samples, client.windows, layout
        self._columns = trailing_means(np.nan_to_num(filled(self.windows.series.known)), DAY)

    def rows_of(self, samples: NDArray[np.int64]) -> TreeRows:
        """Return the rows of these samples whose target is present."""
        windows, n = self.windows, len(samples)
        blocks = self._layout.blocks(torch.from_numpy(windows.inputs[samples]))
        close, lagged = blocks.close.numpy(), blocks.lagged.numpy()  # [n, c], [n, distances, DAY]
        ahead = np.arange(DAY)
        positions = windows.start + samples[:, None] + ahead
        calendar = [positions % DAY, positions // DAY % 7, np.broadcast_to(ahead, positions.shape)]
        rows = np.concatenate(
            [
                np.repeat(close[:, None], DAY, axis=1),
                lagged.transpose(0, 2, 1),
                np.repeat(lagged[:, None, -1], DAY, axis=1),
                np.stack(calendar, axis=-1),
                self._columns[positions - windows.series.start].reshape(n, DAY, -1),
            ],
            axis=-1,
            dtype=np.float32,
        )
        present = windows.present[samples]
        return rows[present], windows.targets[samples][present]

    def train(self, limit: int = MOST_ROWS) -> TreeRows:
        """Return at most so many rows of the train part."""
        return self.rows_of(_thinned(np.sort(self.windows.batches.ravel()), limit))

    def validation(self, limit: int = MOST_ROWS) -> TreeRows:
        """Return at most so many rows of the validation part."""
        return self.rows_of(_thinned(self._samples[self.windows.validation], limit))

    def errors(self, trees: Any) -> Fit:
        tested = self._samples[self.windows.test]
        tested = tested[(self.windows.start + tested) % DAY == 0]
        validation, test = (
            float(((trees.predict(x) - y) ** 2).mean()) if len(y) else np.nan
            for x, y in (self.validation(), self.rows_of(tested))
        )
        return validation, test


def _thinned(samples: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    count = min(len(samples), max(1, rows // DAY))
    places = np.linspace(0, max(len(samples) - 1, 0), count).round().astype(int)
    thinned: NDArray[np.int64] = samples[places]
    return thinned


def trees_of(clients: Sequence[ClientRows]) -> Any:
    """Return trees of these clients' pooled rows. Validation rows choose their number."""
    import lightgbm

    limit = MOST_ROWS // len(clients)
    parts = ([rows.train(limit) for rows in clients], [rows.validation(limit) for rows in clients])
    train, validation = (
        lightgbm.Dataset(*map(np.concatenate, zip(*part, strict=True))) for part in parts
    )
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    return lightgbm.train(
        PARAMETERS | FASTER, train, MOST_TREES, valid_sets=[validation], callbacks=[stop]
    )


# --- the figures ----------------------------------------------------------------------------------


def newcomers(start: Start) -> Fits:
    """Each client once comes to the others, who have all their days."""
    clients = [start.windows(row, "all") for row in range(len(start.series))]
    plain = [DayAhead(client).alone(start.kindred)[2] for client in clients]
    fits: Fits = {}
    for row in range(len(clients)):
        peers = without(clients, row)
        totals = start.totals(peers)
        residuals = [
            DayAhead(start.without_response(peer, totals)).alone(start.kindred)[2] for peer in peers
        ]
        for days in DAYS:
            newcomer, case = start.windows(row, days), f"newcomer {days}"
            sums = start.sums(SumsLearner, [newcomer], totals)
            all_totals = {**totals, **{name: totals[name] + array for name, array in sums.items()}}
            residual = DayAhead(start.without_response(newcomer, all_totals))
            plain_fits = DayAhead(newcomer).with_peers(start.kindred, without(plain, row))
            fits |= alone(start, case, newcomer)
            fits |= keyed(case, newcomer, NONE, plain_fits)
            fits |= keyed(case, newcomer, SHARED, residual.with_peers(start.kindred, residuals))
    return fits


def short_histories(start: Start, days: str) -> Fits:
    """Every client has so many days."""
    case, fits = f"everybody {days}", dict[str, Fit]()
    clients = [start.windows(row, days) for row in range(len(start.series))]
    totals = start.totals(clients)
    residuals = [start.without_response(client, totals) for client in clients]
    for response, windows in ((NONE, clients), (SHARED, residuals)):
        contributions = [DayAhead(client).alone(start.kindred)[2] for client in windows]
        for row, client in enumerate(windows):
            peers = without(contributions, row)
            fits |= keyed(case, client, response, DayAhead(client).with_peers(start.kindred, peers))
    for client in clients:
        fits |= alone(start, case, client)
    return fits


def alone(start: Start, case: str, windows: ClientWindows) -> Fits:
    """Return what a client can do alone, without its columns and with them."""
    client, residual = DayAhead(windows), DayAhead(start.without_response(windows, {}))
    plain = client.naive(start.kindred) | {RIDGE: client.alone(start.ridge)[0]}
    fits = {RIDGE: residual.alone(start.ridge)[0], ALONE: residual.alone(start.kindred)[0]}
    return keyed(case, windows, NONE, plain) | keyed(case, windows, LOCAL, fits)


def forests(start: Start, case: str) -> Fits:
    """Return the errors of each client's trees, and of trees of all data pooled."""
    kind, days = case.split()
    days_of_peers = "all" if kind == "newcomer" else days
    clients, peers = (
        [
            ClientRows(DayAhead(start.windows(row, length)), window_layout(start.settings.data))
            for row in range(len(start.series))
        ]
        for length in (days, days_of_peers)
    )
    pooled = trees_of(clients) if days == days_of_peers else None
    fits: Fits = {}
    for row, rows in enumerate(clients):
        if len(rows.train()[1]) and len(rows.validation()[1]):
            fits |= keyed(case, rows.windows, LOCAL, {TREES: rows.errors(trees_of([rows]))})
        trees = pooled or trees_of([*without(peers, row), rows])
        fits |= keyed(case, rows.windows, POOLED, {TREES: rows.errors(trees)})
    return fits


def keyed(case: str, client: ClientWindows, response: str, fits: Mapping[str, Fit]) -> Fits:
    return {f"{case}/{client.name}/{response}/{name}": fit for name, fit in fits.items()}


def without(items: Sequence[Item], row: int) -> list[Item]:
    return [*items[:row], *items[row + 1 :]]


def fits_of(name: str, place: int, *, compute: bool) -> Fits:
    """Return all errors of a start from their files, and compute those that are missing."""
    start = Start(series_of(name), STARTS[name][place]) if compute else None
    jobs: dict[str, Callable[[Start], Fits]] = {
        **{f"everybody {days}": partial(short_histories, days=days) for days in SHORT},
        "newcomers": newcomers,
        **{f"trees, {case}": partial(forests, case=case) for case in WITH_TREES},
    }
    fits: Fits = {}
    for title, job in jobs.items():
        file = OUTPUT / f"{name}, {place}, {title}.json"
        if start and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(job(start)), encoding="utf-8")
            print(file.stem, flush=True)
        if file.exists():
            fits |= json.loads(file.read_text(encoding="utf-8"))
    return fits


# --- methods that train ---------------------------------------------------------------------------


def error_of(folder: Path, method: str, columns: str, seed: int) -> float:
    """Return the test MSE of a method on wind, with or without columns."""
    settings = {
        "method": method,
        "seed": seed,
        "rounds": ROUNDS,
        "data.source": "long-csv",
        "data.path": str(data_root() / "gefcom2012_wind_hourly.csv.gz"),
        "data.columns": "power",
        "data.known": columns,
        "data.horizon": DAY,
        "data.calendar": "phase",
        "data.max-steps": LENGTH,
        **output_in(folder, ""),
    }
    return float(run(config=settings, nodes=4, workers=1, progress=False).summary["mse"])


def trained_lines() -> Lines:
    """Return the table of methods that train, with and without the response."""
    lines = [["method", "without", "with", "ratio"]]
    with TemporaryDirectory() as folder:
        for method in ("fuels", "fedavg"):
            errors = np.array(
                [
                    [error_of(Path(folder), method, columns, seed) for seed in SEEDS]
                    for columns in ("", WIND_COLUMNS)
                ]
            )
            cells = [f"{row.mean():.4f} ± {row.std(ddof=1):.4f}" for row in errors]
            lines.append([method, *cells, f"{errors[1].mean() / errors[0].mean():.3f}"])
            print(lines[-1], flush=True)
    return lines


# --- the page -------------------------------------------------------------------------------------


def chosen(starts: Sequence[Fits], case: str, row: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the test error by start and client, each of the forecast with the least validation
    error, without a validation part of the first."""
    best: dict[str, Fit] = {}
    for place, fits in enumerate(starts):
        for key, fit in fits.items():
            case_of_fit, client, response, forecast = key.split("/")
            name = f"{place}/{client}"
            is_candidate = case_of_fit == case and (response, forecast) in row
            if is_candidate and (name not in best or fit[0] < best[name][0]):
                best[name] = fit
    return {name: test for name, (_, test) in best.items()}


def ratios(top: Mapping[str, float], below: Mapping[str, float]) -> NDArray[np.float64]:
    """Return the ratios of errors by start and client."""
    return np.array([top[name] / below[name] for name in below if name in top])


def lines_of(starts: Sequence[Fits]) -> Lines:
    """Return the table of a data set."""
    first, *titles = ROWS
    last = ["both / columns, alone", "clients better", "both / best alone"]
    lines = [["who has how many days", *titles, *last]]
    for case in ORDER:
        errors = {title: chosen(starts, case, row) for title, row in ROWS.items()}
        both_shared = errors["both shared"]
        if not both_shared:
            continue
        gain = ratios(both_shared, errors["columns, alone"])
        best = ratios(both_shared, chosen(starts, case, WITHOUT + ALONE_WITH))
        relative = [geometric_mean(ratios(errors[title], errors[first])) for title in titles]
        cells = [f"{value:.3f}" if np.isfinite(value) else UNKNOWN for value in relative]
        figures_of_gain = [f"{geometric_mean(gain):.3f}", f"{np.mean(gain < 1):.0%} of {len(gain)}"]
        lines.append([case, *cells, *figures_of_gain, f"{geometric_mean(best):.3f}"])
    return lines


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--methods", action="store_true", help="FUELS and FedAvg on wind")
    parser.add_argument("--page-only", action="store_true", help="compute nothing")
    arguments = parser.parse_args()
    require_names(parser, arguments.sets, SETS, "set")
    torch.set_num_threads(1)
    if arguments.methods:
        runs = (
            f"`python -m {MAKER} --methods`, {LENGTH} hours of wind, {ROUNDS} rounds, seeds 0 to 2"
        )
        lines = with_origin(trained_lines(), runs, made_today())
        publish(PAGE, "methods", MAKER, lines, Shown(columns=()))
        return
    for name in arguments.sets or SETS:
        starts = [fits_of(name, place, compute=not arguments.page_only) for place in (0, 1)]
        head, *rows = lines_of(starts)
        table = [["data", *head], *([name, *row] for row in rows)]
        print(*table_texts(table, texts=2), sep="\n")
        runs = f"`python -m {MAKER} {name}`, seed 0"
        publish(PAGE, "newcomers", MAKER, with_origin(table, runs, made_today()), SHOWN)


if __name__ == "__main__":
    main()
