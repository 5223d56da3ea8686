"""Single days of a client, by runs that train on few periods, and what a site's limit leaves of it.

The run's owner chooses `data.history` and `data.train-share`. The attacker knows that, the seed and
what clients send, and nothing of their scale, so figures are correlations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.leakage.attackers import Vectors, inverted
from benchmarks.leakage.victims import Victims
from benchmarks.pages import table_texts
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import lookback, make_windows, parts_of, window_positions
from fedproto_app.maths.ridge import sums
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.settings import Settings
from fedproto_app.strategies.kindred.learner import KindredLearner
from fedproto_app.tasks.forecasting.task import CohortSamples, mean_day

CLIENTS, DAYS, INVERTED = 10, 4, 5  # INVERTED: clients whose series is searched for
DAY, WEEK = 24, 7
LIMIT = {"data.least-periods": WEEK}
_TOGETHER = 24  # close values, for sums whose neighbouring entries differ by two values


@dataclass(frozen=True)
class DayAttack:
    """A row: the correlation of guesses and truth over clients and days, mean and least, without
    and with the limit, None where the site refuses the runs."""

    says: str
    without: tuple[float, float]
    limited: tuple[float, float] | None


def day_attacks(victims: Victims) -> list[DayAttack]:
    """Run all attacks on the first clients."""
    series = load_series(victims.settings("kindred").data)[:CLIENTS]
    attacks: list[tuple[str, Callable[[Victims, list[ClientSeries], bool], Vectors | None]]] = [
        ("a day from the prototype of a run with `history = 1`", of_one_day),
        ("a day from the prototypes of two runs, of seven days and of eight", of_difference),
        ("all values from Kindred's sums of a run with `history = 1`", of_sums),
        (f"the last day from `analytic`'s sums with `close-window = {_TOGETHER}`", of_edges),
    ]
    rows = []
    for says, attack in attacks:
        figures = [attack(victims, series, limited) for limited in (False, True)]
        means = [None if f is None else (float(f.mean()), float(f.min())) for f in figures]
        assert means[0] is not None
        rows.append(DayAttack(says, means[0], means[1]))
    return rows


def day_table(attacks: list[DayAttack]) -> list[str]:
    """Return a row for each attack."""
    rows = [[row.says, _pair(row.without), _pair(row.limited)] for row in attacks]
    return table_texts([["what is read", "without the limit", "with it"], *rows])


def _pair(figures: tuple[float, float] | None) -> str:
    return "refused" if figures is None else f"{figures[0]:.4f} (least {figures[1]:.2f})"


def _run(
    victims: Victims, series: list[ClientSeries], limited: bool, method: str, **more: object
) -> tuple[Settings, CohortSamples] | None:
    """Return what these clients train on in a run, None if no client would send anything."""
    settings = victims.settings(method, **{**(LIMIT if limited else {}), **more})
    learner = victims.learner(method, **{**(LIMIT if limited else {}), **more})
    windows = [make_windows(client, settings.data) for client in series]
    if not any(client.sends for client in windows):
        return None
    return settings, learner.task.gather(windows, 1)


def end_of_training(client: ClientSeries, settings: Settings) -> int:
    back = lookback(settings.data)
    return back + parts_of(client, settings.data)[0]


def share_ending(days_earlier: int, victims: Victims, client: ClientSeries) -> float:
    """Return the train share that ends training at a midnight, so many days earlier."""
    settings = victims.settings("kindred")
    back = lookback(settings.data)
    end = end_of_training(client, settings) // DAY * DAY - DAY * days_earlier
    return (end - back + 0.5) / (len(client.values) - back)


def _prototypes(run: tuple[Settings, CohortSamples]) -> Vectors:
    return mean_day(run[1]).double().numpy()


def of_one_day(victims: Victims, series: list[ClientSeries], limited: bool) -> Vectors | None:
    """The prototype is the day, by phase."""
    figures = []
    for earlier in range(DAYS):
        share = share_ending(earlier, victims, series[0])
        more = {"data.history": 1, "data.train-share": share, "data.validation-share": 0.1}
        run = _run(victims, series, limited, "kindred", **more)
        if run is None:
            return None
        for client, guess in zip(series, _prototypes(run), strict=True):
            end = end_of_training(client, run[0])
            figures.append(correlation(guess, by_phase(client, end - DAY, end)))
    return np.array(figures)


def of_difference(victims: Victims, series: list[ClientSeries], limited: bool) -> Vectors | None:
    """Eight times a mean of eight days less seven times the mean of the later seven is the first
    day, if their scales are taken as equal."""
    figures = []
    for earlier in range(DAYS):
        share = share_ending(earlier, victims, series[0])
        later, longer = (
            _run(
                victims,
                series,
                limited,
                "kindred",
                **{"data.history": history, "data.train-share": share},
            )
            for history in (WEEK, WEEK + 1)
        )
        if later is None or longer is None:
            return None
        guesses = (WEEK + 1) * _prototypes(longer) - WEEK * _prototypes(later)
        for client, guess in zip(series, guesses, strict=True):
            first = end_of_training(client, longer[0]) - DAY * (WEEK + 1)
            figures.append(correlation(guess, by_phase(client, first, first + DAY)))
    return np.array(figures)


def of_sums(victims: Victims, series: list[ClientSeries], limited: bool) -> Vectors | None:
    """Search for the series, the look-back and the day, whose A and B are those that are sent."""
    more = {"data.history": 1}
    run = _run(victims, series, limited, "kindred", **more)
    if run is None:
        return None
    learner = victims.learner("kindred", **more)
    assert isinstance(learner, KindredLearner)
    figures, (settings, samples) = [], run
    for row, client in enumerate(series[:INVERTED]):
        truth = standardised(samples, row, lookback(settings.data) + DAY, learner.task.layout)
        phases = phases_of(client, settings)
        guess = series_from([truth], _prototypes(run)[row][phases], learner)
        figures.append(correlation(guess, truth.numpy()))
    return np.array(figures)


def phases_of(client: ClientSeries, settings: Settings) -> NDArray[np.int64]:
    """Return the phases of the look-back and the day that a run with `history = 1` trains on."""
    length = lookback(settings.data) + DAY
    first = end_of_training(client, settings) - length
    return np.asarray((client.start + first + np.arange(length)) % DAY)


def series_from(
    truths: Sequence[Tensor], start: Vectors, learner: KindredLearner, steps: int = 1000
) -> Vectors:
    """Return the series whose A and B come nearest to the mean A and B of these series, [length].

    start: where the search begins. steps: of the search by values, and of that by waves.
    """
    settings, guess = learner.task.settings, torch.from_numpy(start)
    back = lookback(settings.data)

    def sums_of(width: int, values: Tensor, _: Tensor) -> list[Tensor]:
        features = learner.model.encode({}, _inputs(values, settings).float()).double()
        residuals = values[back:, None] - features[:, learner.model.newest, None]
        gram, moment = sums(features[:, :width], residuals, torch.ones(DAY))
        return [gram / DAY, moment / DAY]

    # First by the products of values, which are smooth, then by the waves' products as well.
    for width in (learner.model.plain_width, learner.model.representation_dim):
        pairs = zip(*(sums_of(width, truth, truth) for truth in truths), strict=True)
        observed = [torch.stack(rows).mean(dim=0).float().double() for rows in pairs]
        guess = inverted(partial(sums_of, width), observed, guess, torch.zeros(1).double(), steps)
    return np.asarray(guess.numpy())


def standardised(samples: CohortSamples, row: int, length: int, layout: WindowLayout) -> Tensor:
    """Return the values that a client's only batch is made of: its look-back and its targets."""
    used = samples.batches[row, 0].sort().values
    inputs, targets = samples.inputs[row, used].double(), samples.targets[row, used, 0].double()
    lagged = layout.blocks(inputs).lagged
    back = length - len(used)
    values = torch.zeros(length).double()
    values[back:] = targets
    for number in range(back // DAY):  # the longest distance first
        values[number * DAY : (number + 1) * DAY] = lagged[:, number, 0]
    return values


def _inputs(values: Tensor, settings: Settings) -> Tensor:
    """Return the samples [24, c + q] of a look-back and a day, as `make_windows` cuts them."""
    back = lookback(settings.data)
    firsts = np.arange(back, back + DAY)
    return values[torch.from_numpy(window_positions(firsts, settings.data))]


def of_edges(victims: Victims, series: list[ClientSeries], limited: bool) -> Vectors | None:
    """Neighbouring entries of A differ by the values at the two ends of the part: Σ v_{t−k} less
    Σ v_{t−k−1} is a − b, and for the squares it is a² − b², so a + b is their ratio."""
    more = {"data.close-window": _TOGETHER}
    run = _run(victims, series, limited, "analytic", **more)
    if run is None:
        return None
    _, samples = run
    task = victims.learner("analytic", **more).task
    grams = task.regression_sums(samples)[0][:, 0].float().double().numpy()
    figures = []
    for row, gram in enumerate(grams):
        close = slice(0, _TOGETHER)
        first_moments = np.diff(gram[-1, close])
        squares = np.diff(gram.diagonal()[close])
        guess = (squares / first_moments + first_moments) / 2
        used = samples.batches[row][: samples.batch_counts[row]]
        last = samples.inputs[row, int(used.max()), :_TOGETHER].double().numpy()
        truth = last[1:]
        figures.append(correlation(guess, truth))
    return np.array(figures)


def by_phase(client: ClientSeries, first: int, end: int) -> Vectors:
    """Return the values of a day by phase, with the client's mean in gaps."""
    order = np.argsort((client.start + np.arange(first, end)) % DAY)
    values = client.values[first:end][order]
    return np.where(np.isfinite(values), values, np.nanmean(client.values))


def correlation(guess: Vectors, truth: Vectors) -> float:
    """Return Pearson's correlation of a guess and the truth."""
    return float(np.corrcoef(guess, truth)[0, 1])
