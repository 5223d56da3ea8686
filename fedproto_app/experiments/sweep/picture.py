"""The picture of a sweep: validation errors against each swept setting.

As papers show it: where the values of a number were tried with everything else as in the choice, a
line for each error, with its standard error over seeds, and the chosen value marked. Trials that
differ from the choice in more are dots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from fedproto_app.experiments.sweep.axes import Axis, Range
from fedproto_app.experiments.sweep.plan import Plan
from fedproto_app.experiments.sweep.results import Mean, Result, choices, measure_of, ranked
from fedproto_app.report.drawing import COLOURS, DASHES, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_PANELS = 12
_MOST_COLUMNS = 3
_MOST_LETTERS = 30  # of a value or a key
_MOST_TICKS = 8  # that stand at the values themselves
_FEWEST_FOR_A_LOGARITHM = 3
_LINES = ("mean over clients, which chooses", "median client, kept models")
_ASIDE = "0.65"  # grey of trials that no line joins


def draw(file: Path, plan: Plan, results: Sequence[Result], chosen: Collection[int]) -> None:
    """A panel for each setting; nothing where no trial has an error. chosen: trials by number."""
    known = [one for one in ranked(results) if one.mean is not None]
    if not known:
        return
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**STYLE, "text.parse_math": False}):  # names are no formulas
        drawn = plan.axes[:_MOST_PANELS]
        columns = min(_MOST_COLUMNS, len(drawn))
        rows = -(-len(drawn) // columns)
        figure = Figure(figsize=(4.2 * columns + 0.6, 3.4 * rows + 1.1), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for panel in panels.flat[len(drawn) :]:
            panel.set_visible(False)
        legend: dict[str, Any] = {}
        for axis, panel in zip(drawn, panels.flat, strict=False):
            _panel(panel, axis, known, chosen)
            handles, labels = panel.get_legend_handles_labels()
            legend |= dict(zip(labels, handles, strict=True))
        for panel in panels[:, 0]:
            panel.set_ylabel(measure_of(known[0]).round_validation)
        figure.suptitle("validation error, mean ± standard error over seeds", fontsize=12)
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=min(columns, 2)
        )
        figure.savefig(file)


def through_choice(axis: Axis, results: Sequence[Result]) -> list[Result]:
    """The trials that differ from the first choice in this setting alone, by its value, the choice
    among them; none without a choice. results: `ranked`."""
    best = next(iter(choices(results)), None)
    if best is None:
        return []
    rest = _others(axis, best.trial.changes)
    alike = [one for one in results if _others(axis, one.trial.changes) == rest]
    return sorted(alike, key=lambda one: one.trial.changes[axis.key])


def is_geometric(values: Collection[float]) -> bool:
    """Whether the values, three or more above 0, are more evenly spaced in their logarithms."""
    if len(set(values)) < _FEWEST_FOR_A_LOGARITHM or min(values) <= 0:
        return False
    ordered = sorted(set(values))
    return _unevenness([log(one) for one in ordered]) < _unevenness(ordered)


def _unevenness(ordered: Sequence[float]) -> float:
    gaps = [after - before for before, after in pairwise(ordered)]
    return pstdev(gaps) / fmean(gaps)


def _others(axis: Axis, changes: Mapping[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in changes.items() if key != axis.key}


def _panel(panel: Axes, axis: Axis, known: Sequence[Result], chosen: Collection[int]) -> None:
    values = [result.trial.changes[axis.key] for result in known]
    numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
    names = list(dict.fromkeys(str(value)[:_MOST_LETTERS] for value in values))

    def place(result: Result) -> float:
        value = result.trial.changes[axis.key]
        return float(value) if numeric else float(names.index(str(value)[:_MOST_LETTERS]))

    line = through_choice(axis, known) if numeric else []
    joined = line if len(line) > 1 else []
    aside = [one for one in known if one not in joined and one.trial.number not in chosen]
    _dots(panel, [(place(one), one.mean) for one in aside])
    for number, label in enumerate(_LINES if joined else ()):
        means = [one.median if number else one.mean for one in joined]
        panel.errorbar(
            [place(one) for one in joined],
            [mean.mean for mean in means if mean],
            [mean.error or 0.0 for mean in means if mean],
            color=COLOURS[2 * number],
            linestyle=DASHES[number],
            marker="o",
            markersize=5,
            capsize=3,
            label=label,
        )
    for one in known:
        if one.trial.number in chosen and one.mean is not None:
            panel.axvline(place(one), color=COLOURS[1], linestyle=":", linewidth=1.2)
            panel.errorbar(
                *(place(one), one.mean.mean, one.mean.error or 0.0),
                fmt="D",
                color=COLOURS[1],
                markersize=8,
                label="choice",
                zorder=3,
            )
    if not numeric:
        panel.set_xticks(range(len(names)), names)
        panel.set_xlim(-0.5, len(names) - 0.5)
    else:
        _scale(panel, axis, values)
    panel.set_xlabel(axis.key[-_MOST_LETTERS:])


def _dots(panel: Axes, points: Sequence[tuple[float, Mean | None]]) -> None:
    shown = [(place, mean.mean, mean.error or 0.0) for place, mean in points if mean]
    if shown:
        x, y, error = zip(*shown, strict=True)
        panel.errorbar(x, y, error, fmt="o", color=_ASIDE, markersize=5, label="other trials")


def _scale(panel: Axes, axis: Axis, values: Sequence[float]) -> None:
    """Logarithms where the values were chosen so; ticks at the values where there are few."""
    if axis.log if isinstance(axis, Range) else is_geometric(values):
        panel.set_xscale("log")
    ticks = sorted(set(values))
    if not isinstance(axis, Range) and len(ticks) <= _MOST_TICKS:
        panel.set_xticks(ticks, [f"{value:g}" for value in ticks])
        panel.minorticks_off()
