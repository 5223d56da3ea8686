"""docs/results/covariates.md: forecasts a day ahead with columns that clients know in advance.

    python -m benchmarks.response_results wind pm25         # the tables, tens of minutes of a core
    python -m benchmarks.response_results wind --again      # after a change of the response
    python -m benchmarks.response_results --page-only       # from existing figures

A newcomer has so many days of history, their last fifth is its validation part, and everybody
else has all days before. Each client is the newcomer once, at two starting times, and its
test part is the next 120 days. Then everybody has as few days. All halves are the app's own, in one
process: the learners of the response's two rounds, `without_response`, and Kindred. The others
answer before the newcomer comes, so nothing that they send depends on it.

Needs the extra `lightgbm`. Figures are kept in runs/results/covariates, so a run goes on where
another ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from benchmarks.pages import ROOT, UNKNOWN, Shown, data_root, made_today, publish, with_origin
from benchmarks.parts import output_in, parser_of
from benchmarks.pooled_trees import MOST_TREES, PARAMETERS, PATIENCE
from fedproto_app.api import Run, run
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.data.windows import ClientWindows, make_windows, scale_of
from fedproto_app.settings import flat_settings, settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, new_cohort
from fedproto_app.strategies.kindred.learner import GRAM, MOMENT
from fedproto_app.strategies.response.features import filled, trailing_means
from fedproto_app.strategies.response.stage import MomentsLearner, SumsLearner, without_response
from fedproto_app.tasks.forecasting.metrics import MSE, VALIDATION_MSE
from fedproto_app.tasks.forecasting.task import ForecastingTask, window_layout

PAGE = ROOT / "docs" / "results" / "covariates.md"
MAKER = "benchmarks.response_results"
OUTPUT = ROOT / "runs" / "results" / "covariates"
DAY, TEST_DAYS = 24, 120
DAYS = ("0", "1", "3", "7", "14", "28", "60", "all")  # of the newcomer
SHORT = ("7", "28")  # of everybody
ORDER = [*(f"newcomer {days}" for days in DAYS), *(f"everybody {days}" for days in SHORT)]
WITH_TREES = ("everybody 7", "newcomer 7", "newcomer 28", "newcomer all")
MOST_ROWS, FASTER = 16_000, {"learning_rate": 0.1}  # of trees

# What forecasts: which response is taken off the series, and what forecasts the rest.
NONE, OWN, SHARED, POOLED = "none", "own", "shared", "pooled"
TREES, ALONE = "trees", "Kindred, alone"
WITHOUT = [(NONE, name) for name in (ALONE, RIDGE, LAST_VALUE, LAST_PERIOD)]
ALONE_WITH = [(OWN, name) for name in (ALONE, RIDGE, TREES)]
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
        *(f"wind, everybody {days}" for days in SHORT),
        *(f"pm25, newcomer {days}" for days in ("7", "28", "all")),
        *(f"pm25, everybody {days}" for days in SHORT),
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
LENGTH, ROUNDS, SEEDS = 4000, 8, (0, 1, 2)  # of other methods: hours, rounds
Fit = tuple[float, float]  # the validation and the test MSE


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


SETS: Mapping[str, tuple[Callable[[], tuple[pd.DataFrame, str]], tuple[float, float]]] = {
    "wind": (wind, (0.6, 0.8)),
    "pm25": (pm25, (0.6, 0.75)),
}  # and the shares of the time at which the test parts start


def series_of(name: str) -> list[ClientSeries]:
    """Return a client for each place."""
    table, target = SETS[name][0]()
    step = np.timedelta64(3600, "s")
    clients = []
    for client, rows in table.groupby("unique_id"):
        times = rows["ds"].to_numpy().astype("datetime64[s]")
        assert (np.diff(times) == step).all()
        known = rows.drop(columns=["unique_id", "ds", target])
        clients.append(
            ClientSeries(
                str(client),
                rows[target].to_numpy(dtype=float),
                int((times[0] - np.datetime64(0, "s")) // step),
                clock=Clock(step, np.timedelta64(0, "s")).at(times),
                known=known.to_numpy(dtype=float),
                columns=tuple(known.columns),
            )
        )
    return clients


class Start:
    """Everybody's series up to the end of the test part, which begins at hour `now`."""

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
        self.shape = DataShape(known=series[0].columns)
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
        totals = self.sent(MomentsLearner, clients, {})
        return {**totals, **self.sent(SumsLearner, clients, totals)}

    def sent(self, kind: Any, clients: Sequence[ClientWindows], totals: Arrays) -> Arrays:
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
        node = Shard({client.name: client}, {})
        shard = without_response(node, [client.name], totals, task, STORE)
        (ready,) = shard.clients.values()
        assert isinstance(ready, ClientWindows)
        return ready


