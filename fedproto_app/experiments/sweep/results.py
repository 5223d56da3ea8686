"""The results of a sweep's trials: the choice by validation errors, and the tables.

Test errors are read only for a chosen trial, after the choice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedproto_app.core.whole_file import write_whole
from fedproto_app.experiments.sweep.plan import Plan, Trial
from fedproto_app.report.csv_text import csv_text
from fedproto_app.report.runs import read_clients
from fedproto_app.report.task_report import report_for
from fedproto_app.report.validation import validation_error
from fedproto_app.tasks.metrics import UNKNOWN, TaskMetrics

_MOST_ROWS = 30  # on a screen


class Mean(NamedTuple):
    """Mean over seeds and its standard error, which is None for one seed.

    The standard error is the sample standard deviation over √n.
    """

    mean: float
    error: float | None

    def text(self) -> str:
        return f"{self.mean:.4g}" + ("" if self.error is None else f" ± {self.error:.2g}")


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of one value per seed, at least one."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(fmean(values), error)


@dataclass(frozen=True)
class Result:
    """The result of a trial; mappings are by seed.

    question: trials with different questions have different data, so their errors cannot be
    compared. folders: of the finished runs. validation: mean validation errors over clients
    (report/validation.py). medians: median validation errors of the models that clients end with.
    clients: the number of clients with an error, the smallest over the seeds. failed: the reason
    for each run without a result.
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
        """The sort key, the best first.

        Trials with all runs come first, then the most clients with an error, then the lowest
        validation error, then the lowest number.
        """
        mean = self.mean.mean if self.mean else math.inf
        return not self.complete, -self.clients, mean, self.trial.number

    def test(self) -> Mean:
        """Return the mean test error of the models that the clients end with."""
        figures = [
            client_column(folder, self.metrics.kept.column.name) for folder in self.folders.values()
        ]
        return mean_of([fmean(values) if values else math.nan for values in figures])


def result_of(
    trial: Trial, task: str, folders: Mapping[int, Path], failed: Mapping[int, str]
) -> Result:
    """Read the validation errors of a trial's finished runs. folders: by seed."""
    metrics = report_for(task).metrics
    column = metrics.kept_validation.column.name
    errors = {seed: client_column(path, column) for seed, path in folders.items()}
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


def client_column(folder: Path, column: str) -> list[float]:
    """Return the finite numbers in a column of the run's clients.csv."""
    cells = [float(row[column] or "nan") for row in read_clients(folder)]
    return [value for value in cells if math.isfinite(value)]


def ranked(results: Sequence[Result]) -> list[Result]:
    """Return the results grouped by question, the best first."""
    questions = list(dict.fromkeys(result.question for result in results))
    return sorted(results, key=lambda result: (questions.index(result.question), *result.place))


def choices(results: Sequence[Result]) -> list[Result]:
    """Return the best complete trial of each question."""
    complete = [result for result in ranked(results) if result.complete]
    return list({result.question: result for result in reversed(complete)}.values())[::-1]


def write_results(
    folder: Path, plan: Plan, results: Sequence[Result], chosen: Sequence[Result]
) -> dict[int, Mean]:
    """Write ``sweep.csv`` and ``sweep.json``; return the chosen trials' test errors by number."""
    tests = {result.trial.number: result.test() for result in chosen}
    rows, trials = [], []
    for result in ranked(results):
        trial, test = result.trial, tests.get(result.trial.number)
        mean, middle = result.mean or (None, None), result.median or (None, None)
        rows.append(
            {
                "trial": trial.number,
                **trial.changes,
                "seeds": len(result.validation),
                "failed": len(result.failed),
                "clients": result.clients,
                "validation": mean[0],
                "validation_se": mean[1],
                "validation_median": middle[0],
                "validation_median_se": middle[1],
                "chosen": "yes" if test else "",
                "test": test and test.mean,
                "test_se": test and test.error,
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
                "mean": mean[0],
                "standard_error": mean[1],
                "by_seed": {str(seed): error for seed, error in result.validation.items()},
            },
            "chosen": test is not None,
        }
        if test:
            figure = {"figure": result.metrics.kept.column.name}
            record["test"] = {**figure, "mean": test.mean, "standard_error": test.error}
        trials.append(record)
    write_whole(
        folder / "sweep.csv",
        csv_text([list(rows[0]), *(list(row.values()) for row in rows)]).encode(),
    )
    table = {"plan": plan.model_dump(by_alias=True), "trials": trials}
    write_whole(folder / "sweep.json", (json.dumps(table, indent=2, default=str) + "\n").encode())
    return tests


def results_table(plan: Plan, results: Sequence[Result], tests: Mapping[int, Mean]) -> Table:
    """Return a table for a terminal: the best trials first, test errors only for the choice."""
    metrics = results[0].metrics
    validation, kept = metrics.validation.round.name, metrics.kept.column.name
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,
        caption=f"{validation}: mean over clients, mean ± standard error over seeds; "
        f"{kept}: test error, only of the choice",
        caption_justify="left",
    )
    for name in ("trial", *plan.space, "seeds", validation, kept):
        table.add_column(escape(name), justify="right", overflow="fold")
    ordered = ranked(results)
    for result in ordered[:_MOST_ROWS]:
        test = tests.get(result.trial.number)
        table.add_row(
            str(result.trial.number),
            *(escape(str(value)) for value in result.trial.changes.values()),
            f"{len(result.validation)}" + (f" of {len(plan.seeds)}" if result.failed else ""),
            result.mean.text() if result.mean else UNKNOWN,
            test.text() if test else "",
            style="bold" if test else None,
        )
    if len(ordered) > _MOST_ROWS:
        table.add_row("…")
    return table
