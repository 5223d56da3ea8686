"""What is read of a client from Kindred's A and B, in the clear and in totals over several clients.

Clients of one city have similar days, so a total over the others resembles a client without telling
anything of it. The attacker therefore knows some clients outside the sum, and figures are
correlations of the values read with the truth, each less the mean of those clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.leakage.attackers import Vectors
from benchmarks.leakage.days import (
    DAY,
    WEEK,
    by_phase,
    correlation,
    end_of_training,
    phases_of,
    series_from,
    share_ending,
    standardised,
)
from benchmarks.leakage.victims import Victims
from benchmarks.pages import table_texts
from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import lookback, make_windows
from fedproto_app.strategies.analytic.learner import AnalyticLearner
from fedproto_app.strategies.common.learner import new_cohort
from fedproto_app.strategies.kindred.learner import KindredLearner
from fedproto_app.tasks.forecasting.task import mean_day
from fedproto_app.trust.masks import fewest
from fedproto_app.trust.privacy_loss import privacy_plan

INSIDE = 15  # clients in sums; the attacker knows the others
SIZES = {  # clients in a sum
    "in the clear": 1,
    "3 nodes": 3,
    "5 nodes": 5,
    "11 nodes": 11,
    "5 nodes of 3 clients": 15,
}
# Noise protects no sums of Kindred, but it protects `analytic`'s, which have the same days.
NOISED, NODES, DRAWS = "5 nodes, noise", 5, 20
NOISE = {"aggregation.secure": True, "privacy.mechanism": "gaussian", "privacy.epsilon": 8.0}
SEARCH = 200  # steps of the search for a series
CALENDAR = {"data.calendar": "phase"}


class SumAttack(NamedTuple):
    """A row: the mean correlation over the clients in sums of each size, then that with noise."""

    says: str
    figures: list[float]


def sum_attacks(victims: Victims) -> list[SumAttack]:
    """Run all attacks."""
    in_order = load_series(victims.settings("kindred").data)  # neighbours resemble each other
    order = numpy_stream(0, "clients in sums").permutation(len(in_order))
    series = [in_order[number] for number in order]
    rows = {
        "the mean day": _mean_day(victims, series),
        "a day, by two runs of seven days and of eight": _difference(victims, series),
        "all values of a run with `history = 1`": _series(victims, series),
    }
    return [SumAttack(says, figures) for says, figures in rows.items()]


def sum_table(attacks: Sequence[SumAttack]) -> list[str]:
    """Return a row for each attack."""
    rows = [[row.says, *(f"{figure:.2f}" for figure in row.figures)] for row in attacks]
    heads = ["what is read", *SIZES, NOISED]
    return table_texts([heads, *([*row, *["-"] * (len(heads) - len(row))] for row in rows)])


def _sums(size: int) -> Iterator[slice]:
    """Yield the clients of each sum that is full."""
    return (slice(first, first + size) for first in range(0, INSIDE - size + 1, size))


def _figures(days: Vectors, truths: Vectors) -> list[float]:
    """Return the mean correlation for each size. days: [N, p] as read in the clear. A sum has the
    mean of its clients' days. truths: [N, p]."""
    outside = truths[INSIDE:].mean(axis=0)
    figures = []
    for size in SIZES.values():
        pairs = [(days[group].mean(axis=0), t) for group in _sums(size) for t in truths[group]]
        figures.append(_mean_correlation(pairs, outside))
    return figures


def _mean_correlation(pairs: Sequence[tuple[Vectors, Vectors]], outside: Vectors) -> float:
    """Return the mean correlation of values read and true, each less the outside mean."""
    return float(np.mean([correlation(read - outside, true - outside) for read, true in pairs]))


def _days_read(victims: Victims, series: Sequence[ClientSeries], **more: object) -> Vectors:
    """Return each client's mean target by phase from its A and B, [N, p]: the calendar's products
    with the newest value, and with the target less that."""
    learner = victims.learner("kindred", **CALENDAR, **more)
    assert isinstance(learner, KindredLearner)
    settings = learner.task.settings
    samples = learner.task.gather([make_windows(s, settings.data) for s in series], 1)
    gram, moment = learner.context(Guidance(), new_cohort(learner, {}, samples, 1)).means
    model = learner.model
    phases = slice(model.plain_width - DAY, model.plain_width)
    shares = gram[:, phases, phases].diagonal(dim1=1, dim2=2)
    totals = gram[:, model.newest, phases] + moment[:, phases, 0]
    return np.asarray((totals / shares.clamp(min=1e-9)).numpy())