class _Store:
    """The totals come with every call, so nothing is kept."""

    def write_first_phase(self, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def read_first_phase(self) -> dict[str, torch.Tensor]:
        return {}


STORE = _Store()


# --- the forecasts --------------------------------------------------------------------------------


class DayAhead(Client):
    """A client that is tested by its forecasts from midnight."""

    def __init__(self, windows: ClientWindows) -> None:
        self.windows, self.unit = windows, windows.scale.std

    def cohort(self, learner: AnyLearner) -> Cohort:
        cohort = super().cohort(learner)
        midnight = torch.from_numpy((self.windows.start + self.samples) % DAY == 0)
        samples = replace(cohort.samples, is_test=cohort.samples.is_test * midnight[:, None])
        return replace(cohort, samples=samples)

    @property
    def samples(self) -> NDArray[np.int64]:
        """The numbers of all samples."""
        return np.arange(len(self.windows.targets))

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
        """Return the errors of its own fit, the cohort, and what it then sends."""
        cohort, arrays = self.fitted_alone(learner)
        return self.errors(learner, cohort), cohort, arrays

    def priors(self, kindred: AnyLearner, others: Sequence[Arrays], sent: Arrays) -> Arrays:
        """Return what Kindred's server sends to this client."""
        temperatures = temperatures_of(kindred)
        if self.windows.sends:
            return priors_of(joined([*others, sent]), temperatures, slice(len(others), None))
        means = {name: array.mean(axis=0) for name, array in joined(others).items()}
        of_each = (1, len(temperatures))
        return {n: np.broadcast_to(means[n], (*of_each, *means[n].shape)) for n in (GRAM, MOMENT)}

    def with_others(self, kindred: AnyLearner, others: Sequence[Arrays]) -> tuple[Fit, Fit]:
        """Return the errors of Kindred alone, and with what others sent."""
        alone, cohort, arrays = self.alone(kindred)
        received = self.priors(kindred, others, arrays)
        self.receive(kindred, cohort, received)
        return alone, self.errors(kindred, cohort)


def fit_of(metrics: Mapping[Metric, Sequence[float]]) -> Fit:
    """Return the validation and the test error of one client."""
    return metrics[VALIDATION_MSE][0], metrics[MSE][0]


class Rows:
    """A client's samples as rows for trees: a row for each sample and step ahead.

    Columns: the newest values, the values a day and more before the target, the newest day, the
    calendar of the target, the step, and the known columns and their trailing means.
    """

    def __init__(self, client: DayAhead) -> None:
        self.client, self.windows = client, client.windows
        self.known = trailing_means(np.nan_to_num(filled(self.windows.series.known)), DAY)

    def of(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the inputs [R, …] and the targets [R] that are present."""
        windows, n = self.windows, len(samples)
        close, lagged = windows.inputs[samples, :3], windows.inputs[samples, 3 : 3 + 3 * DAY]
        lagged = lagged.reshape(n, 3, DAY)
        ahead = np.arange(DAY)
        positions = windows.start + samples[:, None] + ahead
        calendar = [positions % DAY, positions // DAY % 7, np.broadcast_to(ahead, positions.shape)]
        rows = np.concatenate(
            [
                np.repeat(close[:, None], DAY, axis=1),
                lagged.transpose(0, 2, 1),
                np.repeat(lagged[:, None, -1], DAY, axis=1),
                np.stack(calendar, axis=-1),
                self.known[positions - windows.series.start].reshape(n, DAY, -1),
            ],
            axis=-1,
            dtype=np.float32,
        )
        present = windows.present[samples]
        return rows[present], windows.targets[samples][present]

    def train(self, most: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return at most so many rows of the train part."""
        return self.of(_thinned(np.sort(self.windows.batches.ravel()), most))

    @property
    def can_fit(self) -> bool:
        """Whether it has rows to train and rows to choose the number of trees by."""
        return bool(len(self.train(MOST_ROWS)[1]) and len(self.validation(MOST_ROWS)[1]))

    def validation(self, most: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return at most so many rows of the validation part."""
        return self.of(_thinned(self.client.samples[self.windows.validation], most))

    def errors(self, trees: Any) -> Fit:
        """Return the errors of trees."""
        tested = self.client.samples[self.windows.test]
        tested = tested[(self.windows.start + tested) % DAY == 0]
        parts = self.validation(MOST_ROWS), self.of(tested)
        validation, test = (
            float(((trees.predict(x) - y) ** 2).mean()) if len(y) else np.nan for x, y in parts
        )
        return validation, test


def _thinned(samples: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    count = min(len(samples), max(1, rows // DAY))
    if not count:
        return samples
    places = np.linspace(0, len(samples) - 1, count).round().astype(int)
    thinned: NDArray[np.int64] = samples[places]
    return thinned


def trees_of(clients: Sequence[Rows]) -> Any:
    """Return trees of these clients' pooled rows. Validation rows choose their number."""
    import lightgbm

    most = MOST_ROWS // len(clients)
    parts = ([rows.train(most) for rows in clients], [rows.validation(most) for rows in clients])
    train, validation = (
        lightgbm.Dataset(*map(np.concatenate, zip(*part, strict=True))) for part in parts
    )
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    return lightgbm.train(
        PARAMETERS | FASTER, train, MOST_TREES, valid_sets=[validation], callbacks=[stop]
    )


# --- the figures ----------------------------------------------------------------------------------


def kept(name: str, place: int) -> Path:
    """Return the file of all errors of a start: by case, start, client, response and forecast."""
    return OUTPUT / f"{name}-{place}.json"


def read(name: str, places: Sequence[int] = (0, 1)) -> dict[str, Fit]:
    """Return the errors of these starts that are kept."""
    files = [file for place in places if (file := kept(name, place)).exists()]
    return {key: fit for file in files for key, fit in json.loads(file.read_text("utf-8")).items()}


class Figures:
    """The errors of a start. again: forget all that depends on the response."""

    def __init__(self, name: str, place: int, *, again: bool) -> None:
        self.file, self.place, self.fits = kept(name, place), place, read(name, [place])
        if again:
            stay = (f"/{NONE}/", f"/{POOLED}/", f"/{TREES}")
            self.fits = {k: fit for k, fit in self.fits.items() if any(part in k for part in stay)}

    def add(self, case: str, client: str, response: str, fits: Mapping[str, Fit]) -> None:
        for method, fit in fits.items():
            self.fits[f"{case}/{self.place}/{client}/{response}/{method}"] = fit
        OUTPUT.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.fits), encoding="utf-8")

    def has(self, case: str, client: str, response: str, method: str) -> bool:
        return f"{case}/{self.place}/{client}/{response}/{method}" in self.fits


def newcomers(figures: Figures, start: Start, all_days: Sequence[str]) -> None:
    """Each client once comes to the others, who have all their days."""
    everybody = [start.windows(client, "all") for client in range(len(start.series))]
    plain = [DayAhead(client).alone(start.kindred)[2] for client in everybody]
    for row, client in enumerate(everybody):
        cases = {f"newcomer {days}": start.windows(row, days) for days in all_days}
        for case, newcomer in cases.items():
            alone(figures, start, case, newcomer)
        if all(figures.has(case, client.name, SHARED, KINDRED) for case in cases):
            continue
        others, rest = everybody[:row] + everybody[row + 1 :], plain[:row] + plain[row + 1 :]
        totals = start.totals(others)
        residuals = [
            DayAhead(start.without_response(other, totals)).alone(start.kindred)[2]
            for other in others
        ]
        for case, newcomer in cases.items():
            sent = start.sent(SumsLearner, [newcomer], totals)
            both = {**totals, **{name: totals[name] + array for name, array in sent.items()}}
            residual = DayAhead(start.without_response(newcomer, both))
            borrow(figures, start, case, DayAhead(newcomer), NONE, rest)
            borrow(figures, start, case, residual, SHARED, residuals)
        print(f"start {figures.place}: {client.name}", flush=True)


def short(figures: Figures, start: Start, days: str) -> None:
    """Everybody has so many days."""
    case = f"everybody {days}"
    clients = [start.windows(client, days) for client in range(len(start.series))]
    if all(figures.has(case, client.name, SHARED, KINDRED) for client in clients):
        return
    totals = start.totals(clients)
    without = [DayAhead(start.without_response(client, totals)) for client in clients]
    for response, forms in ((NONE, list(map(DayAhead, clients))), (SHARED, without)):
        sent = [client.alone(start.kindred)[2] for client in forms]
        for row, client in enumerate(forms):
            alone(figures, start, case, clients[row])
            borrow(figures, start, case, client, response, sent[:row] + sent[row + 1 :])
    print(f"start {figures.place}: {case}", flush=True)


def alone(figures: Figures, start: Start, case: str, windows: ClientWindows) -> None:
    """Add what a client can do alone."""
    client = DayAhead(windows)
    if not figures.has(case, windows.name, NONE, RIDGE):
        fits = client.naive(start.kindred) | {RIDGE: client.alone(start.ridge)[0]}
        figures.add(case, windows.name, NONE, fits)
    if not figures.has(case, windows.name, OWN, RIDGE):
        client = DayAhead(start.without_response(windows, {}))
        fits = {RIDGE: client.alone(start.ridge)[0], ALONE: client.alone(start.kindred)[0]}
        figures.add(case, windows.name, OWN, fits)


def borrow(
    figures: Figures,
    start: Start,
    case: str,
    client: DayAhead,
    response: str,
    others: Sequence[Arrays],
) -> None:
    """Add what a client forecasts with and without what others sent."""
    fits = client.with_others(start.kindred, others)
    figures.add(case, client.windows.name, response, dict(zip((ALONE, KINDRED), fits, strict=True)))


def forests(figures: Figures, start: Start, case: str) -> None:
    """Add the trees of each client alone, and of all pooled."""
    kind, days = case.split()
    days_of_others = "all" if kind == "newcomer" else days
    clients, others = (
        [Rows(DayAhead(start.windows(client, each))) for client in range(len(start.series))]
        for each in (days, days_of_others)
    )
    same = trees_of(clients) if days == days_of_others else None
    for row, rows in enumerate(clients):
        name = rows.windows.name
        if not figures.has(case, name, OWN, TREES) and rows.can_fit:
            figures.add(case, name, OWN, {TREES: rows.errors(trees_of([rows]))})
        if not figures.has(case, name, POOLED, TREES):
            trees = same or trees_of([*others[:row], rows, *others[row + 1 :]])
            figures.add(case, name, POOLED, {TREES: rows.errors(trees)})
    print(f"start {figures.place}: trees, {case}", flush=True)


# --- other methods ----------------------------------------------------------------


def run_of(folder: Path, method: str, known: str, **changes: object) -> Run:
    """Return a run of a method on wind, with or without columns."""
    settings = {
        "method": method,
        "rounds": ROUNDS,
        "data.source": "long-csv",
        "data.path": str(data_root() / "gefcom2012_wind_hourly.csv.gz"),
        "data.columns": "power",
        "data.known": known,
        "data.horizon": DAY,
        "data.calendar": "phase",
        "data.max-steps": LENGTH,
        **output_in(folder, ""),
    }
    return run(config={**settings, **changes}, nodes=4, workers=1, progress=False)


def other_methods() -> list[list[str]]:
    """Return the table of methods that train, with and without the response."""
    lines = [["method", "without", "with", "ratio"]]
    with TemporaryDirectory() as folder:
        for method in ("fuels", "fedavg"):
            errors = np.array(
                [
                    [
                        run_of(Path(folder), method, known, seed=seed).summary["mse"]
                        for seed in SEEDS
                    ]
                    for known in ("", WIND_COLUMNS)
                ]
            )
            cells = [f"{row.mean():.4f} ± {row.std(ddof=1):.4f}" for row in errors]
            lines.append([method, *cells, f"{errors[1].mean() / errors[0].mean():.3f}"])
            print(lines[-1], flush=True)
    return lines


# --- the page -------------------------------------------------------------------------------------


def chosen(fits: Mapping[str, Fit], case: str, row: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the test error by start and client, each of the method with the least validation
    error, without a validation part of the first."""
    best: dict[str, Fit] = {}
    for key, fit in fits.items():
        of_case, start, client, *method = key.split("/")
        name = f"{start}/{client}"
        counts = of_case == case and tuple(method) in row
        if counts and (name not in best or fit[0] < best[name][0]):
            best[name] = fit
    return {name: test for name, (_, test) in best.items()}


def ratios(top: Mapping[str, float], below: Mapping[str, float]) -> NDArray[np.float64]:
    """Return the ratios of errors by start and client."""
    return np.array([top[name] / below[name] for name in below if name in top])


def geometric(values: NDArray[np.float64]) -> float:
    return float(np.exp(np.log(values).mean())) if len(values) else np.nan


def lines_of(fits: Mapping[str, Fit], *, details: bool = False) -> list[list[str]]:
    """Return the table of a data set. details: also each method that validation chooses among."""
    parts = {"/".join(m): [m] for row in ROWS.values() for m in row if len(row) > 1}
    shown = ROWS | (parts if details else {})
    last = ["both / columns, alone", "clients better", "both / best alone"]
    lines = [["who has how many days", *list(shown)[1:], *last]]
    for case in ORDER:
        errors = {title: chosen(fits, case, row) for title, row in shown.items()}
        base, both = errors["without columns, alone"], errors["both shared"]
        if not both:
            continue
        gain = ratios(both, errors["columns, alone"])
        best = ratios(both, chosen(fits, case, WITHOUT + ALONE_WITH))
        relative = [geometric(ratios(errors[title], base)) for title in list(shown)[1:]]
        cells = [f"{value:.3f}" if np.isfinite(value) else UNKNOWN for value in relative]
        figures_of_gain = [f"{geometric(gain):.3f}", f"{np.mean(gain < 1):.0%} of {len(gain)}"]
        lines.append([case, *cells, *figures_of_gain, f"{geometric(best):.3f}"])
    return lines


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--again", action="store_true", help="learn all responses again")
    parser.add_argument("--no-trees", action="store_true", help="leave out the trees")
    parser.add_argument("--start", type=int, choices=(0, 1), help="only this starting time")
    parser.add_argument("--days", default=",".join(DAYS), help="of newcomers")
    parser.add_argument("--methods", action="store_true", help="FUELS and FedAvg on wind")
    parser.add_argument("--page-only", action="store_true", help="compute nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.methods:
        runs = (
            f"`python -m {MAKER} --methods`, {LENGTH} hours of wind, {ROUNDS} rounds, seeds 0 to 2"
        )
        lines = with_origin(other_methods(), runs, made_today())
        publish(PAGE, "methods", MAKER, lines, Shown(columns=()))
        return
    for name in arguments.sets or SETS:
        places = (0, 1) if arguments.start is None else (arguments.start,)
        series = [] if arguments.page_only else series_of(name)
        for place in places if series else ():
            figures = Figures(name, place, again=arguments.again)
            start = Start(series, SETS[name][1][place])
            for days in SHORT:
                short(figures, start, days)
            newcomers(figures, start, arguments.days.split(","))
            for case in () if arguments.no_trees else WITH_TREES:
                forests(figures, start, case)
        fits = read(name)
        for line in zip(*lines_of(fits, details=True), strict=True):
            print(f"{line[0]:25}", *(f"{cell:>13}" for cell in line[1:]))
        if arguments.start is None:
            first, *rows = lines_of(fits)
            lines = [["data", *first], *([name, *row] for row in rows)]
            runs = f"`python -m {MAKER} {name}`, seed 0"
            publish(PAGE, "newcomers", MAKER, with_origin(lines, runs, made_today()), SHOWN)


if __name__ == "__main__":
    main()
