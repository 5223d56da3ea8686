"""The charts of a sweep: validation errors against each swept setting.

As papers show it: where the values of a number were tried with everything else as in the choice, a
line for each error, with its standard error over seeds, and the chosen value marked. Trials that
differ from the choice in more are dots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import log
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from fedproto_app.core import charts
from fedproto_app.experiments.sweep.axes import Axis, Range
from fedproto_app.experiments.sweep.plan import Plan
from fedproto_app.experiments.sweep.results import Mean, Result, choices, measure_of, ranked

_MOST_CHARTS = 12
_MOST_LETTERS = 30  # of a value or a key
_MOST_TICKS = 8  # that stand at the values themselves
_FEWEST_FOR_A_LOGARITHM = 3


def sweep_charts(
    plan: Plan, results: Sequence[Result], chosen: Collection[int]
) -> list[charts.Lines]:
    """Return a chart for each setting; [] where no trial has an error. chosen: trials by number."""
    evaluated = [result for result in ranked(results) if result.mean is not None]
    if not evaluated:
        return []
    means = [
        mean for result in evaluated for mean in (result.mean, result.median) if mean is not None
    ]
    low = min(mean.mean - (mean.error or 0.0) for mean in means)
    high = max(mean.mean + (mean.error or 0.0) for mean in means)
    room = 0.05 * (high - low or 1.0)
    y = charts.Axis(measure_of(evaluated[0]).round_validation, limits=(low - room, high + room))
    return [_chart(axis, y, evaluated, chosen) for axis in plan.axes[:_MOST_CHARTS]]


def through_choice(axis: Axis, results: Sequence[Result]) -> list[Result]:
    """The trials that differ from the first choice in this setting alone, by its value, the choice
    among them; none without a choice. results: `ranked`."""
    best = next(iter(choices(results)), None)
    if best is None:
        return []
    other_settings = _other_settings(axis, best.trial.changes)
    alike = [
        result
        for result in results
        if _other_settings(axis, result.trial.changes) == other_settings
    ]
    return sorted(alike, key=lambda result: result.trial.changes[axis.key])


def is_geometric(values: Collection[float]) -> bool:
    """Whether the values, three or more above 0, are more evenly spaced in their logarithms."""
    if len(set(values)) < _FEWEST_FOR_A_LOGARITHM or min(values) <= 0:
        return False
    ordered = sorted(set(values))
    return _unevenness([log(value) for value in ordered]) < _unevenness(ordered)


def _unevenness(ordered: Sequence[float]) -> float:
    gaps = [after - before for before, after in pairwise(ordered)]
    return pstdev(gaps) / fmean(gaps)


def _other_settings(axis: Axis, changes: Mapping[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in changes.items() if key != axis.key}


def _chart(
    axis: Axis, y_axis: charts.Axis, evaluated: Sequence[Result], chosen: Collection[int]
) -> charts.Lines:
    """y_axis: the same for all settings."""
    values = [result.trial.changes[axis.key] for result in evaluated]
    numeric = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    names = list(dict.fromkeys(str(value)[:_MOST_LETTERS] for value in values))

    def line(
        label: str, look: int | None, trials: Sequence[Result], means: Sequence[Mean | None],
        joined: bool = False,
    ) -> charts.Line:  # fmt: skip
        pairs = [
            (result.trial.changes[axis.key], mean)
            for result, mean in zip(trials, means, strict=True)
            if mean is not None
        ]
        places = [
            float(value) if numeric else names.index(str(value)[:_MOST_LETTERS])
            for value, _ in pairs
        ]
        y, error = ([mean.mean for _, mean in pairs], [mean.error or 0.0 for _, mean in pairs])
        return charts.Line(
            label, np.array(places, float), np.array(y), look, error=np.array(error), joined=joined
        )

    through = through_choice(axis, evaluated) if numeric else []
    through = through if len(through) > 1 else []
    choice = [result for result in evaluated if result.trial.number in chosen]
    aside = [result for result in evaluated if result not in through and result not in choice]
    lines = [
        line("other trials", None, aside, [result.mean for result in aside]),
        line(
            "mean over clients, which chooses",
            0,
            through,
            [result.mean for result in through],
            True,
        ),
        line("median client, kept models", 2, through, [result.median for result in through], True),
        line("choice", 1, choice, [result.mean for result in choice]),
    ]
    x = charts.Axis(names=names)
    if numeric:
        has_ticks = not isinstance(axis, Range) and len(set(values)) <= _MOST_TICKS
        x = charts.Axis(
            log=bool(axis.log) if isinstance(axis, Range) else is_geometric(values),
            ticks=sorted(set(values)) if has_ticks else (),
        )
    return charts.Lines(
        axis.key[-_MOST_LETTERS:],
        f"Validation error against {axis.key}, mean ± standard error over seeds.",
        x, y_axis, [drawn for drawn in lines if len(drawn.x)],
    )  # fmt: skip
