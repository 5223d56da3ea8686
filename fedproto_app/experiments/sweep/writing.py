"""A sweep's results as files and as a table: ``sweep.csv``, ``sweep.json``, ``sweep.png``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedproto_app.core.whole_file import write_whole
from fedproto_app.experiments.sweep.picture import sweep_charts
from fedproto_app.experiments.sweep.plan import Plan
from fedproto_app.experiments.sweep.results import Mean, Result, measure_of, ranked, reported_of
from fedproto_app.report.csv_text import csv_text
from fedproto_app.report.pictures import write_picture
from fedproto_app.report.task_report import UNKNOWN

_MOST_ROWS = 30  # on a screen


def write_results(
    folder: Path, plan: Plan, results: Sequence[Result], chosen: Sequence[Result]
) -> dict[int, Mean]:
    """Write the three files; returns the test figures of the chosen trials, by number."""
    tests = {one.trial.number: reported_of(one) for one in chosen}
    write_whole(folder / "sweep.csv", csv_text(_rows(plan, results, tests)).encode())
    text = json.dumps(_table(plan, results, tests), indent=2, default=str)
    write_whole(folder / "sweep.json", (text + "\n").encode())
    if charts := sweep_charts(plan, results, tests):
        write_picture(folder / "sweep.png", charts, "mean ± standard error over seeds")
    return tests


def results_table(plan: Plan, results: Sequence[Result], tests: Mapping[int, Mean]) -> Table:
    """For a terminal: the best first, by validation error; the test figure of the choice alone."""
    measure = measure_of(results[0])
    table = Table(
        box=SIMPLE_HEAD,
        padding=0,
        caption=f"{measure.round_validation}: mean over clients, mean ± standard error over seeds; "
        f"{measure.kept}, of test data, of the choice alone",
        caption_justify="left",
    )
    for name in ("trial", *plan.keys, "seeds", measure.round_validation, measure.kept):
        table.add_column(escape(name), justify="right", overflow="fold")
    ordered = ranked(results)
    for result in ordered[:_MOST_ROWS]:
        test = tests.get(result.trial.number)
        told = result.mean.text() if result.mean else UNKNOWN
        table.add_row(
            str(result.trial.number),
            *(escape(str(result.trial.changes[key])) for key in plan.keys),
            f"{len(result.validation)}" + (f" of {len(plan.seeds)}" if result.failed else ""),
            told,
            test.text() if test else "",
            style="bold" if test else None,
        )
    if len(ordered) > _MOST_ROWS:
        table.add_row("…")
    return table


def _rows(
    plan: Plan, results: Sequence[Result], tests: Mapping[int, Mean]
) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = [
        (
            *("trial", *plan.keys, "seeds", "failed", "clients"),
            *("validation", "validation_se", "validation_median", "validation_median_se"),
            *("chosen", "test", "test_se"),
        )
    ]
    for result in ranked(results):
        test = tests.get(result.trial.number)
        rows.append(
            (
                result.trial.number,
                *(result.trial.changes[key] for key in plan.keys),
                len(result.validation),
                len(result.failed),
                result.clients,
                *_cells(result.mean),
                *_cells(result.median),
                "yes" if test else "",
                *_cells(test),
            )
        )
    return rows


def _cells(mean: Mean | None) -> tuple[float | None, float | None]:
    return (mean.mean, mean.error) if mean else (None, None)


def _table(plan: Plan, results: Sequence[Result], tests: Mapping[int, Mean]) -> dict[str, Any]:
    trials = []
    for result in ranked(results):
        mean, measure = result.mean, measure_of(result)
        test = tests.get(result.trial.number)
        trials.append(
            {
                "trial": result.trial.number,
                "settings": dict(result.trial.changes),
                "runs": {str(seed): folder.name for seed, folder in result.folders.items()},
                "failed": {str(seed): reason for seed, reason in result.failed.items()},
                "clients": result.clients,
                "validation": {
                    "figure": measure.round_validation,
                    "mean": mean.mean if mean else None,
                    "standard_error": mean.error if mean else None,
                    "by_seed": {str(seed): error for seed, error in result.validation.items()},
                },
                "chosen": test is not None,
            }
            | (
                {"test": {"figure": measure.kept, "mean": test.mean, "standard_error": test.error}}
                if test
                else {}
            )
        )
    return {"plan": plan.table(), "trials": trials}
