"""The results of a sweep's trials: the choice by validation error, the tables and the charts.

Test errors are read only after the choice, and only for the chosen trials.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from optuna.distributions import CategoricalDistribution

from fedproto_app.core import charts
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.fitting_table import FittingTable
from fedproto_app.report.run_files import csv_text
from fedproto_app.report.runs import NOT_CONVERGED, read_clients, read_run
from fedproto_app.report.taking_part import validation_error
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.metrics import UNKNOWN, TaskMetrics

if TYPE_CHECKING:
    from fedproto_app.experiments.sweep_plan import Axis, Plan, Trial

_MOST_ROWS = 30  # of the table on a screen
_MOST_CHARTS = 12
_MOST_LETTERS = 30  # of a value or a key in a chart
_MOST_TICKS = 8  # with no more values than this, there is a tick at each value


class Mean(NamedTuple):
    """The mean over seeds, and its standard error, which is None if there is only one seed.

    The standard error is the sample standard deviation divided by √n.
    """

    mean: float
    error: float | None

    def text(self) -> str:
        return f"{self.mean:.4g}" + ("" if self.error is None else f" ± {self.error:.2g}")


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of the values, one per seed. There must be at least one."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(fmean(values), error)


@dataclass(frozen=True)
class Result:
    """The result of a trial. The keys of its mappings are seeds.

    question: trials with different questions have different data, so their errors cannot be
    compared. folders: the folders of the finished runs. validation: each run's mean validation
    error over the clients (`validation_error`). medians: each run's median validation error of the
    models that clients end with. clients: how many clients have a known error, the smallest number
    over the seeds. failed: why a run has no result.
    """

    trial: Trial
    metrics: TaskMetrics
    question: tuple[tuple[str, str], ...]
    folders: Mapping[int, Path]
    validation: Mapping[int, float]
    medians: Mapping[int, float]
    clients: int
    failed: Mapping[int, str]

    @property
    def complete(self) -> bool:
        return bool(self.validation) and not self.failed

    @property
    def mean(self) -> Mean | None:
        return mean_of(list(self.validation.values())) if self.validation else None

    @property
    def median(self) -> Mean | None:
        return mean_of(list(self.medians.values())) if self.medians else None

    @property
    def place(self) -> tuple[bool, int, float, int]:
        """The sort key: the best trial has the smallest.

        Trials whose runs are all finished come first. Among these, more clients with a known
        error come first, then a lower validation error, then a lower number of the trial.
        """
        mean = self.mean.mean if self.mean else math.inf
        return not self.complete, -self.clients, mean, self.trial.number

    @property
    def had_not_converged(self) -> bool:
        """Whether any run of the trial had not converged."""
        return any(read_run(folder).had_not_converged for folder in self.folders.values())

    def test(self) -> Mean:
        """Return the mean test error of the models that the clients end with."""
        column = self.metrics.kept.column.name
        figures = [read_clients(folder).finite(column) for folder in self.folders.values()]
        return mean_of([fmean(values) if values else math.nan for values in figures])


def result_of(
    trial: Trial, task: str, folders: Mapping[int, Path], failed: Mapping[int, str]
) -> Result:
    """Read the validation errors of a trial's finished runs. The keys of folders are seeds."""
    metrics = report_for(task).metrics
    column = metrics.kept_validation.column.name
    errors = {seed: read_clients(path).finite(column) for seed, path in folders.items()}
    of_data = [
        (key, repr(value))
        for key, value in trial.changes.items()
        if key.startswith("data.") and key.removeprefix("data.") not in metrics.inputs
    ]
    return Result(
        trial=trial,
        metrics=metrics,
        question=(("task", task), *of_data),
        folders=folders,
        validation={
            seed: validation_error(folders[seed], values, metrics)
            for seed, values in errors.items()
            if values
        },
        medians={seed: median(values) for seed, values in errors.items() if values},
        clients=min((len(values) for values in errors.values() if values), default=0),
        failed={
            **failed,
            **{s: "no client has a validation error" for s, values in errors.items() if not values},
        },
    )


