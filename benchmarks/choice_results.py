"""docs/results/choice.md: whether validation errors choose the method that then tests best.

    python -m benchmarks.choice_results                      # from the runs behind forecasting.md
    python -m benchmarks.choice_results --runs FOLDER

Trains nothing: it reads the runs of `benchmarks.results forecasting`. Each table compares many
methods. A rule chooses among the methods that share something, by validation errors and costs; then
test errors show how good the choice was. The package's rule was chosen for the reason that the page
gives, not because it is the best on these tables.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr

from benchmarks.pages import ROOT, Lines, provenance, table_texts, write_section
from benchmarks.parts import parser_of
from fedproto_app.report.comparison import (
    Rivals,
    alone_groups,
    client_errors,
    questions,
    share_better_off,
)
from fedproto_app.report.runs import Group, Run, find_runs, group_runs, read_rounds
from fedproto_app.report.taking_part import validation_error
from fedproto_app.report.task_report import report_for

PAGE = ROOT / "docs" / "results" / "choice.md"
MAKER = "benchmarks.choice_results"
RUNS = ROOT / "runs" / "results" / "forecasting"
_TRIED = "-choice-"  # runs among which systems.toml chose settings: no rows of a table
_SEED = re.compile(r"-s\d+$")

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A method on one table, means over its seeds.

    validation, test: errors [N] of the clients in the order of their names, of the models that
    they keep. best_round, best_round_test: mean over the clients of their errors in the run's best
    round. rounds: the most that a run had. values_sent: up and down. better: share of clients
    better off than alone.
    """

    name: str
    validation: Vector
    test: Vector
    best_round: float
    best_round_test: float
    rounds: int
    values_sent: float
    better: float


@dataclass(frozen=True)
class Answers:
    """The rows of one table: methods that share something, and methods that share nothing."""

    shared: Sequence[Row]
    alone: Sequence[Row]


Rule = Callable[[Sequence[Row]], Vector]  # the least is chosen


def by_mean(rows: Sequence[Row]) -> Vector:
    return np.array([row.validation.mean() for row in rows])


def by_best_round(rows: Sequence[Row]) -> Vector:
    return np.array([row.best_round for row in rows])


def by_median(rows: Sequence[Row]) -> Vector:
    return np.array([np.median(row.validation) for row in rows])


def by_rank(rows: Sequence[Row]) -> Vector:
    """Return the mean over clients of each method's rank by validation error."""
    ranks: Vector = rankdata(np.stack([row.validation for row in rows]), axis=0).mean(axis=1)
    return ranks


def cheapest_in_reach(rows: Sequence[Row]) -> Vector:
    """Prefer few values sent among methods within a standard error of the lowest error."""
    validation = np.stack([row.validation for row in rows])
    differences = validation - validation[validation.mean(axis=1).argmin()]
    error = differences.std(axis=1, ddof=1) / np.sqrt(validation.shape[1])
    values_sent = np.array([row.values_sent for row in rows])
    reach = differences.mean(axis=1) <= error
    return np.where(reach, values_sent, values_sent.max() + 1 + validation.mean(axis=1))


RULES: dict[str, Rule] = {
    "mean over clients of the kept models": by_mean,
    "median over clients of the kept models": by_median,
    "mean rank over clients of the kept models": by_rank,
    "cheapest within one standard error of the first": cheapest_in_reach,
    "**mean over clients of the best round**": by_best_round,
}


def tables(runs: Iterable[Run]) -> dict[str, Answers]:
    """Return the answers by the name of their table."""
    groups, _ = group_runs(runs)
    metrics = report_for(groups[0].task).metrics
    answers = {}
    for question in questions(groups):
        alone = alone_groups(question.groups)
        best = Rivals(alone, metrics)
        name = _common([run.folder.name for group in question.groups for run in group.runs])
        answers[name] = Answers(
            *(
                _rows(name, [group for group in question.groups if (group in alone) == apart], best)
                for apart in (False, True)
            )
        )
    return dict(sorted(answers.items()))


def _common(names: Sequence[str]) -> str:
    """Return the words that all names begin with."""
    words = zip(*(name.split("-") for name in names), strict=False)
    return "-".join(
        words_at[0] for words_at in takewhile(lambda words_at: len(set(words_at)) == 1, words)
    )


def _rows(table: str, groups: Sequence[Group], best: Rivals) -> list[Row]:
    of_row: dict[str, list[Run]] = defaultdict(list)
    for run in (run for group in groups for run in group.runs):
        of_row[_SEED.sub("", run.folder.name).removeprefix(f"{table}-")].append(run)
    return [_row(name, of_seeds, best) for name, of_seeds in sorted(of_row.items())]


