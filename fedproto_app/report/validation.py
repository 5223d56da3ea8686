"""The validation error that compares runs when one of them is chosen.

With ``keep = "best-validation"`` every client ends with the model of its round with the
lowest validation error. That error is optimistic, more so with many rounds and a short
validation part; for a method with one round it is not optimistic at all. A run is therefore judged
by its best round: the lowest mean over all clients in any single round, which is one choice per run
instead of one per client. docs/results/choice.md shows the effect.

A run is never judged better than the models that its clients end with, because some clients may
have been missing in early rounds. The result is the larger of the two numbers, whatever the run
kept; it is also right for runs whose clients end with the last round's models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isfinite
from pathlib import Path
from statistics import fmean

from fedproto_app.report.runs import read_rounds
from fedproto_app.tasks.metrics import TaskMetrics


def validation_error(folder: Path, kept_errors: Sequence[float], metrics: TaskMetrics) -> float:
    """Return the validation error of the run in this folder.

    kept_errors: the validation errors of the models that its clients end with, at least one.
    """
    field = metrics.validation.round.name
    return judged(kept_errors, (line.get(field) for line in read_rounds(folder)))


def judged(kept_errors: Sequence[float], rounds: Iterable[float | None]) -> float:
    """Return the lowest mean of the rounds, but at least the mean of the kept models' errors.

    rounds: the mean of each round, None for a round without evaluation.
    """
    means = [mean for mean in rounds if mean is not None and isfinite(mean)]
    return max(fmean(kept_errors), min(means, default=-inf))
