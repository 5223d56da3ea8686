"""docs/results/history.md: forecasts of a client with few days of data.

    python -m benchmarks.history_results                    # all sets
    python -m benchmarks.history_results milano             # one
    python -m benchmarks.history_results --page-only        # from existing figures

Only closed forms: ridge regression and Kindred, each client for itself, and Kindred. First every
client has so many days of train samples. Then one client at a time does, while the others have all
their days. Both halves of the methods are the app's own, one client after the other in one process.
So with all days these are the errors of `fedproto run` with the same settings.

With fewer days a client's scale differs, so all its errors are on the scale of its whole training
part. The validation part never changes: days of history are days of training.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import processors
from benchmarks.pages import ROOT, UNKNOWN, Lines, Shown, data_root, picture, publish, with_origin
from benchmarks.parts import parser_of
from benchmarks.results.declared import page
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import ClientWindows, cut_of, lookback, make_windows
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.maths.ridge import solve, symmetric
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.report.drawing import look
from fedproto_app.settings import Settings, flat_settings, settings_from
from fedproto_app.settings.reading import flat
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, make_learner, new_cohort
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.strategies.kindred.learner import GRAM, MOMENT, PROTOTYPE, RandomFeatureForecaster
from fedproto_app.strategies.kindred.strategy import kinship
from fedproto_app.tasks.forecasting.task import ForecastingTask, mean_day, window_layout

PAGE = ROOT / "docs" / "results" / "history.md"
MAKER = "benchmarks.history_results"
OUTPUT = ROOT / "runs" / "results" / "history"
SETS = ("milano", "electricity", "m4")
DAYS = (2, 4, 7, 14, 28, 0)  # 0: all
NEWCOMERS_DAYS = (0, 1, 7)
RIDGE, ALONE = "linear regression (local)", "Kindred (local)"
KINDRED = "Kindred (federated)"
LAST_VALUE, LAST_PERIOD = "last value", "last period"
METHODS: Mapping[str, Mapping[str, object]] = {
    RIDGE: {"method": "analytic", "analytic.sharing": "none"},
    KINDRED: {"method": "kindred"},
}
SHOWN = {
    "days": Shown(keys=2, columns=()),
    "newcomers": Shown(
        rows=[
            "milano, 0",
            "milano, 1",
            "milano, 7",
            "electricity, 0",
            "electricity, 7",
            "m4, 0",
            "m4, 7",
        ],
        keys=2,
        columns=[
            *(f"{method}, mean" for method in (LAST_VALUE, RIDGE, ALONE, KINDRED)),
            "clients better off",
        ],
    ),
}
Errors = dict[str, list[float]]  # by method, of the clients in the source's order


def settings_of(name: str, **changes: object) -> Settings:
    """Return the settings of the tables of forecasting.md, seed 0."""
    config = flat(tomllib.loads((ROOT / f"configs/fuels-{name}.toml").read_text(encoding="utf-8")))
    data = {
        "data.path": str(data_root() / page("forecasting").tables[name].data),
        "data.calendar": "week" if name == "electricity" else "phase",
    }
    return settings_from({**config, **data, "seed": 0, **changes})


def learner_of(settings: Settings, method: str) -> AnyLearner:
    """Return the client half of a method."""
    changed = settings_from({**flat_settings(settings), **METHODS[method]})
    return make_learner(changed, ForecastingTask(changed))


class Client:
    """One client with `days` days of training (0: all), and the lags of these settings.

    unit: the scale of its errors, of these settings.
    """

    def __init__(self, series: ClientSeries, settings: Settings, days: int) -> None:
        lags = ",".join(map(str, settings.data.further_lags))
        data = settings.data.model_copy(update={"history": days, "lags": lags})
        self.windows = make_windows(series, data)
        self.unit = make_windows(series, settings.data).scale.std

    def fitted_alone(self, learner: AnyLearner) -> tuple[Cohort, Arrays]:
        """Return the client after its own fit, and what it then sends."""
        cohort = self.cohort(learner)
        context = learner.context(Guidance(), cohort)
        learner.conclude(cohort, context)
        return cohort, learner.contribution(cohort, context).arrays

    def cohort(self, learner: AnyLearner) -> Cohort:
        """Return the client as a cohort with coefficients 0."""
        initial = {
            name: value[None].clone() for name, value in learner.initial_parameters().items()
        }
        samples = learner.task.gather([self.windows], 1)
        return new_cohort(learner, initial, samples, server_round=1, trains=False)

    def error(self, learner: AnyLearner, cohort: Cohort) -> float:
        """Return the test MSE of the cohort's model."""
        return self.judged(learner.evaluate(cohort, Guidance()))

    def judged(self, metrics: Mapping[Metric, Sequence[float]]) -> float:
        """Return the test MSE among these metrics, on the scale of all data."""
        return metrics[Metric("mse")][0] * (self.windows.scale.std / self.unit) ** 2

    def receive(self, learner: AnyLearner, cohort: Cohort, priors: Arrays) -> None:
        """Fit with what the server sends."""
        learner.receive(cohort, Guidance(priors, cohort.names))