def _row(name: str, runs: Sequence[Run], best: Rivals) -> Row:
    metrics = report_for(runs[0].task).metrics
    errors = [client_errors(run, metrics, metrics.kept) for run in runs]
    clients = sorted(set.intersection(*map(set, errors)))
    validation, test = (
        np.array([[getattr(of_run[client], part) for client in clients] for of_run in errors])
        for part in ("validation", "test")
    )
    judged = [
        validation_error(run.folder, list(client), metrics)
        for run, client in zip(runs, validation, strict=True)
    ]
    best_rounds = [_best_round(run, metrics.validation.round.name) for run in runs]
    shares = [
        share_better_off(client_errors(run, metrics), best.errors(run)) or 0.0 for run in runs
    ]
    return Row(
        name=name,
        validation=validation.mean(axis=0),
        test=test.mean(axis=0),
        best_round=float(np.mean(judged)),
        best_round_test=float(np.mean([client["test_mse"] for client in best_rounds])),
        rounds=max(run.summary["rounds"] for run in runs),
        values_sent=float(
            np.mean([run.summary["parameters_up"] + run.summary["parameters_down"] for run in runs])
        ),
        better=float(np.mean(shares)),
    )


def _best_round(run: Run, figure: str) -> Mapping[str, float]:
    evaluated = [line for line in read_rounds(run.folder) if line[figure] is not None]
    return min(evaluated, key=lambda line: float(line[figure]))


def flattery(by_table: Mapping[str, Answers]) -> Lines:
    """Compare the kept models' errors with the best round's, by table."""
    lines: list[Sequence[str]] = [
        ("table", "methods with rounds", "validation error", "test error")
    ]
    for table, answers in by_table.items():
        rows = [row for row in (*answers.shared, *answers.alone) if row.rounds > 1]
        if rows:
            validation = [row.validation.mean() / row.best_round - 1 for row in rows]
            test = [row.test.mean() / row.best_round_test - 1 for row in rows]
            lines.append((table, str(len(rows)), _span(validation), _span(test)))
    return lines


def _span(changes: Sequence[float]) -> str:
    low, middle, high = np.quantile(changes, [0, 0.5, 1])
    if len(changes) == 1:
        return f"{middle:+.1%}"
    return f"{middle:+.1%} ({low:+.1%} … {high:+.1%})"


def choices(by_table: Mapping[str, Answers]) -> Lines:
    """Return what kept models and best rounds choose on each table."""
    lines: list[Sequence[str]] = [
        ("table", "methods", "tests best", "chosen by kept models", "by the best round")
    ]
    for table, rows in ((name, answers.shared) for name, answers in by_table.items()):
        least = min(row.test.mean() for row in rows)
        best = min(rows, key=lambda row: float(row.test.mean()))
        cells = [f"{best.name}, {best.better:.0%}"]
        for rule in (by_mean, by_best_round):
            row = rows[int(rule(rows).argmin())]
            cells.append(f"{row.name}, {row.better:.0%}, {row.test.mean() / least - 1:+.1%}")
        lines.append((table, str(len(rows)), *cells))
    return lines


def rules(by_table: Mapping[str, Answers]) -> Lines:
    """Return how each rule does over all tables."""
    lines: list[Sequence[str]] = [
        ("rule", "chosen tests best", "excess, mean", "excess, worst", "rank correlation")
    ]
    for name, rule in RULES.items():
        excess, correlations = [], []
        for rows in (answers.shared for answers in by_table.values()):
            test, promise = np.array([row.test.mean() for row in rows]), rule(rows)
            excess.append(test[promise.argmin()] / test.min() - 1)
            correlations.append(spearmanr(promise, test).statistic)
        first = f"{sum(value == 0 for value in excess)} of {len(excess)}"
        figures = (f"{np.mean(excess):.1%}", f"{max(excess):.1%}", f"{np.mean(correlations):.2f}")
        lines.append((name, first, *figures))
    return lines


def rivals(by_table: Mapping[str, Answers]) -> Lines:
    """Return what a client has alone, if it chooses itself and if all choose together."""
    lines: list[Sequence[str]] = [
        ("table", "each by its own", "one for all", "better off than these", "the best there is")
    ]
    for table, answers in by_table.items():
        validation, test = (
            np.stack([getattr(row, part) for row in answers.alone])
            for part in ("validation", "test")
        )
        by_client = test[validation.argmin(axis=0), np.arange(validation.shape[1])]
        common = test[by_best_round(answers.alone).argmin()]
        chosen = answers.shared[int(by_best_round(answers.shared).argmin())]
        better = " and ".join(
            f"{(chosen.test < rival).mean():.0%}" for rival in (by_client, common)
        )
        errors = (f"{errors.mean():.4f}" for errors in (by_client, common, test.min(axis=0)))
        first, second, oracle = errors
        lines.append((table, first, second, better, oracle))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS)
    options = parser.parse_args(arguments)
    runs = [run for run in find_runs([options.runs])[0] if _TRIED not in run.folder.name]
    by_table = tables(runs)
    for name, lines in (
        ("flattery", flattery),
        ("choices", choices),
        ("rules", rules),
        ("rivals", rivals),
    ):
        write_section(PAGE, name, MAKER, ["", *table_texts(lines(by_table), texts=None), ""])
    summary = provenance([run.folder for run in runs])
    days = " to ".join(sorted({min(summary.dates), max(summary.dates)}))
    note = "; ".join([days, *sorted(summary.machines)])
    write_section(PAGE, "made", MAKER, ["", f"{len(runs)} runs, {note}.", ""])


if __name__ == "__main__":
    main()