def ranked(results: Sequence[Result]) -> list[Result]:
    """Return the results grouped by question. In each group, the best come first."""
    questions = list(dict.fromkeys(result.question for result in results))
    return sorted(results, key=lambda result: (questions.index(result.question), *result.place))


def choices(results: Sequence[Result]) -> list[Result]:
    """Return the best complete trial of each question."""
    complete = [result for result in ranked(results) if result.complete]
    return list({result.question: result for result in reversed(complete)}.values())[::-1]


def write_results(
    folder: Path, plan: Plan, results: Sequence[Result], chosen: Sequence[Result]
) -> dict[int, Mean]:
    """Write ``sweep.csv`` and ``sweep.json``, and return the chosen trials' test errors."""

    def cells(name: str, mean: Mean | None, error: str) -> dict[str, float | None]:
        return {name: mean and mean.mean, error: mean and mean.error}

    tests = {result.trial.number: result.test() for result in chosen}
    rows, trials = [], []
    for result in ranked(results):
        trial, test = result.trial, tests.get(result.trial.number)
        rows.append(
            {
                "trial": trial.number,
                **trial.changes,
                "seeds": len(result.validation),
                "failed": len(result.failed),
                "clients": result.clients,
                **cells("validation", result.mean, "validation_se"),
                **cells("validation_median", result.median, "validation_median_se"),
                "chosen": "yes" if test else "",
                **cells("test", test, "test_se"),
            }
        )
        record: dict[str, Any] = {
            "trial": trial.number,
            "settings": dict(trial.changes),
            "runs": {str(seed): path.name for seed, path in result.folders.items()},
            "failed": {str(seed): reason for seed, reason in result.failed.items()},
            "clients": result.clients,
            "validation": {
                "figure": result.metrics.validation.round.name,
                **cells("mean", result.mean, "standard_error"),
                "by_seed": {str(seed): error for seed, error in result.validation.items()},
            },
            "chosen": test is not None,
        }
        if test:
            figure = {"figure": result.metrics.kept.column.name}
            record["test"] = figure | cells("mean", test, "standard_error")
        trials.append(record)
    write_whole(
        folder / "sweep.csv",
        csv_text([list(rows[0]), *(list(row.values()) for row in rows)]).encode(),
    )
    table = {"plan": plan.model_dump(by_alias=True), "trials": trials}
    write_whole(folder / "sweep.json", (json.dumps(table, indent=2, default=str) + "\n").encode())
    return tests


def results_table(plan: Plan, results: Sequence[Result], tests: Mapping[int, Mean]) -> FittingTable:
    """Return a table for a terminal: the best trials first, test errors only for the choice."""
    metrics = results[0].metrics
    validation, test_column = metrics.validation.round.name, metrics.kept.column.name
    ordered, rows = ranked(results), []
    for result in ordered[:_MOST_ROWS]:
        test = tests.get(result.trial.number)
        mark = NOT_CONVERGED * result.had_not_converged
        rows.append(
            [
                f"{result.trial.number}{mark}",
                *map(str, result.trial.changes.values()),
                f"{len(result.validation)}" + (f" of {len(plan.seeds)}" if result.failed else ""),
                result.mean.text() if result.mean else UNKNOWN,
                test.text() if test else "",
            ]
        )
    if (hidden := len(ordered) - _MOST_ROWS) > 0:
        rows.append(["…", *[""] * (len(plan.space) + 2), f"{hidden} more"])
    return FittingTable(
        ["trial", *_short_keys([*plan.space]), "seeds", validation, test_column],
        rows,
        caption=f"{validation}: mean over clients, as mean ± standard error over seeds; "
        f"{test_column}: test error, only for the choice"
        + f";{NOT_CONVERGED}: had not converged"
        * any(row[0].endswith(NOT_CONVERGED) for row in rows),
        marked=[n for n, result in enumerate(ordered) if result.trial.number in tests],
    )