def joined(contributions: Sequence[Arrays]) -> Arrays:
    """Return what each client sends, [1, …], as arrays of all clients, [N, …]."""
    return {
        name: np.concatenate([arrays[name] for arrays in contributions])
        for name in (PROTOTYPE, GRAM, MOMENT)
    }


def priors_of(
    contributions: Arrays, temperatures: Sequence[float], rows: slice = slice(None)
) -> Arrays:
    """Return what the server sends to the clients of these rows, [R, T, …]."""
    divergence = pairwise_divergence(torch.from_numpy(contributions[PROTOTYPE])[:, None])
    weights = torch.stack([kinship(divergence, temperature) for temperature in temperatures], dim=1)
    priors = {}
    for name in (GRAM, MOMENT):
        arrays = torch.from_numpy(contributions[name]).double()
        mixed = [torch.tensordot(row, arrays, dims=1).float() for row in weights[rows]]
        priors[name] = torch.stack(mixed).numpy()
    return priors


def temperatures_of(kindred: AnyLearner) -> Sequence[float]:
    assert isinstance(kindred.section, KindredSettings)
    return kindred.section.temperatures


def with_equal_history(
    series: Sequence[ClientSeries], settings: Settings, days: int
) -> tuple[Errors, Any]:
    """Give all clients the same days, and return their errors and contributions."""
    of_days = settings_from({**flat_settings(settings), "data.history": days})
    ridge, kindred = (learner_of(of_days, method) for method in METHODS)
    clients = [Client(client_series, of_days, days) for client_series in series]
    for client, client_series in zip(clients, series, strict=True):
        client.unit = make_windows(client_series, settings.data).scale.std
    errors: Errors = {RIDGE: [], ALONE: [], KINDRED: []}
    fitted, contributions = [], []
    for client in clients:
        errors[RIDGE].append(client.error(ridge, client.fitted_alone(ridge)[0]))
        cohort, arrays = client.fitted_alone(kindred)
        errors[ALONE].append(client.error(kindred, cohort))
        fitted.append(cohort)
        contributions.append(arrays)
    priors = priors_of(joined(contributions), temperatures_of(kindred))
    for row, (client, cohort) in enumerate(zip(clients, fitted, strict=True)):
        client.receive(kindred, cohort, {name: p[row : row + 1] for name, p in priors.items()})
        errors[KINDRED].append(client.error(kindred, cohort))
    return errors, contributions


def newcomers(
    series: Sequence[ClientSeries], settings: Settings, days: int, contributions: Sequence[Arrays]
) -> Errors:
    """Give each client in turn `days` days, while the others contribute all their days.

    Without a day the client has only the values that its first forecast needs. They give its scale
    and its mean day. It cannot weigh candidates, so its model is the mean of the priors' fits.
    """
    ridge, kindred = (learner_of(settings, method) for method in METHODS)
    errors: Errors = {method: [] for method in (LAST_VALUE, LAST_PERIOD, RIDGE, ALONE, KINDRED)}
    all_arrays = joined(contributions)
    for row, client_series in enumerate(series):
        client = Client(client_series, settings, days or settings.data.periodic_window)
        if not days:
            before = cut_of(client_series, settings.data).trained[-lookback(settings.data) :]
            client.windows = on_scale(client.windows, before, window_layout(settings.data))
        cohort = client.cohort(kindred)
        blocks = window_layout(settings.data).blocks(cohort.samples.inputs)
        copies = {LAST_VALUE: blocks.close[..., -1:], LAST_PERIOD: blocks.lagged[..., -1, :]}
        for method, repeated in copies.items():
            errors[method].append(client.judged(kindred.task.judge(repeated, cohort.samples)))
        prototypes = all_arrays[PROTOTYPE].copy()
        prototypes[row] = mean_day(cohort.samples)[0].numpy()
        changed = {**all_arrays, PROTOTYPE: prototypes}
        arrays = priors_of(changed, temperatures_of(kindred), slice(row, row + 1))
        if days:
            errors[RIDGE].append(client.error(ridge, client.fitted_alone(ridge)[0]))
            cohort, _ = client.fitted_alone(kindred)
            errors[ALONE].append(client.error(kindred, cohort))
            client.receive(kindred, cohort, arrays)
        else:
            cohort.parameters[COEFFICIENTS][0] = priors_alone(arrays, kindred)
        errors[KINDRED].append(client.error(kindred, cohort))
    return {method: values for method, values in errors.items() if values}


