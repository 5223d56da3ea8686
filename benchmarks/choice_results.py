"""docs/results/choice.md: whether validation errors choose the method that then tests best.

    python -m benchmarks.choice_results                      # from the runs of forecasting_results
    python -m benchmarks.choice_results --runs FOLDER

Trains nothing: it reads what `benchmarks.forecasting_results` left. Each of its tables is one
question that many methods answered. A rule chooses among those that share something, by validation
errors and costs; then test errors tell how good the choice was. The rule of the package was chosen
for its reason, which the page tells, not because it is the best of these on these tables.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr

from benchmarks.page_tables import Lines
from benchmarks.result_runs import ROOT, made_line, write_section
from fedproto_app.report.alone import Alone, client_errors, is_alone, share_better_off
from fedproto_app.report.pairs import asked_alike
from fedproto_app.report.runs import Group, Run, find_runs, group_runs, read_rounds
from fedproto_app.report.task_report import report_for
from fedproto_app.report.validation import validation_error

PAGE = ROOT / "docs" / "results" / "choice.md"
MAKER = "benchmarks.choice_results"
RUNS = ROOT / "runs" / "results" / "forecasting"
_TRIED = "-choice-"  # runs among which `systems_results` chose settings: no rows of a table
_SEED = re.compile(r"-s\d+$")

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A method on one table, means over its seeds.

    kept, test: errors [N] of the clients in the order of their names, of the models that they end
    with. best_round, best_round_test: mean over the clients of their errors in the run's best
    round. rounds: the most that a run had. sent: values up and down. better: share of clients
    better off than alone.
    """

    name: str
    kept: Vector
    test: Vector
    best_round: float
    best_round_test: float
    rounds: int
    sent: float
    better: float


@dataclass(frozen=True)
class Answers:
    """The rows of one table: methods that share something, and those that share nothing."""

    shared: Sequence[Row]
    alone: Sequence[Row]


Rule = Callable[[Sequence[Row]], Vector]  # the least is chosen


def by_mean(rows: Sequence[Row]) -> Vector:
    return np.array([row.kept.mean() for row in rows])


def by_best_round(rows: Sequence[Row]) -> Vector:
    return np.array([row.best_round for row in rows])


def by_median(rows: Sequence[Row]) -> Vector:
    return np.array([np.median(row.kept) for row in rows])


def by_rank(rows: Sequence[Row]) -> Vector:
    """The mean over clients of a method's rank by the client's validation error."""
    ranks: Vector = rankdata(np.stack([row.kept for row in rows]), axis=0).mean(axis=1)
    return ranks


def cheapest_in_reach(rows: Sequence[Row]) -> Vector:
    """The fewest values sent among those within a standard error, over clients, of the least."""
    kept = np.stack([row.kept for row in rows])
    differences = kept - kept[kept.mean(axis=1).argmin()]
    error = differences.std(axis=1, ddof=1) / np.sqrt(kept.shape[1])
    sent = np.array([row.sent for row in rows])
    reach = differences.mean(axis=1) <= error
    return np.where(reach, sent, sent.max() + 1 + kept.mean(axis=1))


RULES: dict[str, Rule] = {
    "mean over clients of the kept models": by_mean,
    "median over clients of the kept models": by_median,
    "mean rank over clients of the kept models": by_rank,
    "cheapest within one standard error of the first": cheapest_in_reach,
    "**mean over clients of the best round**": by_best_round,
}


def tables(runs: Iterable[Run]) -> dict[str, Answers]:
    """By the name of the table."""
    groups, _ = group_runs(runs)
    columns = report_for(groups[0].task).client_errors
    assert columns is not None
    found = {}
    for members in asked_alike(groups, columns):
        alone = [group for _, group in members if all(map(is_alone, group.runs))]
        best = Alone(alone, columns)
        name = _common([run.folder.name for _, group in members for run in group.runs])
        found[name] = Answers(
            *(
                _rows(name, [group for _, group in members if (group in alone) == apart], best)
                for apart in (False, True)
            )
        )
    return dict(sorted(found.items()))


def _common(names: Sequence[str]) -> str:
    """The words that all names begin with."""
    words = zip(*(name.split("-") for name in names), strict=False)
    return "-".join(one[0] for one in takewhile(lambda one: len(set(one)) == 1, words))


def _rows(table: str, groups: Sequence[Group], best: Alone) -> list[Row]:
    of_row: dict[str, list[Run]] = defaultdict(list)
    for run in (run for group in groups for run in group.runs):
        of_row[_SEED.sub("", run.folder.name).removeprefix(f"{table}-")].append(run)
    return [_row(name, of_seeds, best) for name, of_seeds in sorted(of_row.items())]