def _short_keys(keys: Sequence[str]) -> list[str]:
    """Return the keys, without the names of their tables if they are unique without."""
    names = [key.rpartition(".")[2] for key in keys]
    return [name if names.count(name) == 1 else key for key, name in zip(keys, names, strict=True)]


def sweep_charts(
    plan: Plan, results: Sequence[Result], chosen: Collection[int]
) -> list[charts.Lines]:
    """Return a chart for each swept setting, or no chart if no trial has an error.

    chosen: the numbers of the chosen trials.
    """
    complete = [result for result in ranked(results) if result.mean is not None]
    if not complete:
        return []
    means = [mean for result in complete for mean in (result.mean, result.median) if mean]
    low = min(mean.mean - (mean.error or 0.0) for mean in means)
    high = max(mean.mean + (mean.error or 0.0) for mean in means)
    room = 0.05 * (high - low or 1.0)
    y = charts.Axis(complete[0].metrics.validation.round.name, limits=(low - room, high + room))
    swept = list(plan.space.items())[:_MOST_CHARTS]
    return [_chart(key, axis, y, complete, chosen) for key, axis in swept]


def through_choice(key: str, results: Sequence[Result]) -> list[Result]:
    """Return the trials that differ from the first choice only in this setting.

    The trials are sorted by its value and include the choice. Without a choice, there are none.
    """

    def other_settings(result: Result) -> str:
        return repr({name: v for name, v in result.trial.changes.items() if name != key})

    settings_of_choice = [other_settings(best) for best in choices(results)[:1]]
    alike = [result for result in results if other_settings(result) in settings_of_choice]
    return sorted(alike, key=lambda result: result.trial.changes[key])


def _chart(
    key: str, axis: Axis, y: charts.Axis, complete: Sequence[Result], chosen: Collection[int]
) -> charts.Lines:
    """Return the chart of a setting. y: the axis of errors, the same for all settings."""
    values: list[Any] = [result.trial.changes[key] for result in complete]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    names = list(dict.fromkeys(str(value)[:_MOST_LETTERS] for value in values))

    def place(result: Result) -> float:
        value = result.trial.changes[key]
        return float(value) if numeric else names.index(str(value)[:_MOST_LETTERS])

    def line(
        label: str, look: int | None, errors: Sequence[tuple[Result, Mean | None]], joined: bool
    ) -> charts.Line:
        pairs = [(place(result), mean) for result, mean in errors if mean]
        return charts.Line(
            label,
            np.array([x for x, _ in pairs]),
            np.array([mean.mean for _, mean in pairs]),
            look,
            error=np.array([mean.error or 0.0 for _, mean in pairs]),
            joined=joined,
        )

    through = through_choice(key, complete) if numeric else []
    through = through if len(through) > 1 else []
    drawn = {result.trial.number for result in through} | set(chosen)
    aside = [(r, r.mean) for r in complete if r.trial.number not in drawn]
    best = [(r, r.mean) for r in complete if r.trial.number in chosen]
    lines = [
        line("other trials", None, aside, False),
        line("mean over clients, which chooses", 0, [(r, r.mean) for r in through], True),
        line("median client, kept models", 2, [(r, r.median) for r in through], True),
        line("choice", 1, best, False),
    ]
    if not numeric:
        x = charts.Axis(names=names)
    elif isinstance(axis, CategoricalDistribution):
        ticks = sorted(set(values))
        ticks = ticks if len(ticks) <= _MOST_TICKS else []
        x = charts.Axis(log=charts.is_wide(np.array(values)), ticks=ticks)
    else:
        x = charts.Axis(log=axis.log)
    text = f"Validation error against {key}, mean ± standard error over seeds."
    return charts.Lines(
        key[-_MOST_LETTERS:], text, x, y, [drawn for drawn in lines if len(drawn.x)]
    )