def on_scale(
    windows: ClientWindows, values: NDArray[np.float64], layout: WindowLayout
) -> ClientWindows:
    """Return the same samples on the scale of these values."""
    before = windows.scale
    scale = replace(
        before, mean=float(np.nanmean(values)), std=float(np.nanstd(values)) or before.std
    )
    shift, factor = scale.standardised(before.mean), before.std / scale.std
    inputs = windows.inputs.copy()
    past, _ = layout.split(inputs)
    past[:] = past * factor + shift
    targets = np.where(windows.present, windows.targets * factor + shift, 0).astype(np.float32)
    return replace(windows, make_inputs=lambda: inputs, targets=targets, scale=scale)


def priors_alone(arrays: Arrays, kindred: Any) -> torch.Tensor:
    """Return the mean of (A' + λ·I)⁻¹ B' over priors, widths and penalties, [H, D]."""
    model: RandomFeatureForecaster = kindred.model
    grams = symmetric(torch.from_numpy(arrays[GRAM][0]).double(), model.representation_dim)
    moments = torch.from_numpy(arrays[MOMENT][0]).double().transpose(1, 2)  # (T, D, H)
    fits = []
    for width in (model.plain_width, model.representation_dim):
        for penalty in kindred.section.penalties[:-1]:
            fit = torch.zeros_like(moments)
            fit[:, :width] = solve(grams[:, :width, :width], moments[:, :width], penalty)
            fits.append(fit)
    return torch.cat(fits).mean(dim=0).T.float()


# --- the page ---------------------------------------------------------------------------------


def figures_of(name: str, settings: Settings) -> dict[str, Any]:
    """Return all errors of a data set, by the days of all clients and by the days of a newcomer."""
    series = load_series(settings.data)
    periods = [len(make_windows(client_series, settings.data).batches) for client_series in series]
    figures: dict[str, Any] = {"clients": len(series), "all": float(np.median(periods)), "days": {}}
    for days in DAYS:
        if days < min(periods):
            figures["days"][str(days or "all")], contributions = with_equal_history(
                series, settings, days
            )
            print(f"{name}: {days or 'all'} days", flush=True)
    figures["newcomers"] = {}
    for days in NEWCOMERS_DAYS:
        figures["newcomers"][str(days)] = newcomers(series, settings, days, contributions)
        print(f"{name}: a newcomer with {days} days", flush=True)
    return {**figures, "made": f"{date.today().isoformat()}; {processors()}"}


def lines_of(name: str, of_days: Mapping[str, Errors]) -> Lines:
    """Return a table: mean and median of each method, and Kindred against the best other method."""
    methods = max((list(errors) for errors in of_days.values()), key=len)
    titles = [f"{method}, {kind}" for method in methods for kind in ("mean", "median")]
    lines = [["data", "days", *titles, "less than the best of the others", "clients better off"]]
    for days, errors in of_days.items():
        cells = [
            f"{kind(errors[method]):.4f}" if method in errors else UNKNOWN
            for method in methods
            for kind in (np.mean, np.median)
        ]
        rivals = np.array([values for method, values in errors.items() if method != KINDRED])
        ours = np.array(errors[KINDRED])
        gain = 1 - ours.mean() / rivals.mean(axis=1).min()
        better = float(np.mean(ours < rivals.min(axis=0)))
        lines.append([name, days, *cells, f"{gain:.0%}", f"{better:.0%}"])
    return lines


def draw(figures: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    """Draw a panel for each data set: error by days of training, mean and median."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    with picture(file, 10, 3.8) as figure:
        panels = figure.subplots(1, len(figures))
        for axes, (name, data) in zip(panels, figures.items(), strict=True):
            labels = list(data["days"])
            days = [data["all"] if label == "all" else float(label) for label in labels]
            for number, method in enumerate((RIDGE, ALONE, KINDRED)):
                for kind, dashes in ((np.mean, "-"), (np.median, "--")):
                    errors = [kind(by_method[method]) for by_method in data["days"].values()]
                    style = {**look(number), "linestyle": dashes}
                    axes.plot(days, errors, marker=".", label=f"{method}: {kind.__name__}", **style)
            axes.set(xscale="log", yscale="log", xlabel="days of training", title=name)
            axes.set_xticks(days, labels)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        panels[0].set_ylabel("test MSE")
        handles = axes.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--page-only", action="store_true", help="compute nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets or SETS:
        if not arguments.page_only:
            computed = figures_of(name, settings_of(name))
            (OUTPUT / f"{name}.json").write_text(json.dumps(computed), encoding="utf-8")
    figures = {}
    for name in SETS:
        if (OUTPUT / f"{name}.json").exists():
            data = json.loads((OUTPUT / f"{name}.json").read_text(encoding="utf-8"))
            figures[name] = data
            runs = f"`python -m {MAKER} {name}`, {data['clients']} clients, seed 0"
            origin = data["made"].replace("; ", " on ")
            for section, shown in SHOWN.items():
                lines = with_origin(lines_of(name, data[section]), runs, origin)
                publish(PAGE, section, MAKER, lines, shown)
    if len(figures) == len(SETS):
        draw(figures, PAGE.with_suffix(".svg"))


if __name__ == "__main__":
    main()
