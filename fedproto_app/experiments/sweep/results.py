"""What came of a sweep's trials, and which one to choose: by validation error alone.

Test errors are read of the chosen trial, when it is chosen, and of no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev

from fedproto_app.experiments.sweep.plan import Trial
from fedproto_app.report.runs import read_clients
from fedproto_app.report.task_report import Measure, report_for
from fedproto_app.report.validation import validation_error

Question = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Mean:
    """Mean over seeds, and its standard error: the sample standard deviation over √n; None of one
    seed."""

    mean: float
    error: float | None

    def text(self) -> str:
        return f"{self.mean:.4g}" + ("" if self.error is None else f" ± {self.error:.2g}")


def mean_of(values: Sequence[float]) -> Mean:
    """Of one value a seed, at least one."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(fmean(values), error)


@dataclass(frozen=True)
class Result:
    """What is known of a trial.

    task: of its runs. question: trials of different ones have different data, so their errors
    cannot be compared. folders: of the finished runs, by seed. validation: their validation errors,
    means over clients (report/validation.py), by seed. medians: over clients of the models that
    they end with, by seed. clients: that have an error, the fewest of any seed. failed: why runs
    have no result, by seed.
    """

    trial: Trial
    task: str
    question: Question
    folders: Mapping[int, Path]
    validation: Mapping[int, float]
    medians: Mapping[int, float]
    clients: int
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return bool(self.validation) and not self.failed

    @property
    def mean(self) -> Mean | None:
        return mean_of(list(self.validation.values())) if self.validation else None

    @property
    def median(self) -> Mean | None:
        """Of the clients' medians."""
        return mean_of(list(self.medians.values())) if self.medians else None

    @property
    def place(self) -> tuple[bool, int, float, int]:
        """For sorting, the best first: all runs done; no client left without an error; the lowest
        validation error; the first of equal ones."""
        mean = self.mean.mean if self.mean else math.inf
        return not self.complete, -self.clients, mean, self.trial.number


def result_of(
    trial: Trial, task: str, folders: Mapping[int, Path], failed: Mapping[int, str]
) -> Result:
    """Read the validation errors of a trial's finished runs. folders: by seed."""
    measure = report_for(task).measure
    validation, medians, counts, lacking = {}, {}, [], dict(failed)
    for seed, folder in folders.items():
        errors = client_column(folder, measure.validation)
        if errors:
            validation[seed] = validation_error(folder, errors, measure)
            medians[seed] = median(errors)
            counts.append(len(errors))
        else:
            lacking[seed] = "no client has a validation error"
    return Result(
        trial=trial,
        task=task,
        question=_question(trial, task),
        folders=folders,
        validation=validation,
        medians=medians,
        clients=min(counts, default=0),
        failed=lacking,
    )


def ranked(results: Sequence[Result]) -> list[Result]:
    """Those of one question side by side, in the order of their first trials; each the best
    first."""
    questions = list(dict.fromkeys(result.question for result in results))
    return sorted(results, key=lambda one: (questions.index(one.question), *one.place))


def choices(results: Sequence[Result]) -> list[Result]:
    """The best trial of each question, of those whose runs are all done."""
    best: dict[Question, Result] = {}
    for result in ranked(results):
        if result.complete:
            best.setdefault(result.question, result)
    return list(best.values())


def reported_of(choice: Result) -> Mean:
    """The test figure of the models that the chosen trial's clients end with."""
    column = report_for(choice.task).measure.kept
    figures = [client_column(folder, column) for folder in choice.folders.values()]
    return mean_of([fmean(values) if values else math.nan for values in figures])


def measure_of(result: Result) -> Measure:
    return report_for(result.task).measure


def client_column(folder: Path, column: str) -> list[float]:
    """The finite numbers in a column of the run's clients.csv."""
    cells = [float(row[column] or "nan") for row in read_clients(folder)]
    return [value for value in cells if math.isfinite(value)]


def _question(trial: Trial, task: str) -> Question:
    """What the trial changes of the data, save what only models see of them."""
    errors = report_for(task).client_errors
    inputs = errors.inputs if errors else ()
    return (
        ("task", task),
        *(
            (key, repr(value))
            for key, value in trial.changes.items()
            if key.startswith("data.") and key.removeprefix("data.") not in inputs
        ),
    )
