"""The picture of a sweep: validation errors against each swept setting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedproto_app.report.drawing import COLOURS, STYLE
from fedproto_app.sweep.axes import Axis, Range
from fedproto_app.sweep.plan import Plan
from fedproto_app.sweep.results import Mean, Result, measure_of, ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_PANELS = 12
_MOST_COLUMNS = 3
_MOST_LETTERS = 30  # of a value or a key


def draw(file: Path, plan: Plan, results: Sequence[Result], chosen: Collection[int]) -> None:
    """A panel for each setting; nothing where no trial has an error. chosen: trials by number."""
    known = [(one, one.mean) for one in ranked(results) if one.mean is not None]
    if not known:
        return
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**STYLE, "text.parse_math": False}):  # names are no formulas
        drawn = plan.axes[:_MOST_PANELS]
        columns = min(_MOST_COLUMNS, len(drawn))
        rows = -(-len(drawn) // columns)
        figure = Figure(figsize=(4.2 * columns + 0.6, 3.4 * rows + 0.6), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for panel in panels.flat[len(drawn) :]:
            panel.set_visible(False)
        for axis, panel in zip(drawn, panels.flat, strict=False):
            _panel(panel, axis, known, chosen)
        for panel in panels[:, 0]:
            panel.set_ylabel(measure_of(known[0][0]).round_validation)
        panels[0, 0].legend()
        figure.suptitle("validation error, mean ± standard error over seeds", fontsize=12)
        figure.savefig(file)


def _panel(
    panel: Axes, axis: Axis, known: Sequence[tuple[Result, Mean]], chosen: Collection[int]
) -> None:
    values = [result.trial.changes[axis.key] for result, _ in known]
    numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
    names = list(dict.fromkeys(str(value)[:_MOST_LETTERS] for value in values))
    places = values if numeric else [names.index(str(value)[:_MOST_LETTERS]) for value in values]
    for is_choice, label in ((False, "trials"), (True, "choice")):
        points = [
            (place, mean.mean, mean.error or 0.0)
            for place, (result, mean) in zip(places, known, strict=True)
            if (result.trial.number in chosen) == is_choice
        ]
        if points:
            x, y, error = zip(*points, strict=True)
            panel.errorbar(
                *(x, y, error),
                fmt="D" if is_choice else "o",
                color=COLOURS[is_choice],
                markersize=7 if is_choice else 5,
                label=label,
            )
    if not numeric:
        panel.set_xticks(range(len(names)), names)
    elif isinstance(axis, Range) and axis.log:
        panel.set_xscale("log")
    panel.set_xlabel(axis.key[-_MOST_LETTERS:])
