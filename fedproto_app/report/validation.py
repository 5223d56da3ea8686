"""By which validation error runs are compared, where one of them is chosen.

With ``keep = "best-validation"`` every client ends with the model of the round in which its own
validation error was lowest. That error flatters the model that it chose, the more the more rounds
there were and the shorter the validation part is; a method with one round is not flattered at all.
So a run counts by its best round instead: the lowest mean over all clients that any one round had,
which is one choice a run and not one a client. docs/results/choice.md has what this changes.

A run whose clients end with the last round's models counts by these, and no run counts by less
than the models that its clients end with: in early rounds some clients may have been missing.
Thus it is the greater one of two numbers, whatever the run kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isfinite
from pathlib import Path
from statistics import fmean

from fedproto_app.report.runs import read_rounds
from fedproto_app.report.task_report import Measure


def validation_error(folder: Path, kept: Sequence[float], measure: Measure) -> float:
    """Of the run there; kept: its clients' validation errors of the models that they end with, at
    least one."""
    return judged(kept, (line.get(measure.round_validation) for line in read_rounds(folder)))


def judged(kept: Sequence[float], rounds: Iterable[float | None]) -> float:
    """The lowest of the rounds' means, but at least the mean of what is kept. rounds: None where
    one was not evaluated."""
    means = [mean for mean in rounds if mean is not None and isfinite(mean)]
    return max(fmean(kept), min(means, default=-inf))