def _mean_day(victims: Victims, series: Sequence[ClientSeries]) -> list[float]:
    settings = victims.settings("kindred", **CALENDAR)
    task = victims.learner("kindred", **CALENDAR).task
    samples = task.gather([make_windows(client, settings.data) for client in series], 1)
    truths = mean_day(samples).double().numpy()
    noised = _noised_sums(victims, series)
    return [*_figures(_days_read(victims, series), truths), _noised_figure(noised, truths)]


def _difference(victims: Victims, series: Sequence[ClientSeries]) -> list[float]:
    """Eight times a mean of eight days less seven times the mean of the later seven."""
    share = {"data.train-share": share_ending(0, victims, series[0])}
    later, longer = (
        _days_read(victims, series, **share, **{"data.history": days}) for days in (WEEK, WEEK + 1)
    )
    settings = victims.settings("kindred", **CALENDAR, **share)
    truths = []
    for client in series:
        first = end_of_training(client, settings) - DAY * (WEEK + 1)
        scale = make_windows(client, settings.data).scale
        truths.append(scale.standardised(by_phase(client, first, first + DAY)))
    figures = _figures((WEEK + 1) * longer - WEEK * later, np.stack(truths))
    noised = [
        _noised_sums(victims, series, **share, **{"data.history": days})
        for days in (WEEK + 1, WEEK)
    ]
    return [*figures, _noised_figure(noised[0] - noised[1], np.stack(truths))]


def _noised_sums(victims: Victims, series: Sequence[ClientSeries], **more: object) -> Vectors:
    """Return the totals of the targets by phase over five nodes each that `analytic` sends with
    noise, [draws, sums, p], in samples of a phase."""
    learner = victims.learner("analytic", **CALENDAR, **NOISE, **more)
    assert isinstance(learner, AnalyticLearner)
    settings = learner.task.settings
    plan, rules = privacy_plan(settings), settings.aggregation
    assert plan is not None
    samples = learner.task.gather([make_windows(s, settings.data) for s in series], 1)
    cohort = new_cohort(learner, {}, samples, 1)
    arrays = learner.contribution(cohort, learner.context(Guidance(), cohort)).arrays
    days = arrays["moment"][:, 0, -DAY:].astype(np.float64)
    totals = np.stack([days[clients].sum(axis=0) for clients in _sums(NODES)])
    bound, counts = learner.sums_bound(cohort)
    spare = np.sqrt(NODES / fewest(rules.secure_minimum, rules.secure_share, NODES))
    deviation = plan.noise_multiplier * bound * max(counts) * spare
    rng = numpy_stream(0, "noise", str(more))
    noise = deviation * rng.standard_normal((DRAWS, *totals.shape))
    return np.asarray((totals + noise) * DAY / max(counts) / NODES)


def _noised_figure(read: Vectors, truths: Vectors) -> float:
    """Return the mean correlation. read: [draws, sums, p]. truths: [N, p]."""
    outside = truths[INSIDE:].mean(axis=0)
    groups = [truths[clients] for clients in _sums(NODES)]
    pairs = [
        (days, t) for draw in read for days, group in zip(draw, groups, strict=True) for t in group
    ]
    return _mean_correlation(pairs, outside)


def _series(victims: Victims, series: Sequence[ClientSeries]) -> list[float]:
    """Search for the series, beginning at the mean day of the clients that the attacker knows."""
    learner = victims.learner("kindred", **{"data.history": 1})
    assert isinstance(learner, KindredLearner)
    settings = learner.task.settings
    samples = learner.task.gather([make_windows(client, settings.data) for client in series], 1)
    length = lookback(settings.data) + DAY
    truths = [standardised(samples, row, length, learner.task.layout) for row in range(len(series))]
    outside = np.stack([truth.numpy() for truth in truths[INSIDE:]]).mean(axis=0)
    start = mean_day(samples).double().numpy()[INSIDE:].mean(axis=0)
    figures = []
    for size in SIZES.values():
        # One sum, and in the clear three, because a search takes long.
        of_size = []
        for clients in list(_sums(size))[: 3 if size == 1 else 1]:
            phases = phases_of(series[clients.start], settings)
            guess = series_from(truths[clients], start[phases], learner, SEARCH)
            of_size += [correlation(guess - outside, t.numpy() - outside) for t in truths[clients]]
        figures.append(float(np.mean(of_size)))
    return figures
