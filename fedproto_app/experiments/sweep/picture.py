"""The picture of a sweep: validation errors against each swept setting.

Where the values of a number were tried with everything else as in the choice, they are joined by a
line for each error, with its standard error over seeds. All other trials are dots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution

from fedproto_app.experiments.sweep.plan import Axis, Plan
from fedproto_app.experiments.sweep.results import Mean, Result, choices, ranked
from fedproto_app.report.drawing import COLOURS, DASHES, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_PANELS = 12
_MOST_COLUMNS = 3
_MOST_LETTERS = 30  # of a value or a key
_MOST_TICKS = 8  # that stand at the values themselves
_FEWEST_FOR_A_LOGARITHM = 3
_LINES = ("mean over clients, which chooses", "median client, kept models")


def draw(file: Path, plan: Plan, results: Sequence[Result], chosen: Collection[int]) -> None:
    """A panel for each setting; nothing where no trial has an error. chosen: trials by number."""
    complete = [result for result in ranked(results) if result.mean is not None]
    if not complete:
        return
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**STYLE, "text.parse_math": False}):  # names are no formulas
        axes = list(plan.space.items())[:_MOST_PANELS]
        columns = min(_MOST_COLUMNS, len(axes))
        rows = -(-len(axes) // columns)
        figure = Figure(figsize=(4.2 * columns + 0.6, 3.4 * rows + 1.1), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for panel in panels.flat[len(axes) :]:
            panel.set_visible(False)
        legend: dict[str, Any] = {}
        for (key, axis), panel in zip(axes, panels.flat, strict=False):
            _draw_panel(panel, key, axis, complete, chosen)
            handles, labels = panel.get_legend_handles_labels()
            legend |= dict(zip(labels, handles, strict=True))
        for panel in panels[:, 0]:
            panel.set_ylabel(complete[0].measure.round_validation)
        figure.suptitle("validation error, mean ± standard error over seeds", fontsize=12)
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=min(columns, 2)
        )
        figure.savefig(file)


def through_choice(key: str, results: Sequence[Result]) -> list[Result]:
    """The trials that differ from the first choice in this setting alone, by its value, the choice
    among them; none without a choice."""

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
    """Whether the values, three or more above 0, are more evenly spaced in their logarithms."""
    ordered = sorted(set(values))
    if len(ordered) < _FEWEST_FOR_A_LOGARITHM or ordered[0] <= 0:
        return False
    return _unevenness([log(value) for value in ordered]) < _unevenness(ordered)


def _unevenness(ordered: Sequence[float]) -> float:
    gaps = [after - before for before, after in pairwise(ordered)]
    return pstdev(gaps) / fmean(gaps)


def _draw_panel(
    panel: Axes, key: str, axis: Axis, complete: Sequence[Result], chosen: Collection[int]
) -> None:
    values = [result.trial.changes[key] for result in complete]
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    names = list(dict.fromkeys(str(value)[:_MOST_LETTERS] for value in values))

    def draw_errors(results: Sequence[Result], means: Sequence[Mean | None], **look: Any) -> None:
        values = [result.trial.changes[key] for result in results]
        x = values if numeric else [names.index(str(value)[:_MOST_LETTERS]) for value in values]
        y = [mean.mean for mean in means if mean]
        panel.errorbar(x, y, [mean.error or 0.0 for mean in means if mean], **look)

    line = through_choice(key, complete) if numeric else []
    joined = line if len(line) > 1 else []
    best = [result for result in complete if result.trial.number in chosen]
    if aside := [r for r in complete if r not in joined and r not in best]:
        means = [result.mean for result in aside]
        draw_errors(aside, means, fmt="o", color="0.65", markersize=5, label="other trials")
    for number, label in enumerate(_LINES if joined else ()):
        means = [result.median if number else result.mean for result in joined]
        look = {"color": COLOURS[2 * number], "linestyle": DASHES[number], "label": label}
        draw_errors(joined, means, marker="o", markersize=5, capsize=3, **look)
    for result in best:
        diamond = {"fmt": "D", "color": COLOURS[1], "markersize": 8, "zorder": 3}
        draw_errors([result], [result.mean], label="choice", **diamond)
    panel.set_xlabel(key[-_MOST_LETTERS:])
    if not numeric:
        panel.set_xticks(range(len(names)), names)
        panel.set_xlim(-0.5, len(names) - 0.5)
        return
    if is_geometric(values) if isinstance(axis, CategoricalDistribution) else axis.log:
        panel.set_xscale("log")
    ticks = sorted(set(values))
    if isinstance(axis, CategoricalDistribution) and len(ticks) <= _MOST_TICKS:
        panel.set_xticks(ticks, [f"{value:g}" for value in ticks])
        panel.minorticks_off()