def _row(name: str, runs: Sequence[Run], best: Alone) -> Row:
    columns = report_for(runs[0].task).client_errors
    assert columns is not None
    errors = [client_errors(run, columns) for run in runs]
    clients = sorted(set.intersection(*map(set, errors)))
    kept, test = (
        np.array([[getattr(of_run[one], part) for one in clients] for of_run in errors])
        for part in ("validation", "test")
    )
    measure = report_for(runs[0].task).measure
    judged = [
        validation_error(run.folder, list(one), measure)
        for run, one in zip(runs, kept, strict=True)
    ]
    best_rounds = [_best_round(run, measure.round_validation) for run in runs]
    shares = [
        share_better_off(one, best.errors(run)) or 0.0
        for run, one in zip(runs, errors, strict=True)
    ]
    return Row(
        name=name,
        kept=kept.mean(axis=0),
        test=test.mean(axis=0),
        best_round=float(np.mean(judged)),
        best_round_test=float(np.mean([one["test_mse"] for one in best_rounds])),
        rounds=max(run.summary["rounds"] for run in runs),
        sent=float(
            np.mean([run.summary["parameters_up"] + run.summary["parameters_down"] for run in runs])
        ),
        better=float(np.mean(shares)),
    )


def _best_round(run: Run, figure: str) -> Mapping[str, float]:
    evaluated = [line for line in read_rounds(run.folder) if line[figure] is not None]
    return min(evaluated, key=lambda line: float(line[figure]))


def flattery(found: Mapping[str, Answers]) -> Lines:
    """How far below the best round's errors those of the kept models are, by table."""
    lines: list[Sequence[str]] = [
        ("table", "methods with rounds", "validation error", "test error")
    ]
    for table, answers in found.items():
        several = [row for row in (*answers.shared, *answers.alone) if row.rounds > 1]
        if several:
            validation = [row.kept.mean() / row.best_round - 1 for row in several]
            test = [row.test.mean() / row.best_round_test - 1 for row in several]
            lines.append((table, str(len(several)), _span(validation), _span(test)))
    return lines


def _span(changes: Sequence[float]) -> str:
    low, middle, high = np.quantile(changes, [0, 0.5, 1])
    if len(changes) == 1:
        return f"{middle:+.1%}"
    return f"{middle:+.1%} ({low:+.1%} … {high:+.1%})"


def choices(found: Mapping[str, Answers]) -> Lines:
    """What the kept models' errors and the best rounds' choose on each table."""
    lines: list[Sequence[str]] = [
        ("table", "methods", "tests best", "chosen by kept models", "by the best round")
    ]
    for table, rows in ((name, answers.shared) for name, answers in found.items()):
        least = min(row.test.mean() for row in rows)
        best = min(rows, key=lambda row: float(row.test.mean()))
        cells = [f"{best.name}, {best.better:.0%}"]
        for rule in (by_mean, by_best_round):
            row = rows[int(rule(rows).argmin())]
            cells.append(f"{row.name}, {row.better:.0%}, {row.test.mean() / least - 1:+.1%}")
        lines.append((table, str(len(rows)), *cells))
    return lines


def rules(found: Mapping[str, Answers]) -> Lines:
    """Each rule over all tables."""
    lines: list[Sequence[str]] = [
        ("rule", "chosen tests best", "excess, mean", "excess, worst", "rank correlation")
    ]
    for name, rule in RULES.items():
        excess, correlations = [], []
        for rows in (answers.shared for answers in found.values()):
            test, promise = np.array([row.test.mean() for row in rows]), rule(rows)
            excess.append(test[promise.argmin()] / test.min() - 1)
            correlations.append(spearmanr(promise, test).statistic)
        first = f"{sum(one == 0 for one in excess)} of {len(excess)}"
        figures = (f"{np.mean(excess):.1%}", f"{max(excess):.1%}", f"{np.mean(correlations):.2f}")
        lines.append((name, first, *figures))
    return lines


def rivals(found: Mapping[str, Answers]) -> Lines:
    """What a client has without the others, chosen by itself and by all together."""
    lines: list[Sequence[str]] = [
        ("table", "each by its own", "one for all", "better off than these", "the best there is")
    ]
    for table, answers in found.items():
        kept, test = (
            np.stack([getattr(row, part) for row in answers.alone]) for part in ("kept", "test")
        )
        own = test[kept.argmin(axis=0), np.arange(kept.shape[1])]
        one = test[by_best_round(answers.alone).argmin()]
        chosen = answers.shared[int(by_best_round(answers.shared).argmin())]
        better = " and ".join(f"{(chosen.test < rival).mean():.0%}" for rival in (own, one))
        errors = (f"{errors.mean():.4f}" for errors in (own, one, test.min(axis=0)))
        first, second, oracle = errors
        lines.append((table, first, second, better, oracle))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=RUNS)
    options = parser.parse_args(arguments)
    runs = [run for run in find_runs([options.runs])[0] if _TRIED not in run.folder.name]
    found = tables(runs)
    for name, lines in (
        ("flattery", flattery),
        ("choices", choices),
        ("rules", rules),
        ("rivals", rivals),
    ):
        write_section(PAGE, name, MAKER, ["", *_markdown(lines(found)), ""])
    made = made_line([run.folder for run in runs])
    write_section(PAGE, "made", MAKER, ["", f"{len(runs)} runs, {made}.", ""])


def _markdown(lines: Lines) -> list[str]:
    head, *rest = lines
    ruled = [head, ["---"] * len(head), *rest]
    return [f"| {' | '.join(line)} |" for line in ruled]


if __name__ == "__main__":
    main()
