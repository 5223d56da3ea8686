"""The charts of a sweep: validation errors against each swept setting.

Trials that differ from the choice only in this setting, a number, are joined by a line for each
error, with its standard error over seeds. All other trials are dots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import log
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution

from fedproto_app.core import charts
from fedproto_app.experiments.sweep.plan import Axis, Plan
from fedproto_app.experiments.sweep.results import Mean, Result, choices, ranked

_MOST_CHARTS = 12
_MOST_LETTERS = 30  # of a value or a key
_MOST_TICKS = 8  # at the values themselves
_FEWEST_FOR_A_LOGARITHM = 3


def sweep_charts(
    plan: Plan, results: Sequence[Result], chosen: Collection[int]
) -> list[charts.Lines]:
    """Return a chart for each setting, [] if no trial has an error. chosen: numbers of trials."""
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
    """Return the trials that differ from the first choice only in this setting, by its value.

    The choice is included; [] without a choice.
    """

    def other_settings(result: Result) -> str:
        return repr({name: v for name, v in result.trial.changes.items() if name != key})

    alike = [
        r
        for best in choices(results)[:1]
        for r in results
        if other_settings(r) == other_settings(best)
    ]
    return sorted(alike, key=lambda result: result.trial.changes[key])


def is_geometric(values: Collection[float]) -> bool:
    """Whether at least three positive values are more evenly spaced on a logarithmic scale."""
    ordered = sorted(set(values))
    if len(ordered) < _FEWEST_FOR_A_LOGARITHM or ordered[0] <= 0:
        return False
    return _unevenness([log(value) for value in ordered]) < _unevenness(ordered)


def _unevenness(ordered: Sequence[float]) -> float:
    gaps = [after - before for before, after in pairwise(ordered)]
    return pstdev(gaps) / fmean(gaps)


def _chart(
    key: str, axis: Axis, y: charts.Axis, complete: Sequence[Result], chosen: Collection[int]
) -> charts.Lines:
    """Return the chart of a setting. y: the axis that all settings share."""
    values: list[Any] = [result.trial.changes[key] for result in complete]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    names = list(dict.fromkeys(str(value)[:_MOST_LETTERS] for value in values))

    def place(result: Result) -> float:
        value = result.trial.changes[key]
        return float(value) if numeric else names.index(str(value)[:_MOST_LETTERS])

    def line(
        label: str,
        look: int | None,
        results: Sequence[Result],
        *,
        median: bool = False,
        joined: bool = False,
    ) -> charts.Line:
        errors = [(place(r), r.median if median else r.mean) for r in results]
        pairs: list[tuple[float, Mean]] = [(x, mean) for x, mean in errors if mean]
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
    best = [result for result in complete if result.trial.number in chosen]
    aside = [result for result in complete if result not in through and result not in best]
    lines = [
        line("other trials", None, aside),
        line("mean over clients, which chooses", 0, through, joined=True),
        line("median client, kept models", 2, through, median=True, joined=True),
        line("choice", 1, best),
    ]
    x = charts.Axis(names=names)
    if numeric:
        listed = isinstance(axis, CategoricalDistribution)
        ticks = sorted(set(values)) if listed and len(set(values)) <= _MOST_TICKS else ()
        logarithmic = (
            is_geometric(values) if isinstance(axis, CategoricalDistribution) else axis.log
        )
        x = charts.Axis(log=logarithmic, ticks=ticks)
    text = f"Validation error against {key}, mean ± standard error over seeds."
    return charts.Lines(
        key[-_MOST_LETTERS:], text, x, y, [drawn for drawn in lines if len(drawn.x)]
    )
