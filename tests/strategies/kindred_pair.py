"""Both halves of Kindred on the four clients of `one_node`, and the same in NumPy by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.learner import Cohort, make_learner
from fedproto_app.strategies.kindred.learner import KindredLearner
from fedproto_app.strategies.kindred.strategy import KindredStrategy
from fedproto_app.tasks.forecasting.task import ForecastingTask
from tests.helpers.tiny_cohort import cohort_of
from tests.strategies.server_half import NAMES, accept, evaluation, one_node, refusals, replies

Floats = NDArray[np.float64]

CLIENTS = [*NAMES, "late"]
PERIOD, CLOSE, FEATURES = 4, 2, 6


def tiny_series() -> dict[str, Floats]:
    """Waves of one period with noise, two early and two late in the day. A value of one lacks."""
    rng, hours = np.random.default_rng(0), np.arange(100)
    series = {
        name: np.sin(hours * np.pi / 2 + (number > 1) * 1.5) + rng.normal(0, 0.4, len(hours))
        for number, name in enumerate(CLIENTS)
    }
    series["b"][30] = np.nan
    return series


class KindredPair:
    """A server and the clients of its only node."""

    def __init__(self, **changes: Any) -> None:
        self.settings: Settings = settings_from(
            {
                "method": "kindred",
                "data.period": PERIOD,
                "data.close-window": CLOSE,
                "data.periodic-window": 2,
                "data.lags": "",
                "data.calendar": "phase",
                "kindred.features": FEATURES,
                **changes,
            }
        )
        learner = make_learner(self.settings, ForecastingTask(self.settings))
        assert isinstance(learner, KindredLearner)
        self.learner = learner
        self.strategy = KindredStrategy(self.settings, one_node(self.settings))

    def windows(self, series: dict[str, Floats]) -> list[ClientWindows]:
        return [make_windows(ClientSeries(n, v), self.settings.data) for n, v in series.items()]

    def cohort(self, series: dict[str, Floats]) -> Cohort:
        """These clients, fitted alone."""
        cohort = cohort_of(self.learner, self.windows(series))
        self.learner.conclude(cohort, self.learner.context(Guidance(), cohort))
        return cohort

    def message(self, cohort: Cohort) -> Arrays:
        """What the clients send."""
        context = self.learner.context(Guidance(), cohort)
        return self.learner.contribution(cohort, context).arrays

    def report(self, names: list[str], arrays: Arrays) -> dict[str, str]:
        """It arrives at the server. Returns what was refused, and why."""
        of_clients = {
            name: {n: array[row] for n, array in arrays.items()} for row, name in enumerate(names)
        }
        return refusals(accept(self.strategy, replies(**of_clients)))

    def priors(self) -> Guidance:
        """What the server then sends to the node."""
        return evaluation(self.strategy, *CLIENTS)

    def fitted(self, series: dict[str, Floats]) -> Tensor:
        """[K, H, D] the clients' coefficients in the end."""
        cohort = self.cohort(series)
        self.report(list(series), self.message(cohort))
        priors = self.priors()
        if priors.clients:
            self.learner.receive(cohort, priors)
        return cohort.parameters[COEFFICIENTS]


# --- by hand ----------------------------------------------------------------------------------


def by_hand(pair: KindredPair, series: dict[str, Floats]) -> list[Floats]:
    """Each client's coefficients [D, H], from the formulas in Kindred's docstrings."""
    clients, data = pair.windows(series), pair.settings.data
    features = [_features(client.inputs.astype(np.float64), pair.settings) for client in clients]
    residuals_by_client = [
        client.targets - client.inputs[:, [data.close_window - 1]].astype(np.float64)
        for client in clients
    ]
    means, days = [], []
    for client, phi, residuals in zip(clients, features, residuals_by_client, strict=True):
        used = client.batches.ravel()
        used_any = used[client.present[used].any(axis=1)]
        columns = []
        for step in range(residuals.shape[1]):
            of_step = used[client.present[used, step]]
            columns.append(phi[of_step].T @ residuals[of_step, step] / len(of_step))
        means.append((phi[used_any].T @ phi[used_any] / len(used_any), np.stack(columns, axis=1)))
        has_target = client.present[client.batches, 0]
        days.append(
            (client.targets[client.batches, 0] * has_target).sum(axis=0) / has_target.sum(axis=0)
        )
    near, alike = _nearness(np.stack(days)), 1 - np.eye(len(clients))
    coefficients = []
    for number, (client, phi, residuals) in enumerate(
        zip(clients, features, residuals_by_client, strict=True)
    ):
        mixes = [weights[number] / weights[number].sum() for weights in (near, alike)]
        priors = [
            [sum(w * mean[part] for w, mean in zip(mix, means, strict=True)) for part in (0, 1)]
            for mix in mixes
        ]
        families = _families(means[number], priors, len(client.batches), pair.settings)
        fits = [fit for _, family in families for fit in family]
        prior = np.array([weight / len(family) for weight, family in families for _ in family])
        validation_rows, used = client.validation, client.batches.ravel()
        validation = [
            _error(
                phi[validation_rows],
                residuals[validation_rows],
                client.present[validation_rows],
                fit,
            )
            for fit in fits
        ]
        training = [
            _trained(means[number], phi[used], residuals[used], client.present[used], fit)
            for fit in fits
        ]
        errors = np.array(validation) + 0.1 * np.array(training)
        samples = client.present[validation_rows].sum() / residuals.shape[1]
        shares = prior * np.exp(-0.2 * samples / 2 * (errors / errors.min() - 1))
        coefficients.append(np.tensordot(shares / shares.sum(), np.stack(fits), axes=1))
    return coefficients


def _error(phi: Floats, residuals: Floats, mask: Any, fit: Floats) -> float:
    return float((((phi @ fit - residuals) ** 2) * mask).sum() / mask.sum())


def _trained(means: Any, phi: Floats, residuals: Floats, mask: Any, fit: Floats) -> float:
    """Return the mean training error over the steps, checked directly if no target is missing."""
    squares = (residuals**2 * mask).sum(axis=0) / mask.sum(axis=0)
    steps = np.diag(fit.T @ means[0] @ fit - 2 * fit.T @ means[1]) + squares
    if mask.all():
        direct = ((phi @ fit - residuals) ** 2).mean()
        np.testing.assert_allclose(steps.mean(), direct, rtol=1e-3, atol=1e-9)
    return max(float(steps.mean()), 0.0)


def _features(inputs: Floats, settings: Settings) -> Floats:
    data, width = settings.data, settings.method_settings.features
    times = inputs[:, -1].astype(int)
    newest, values = inputs[:, [data.close_window - 1]], inputs[:, :-1]
    older = np.delete(values, data.close_window - 1, axis=1)
    hours = np.eye(data.period)[times % data.period]
    plain = np.concatenate([older - newest, newest, hours], axis=1)
    draws = torch_stream(settings.seed, "random features")
    in_waves = np.delete(plain, _further_lags(settings), axis=1)
    directions = torch.randn(in_waves.shape[1], 2, width, generator=draws).double().numpy()
    shifts = 2 * np.pi * torch.rand(2, width, generator=draws).double().numpy()
    blocks = [plain]
    for scale, shift, direction in zip((1.0, 0.5), shifts, directions.swapaxes(0, 1), strict=True):
        past = in_waves.shape[1] - data.period
        direction[:past] *= scale / np.sqrt(past)
        blocks.append(np.sqrt(2) * np.cos(in_waves @ direction + shift) / np.sqrt(width))
    return np.concatenate(blocks, axis=1)


def _further_lags(settings: Settings) -> list[int]:
    """Return the features that are values no whole number of the look-back's periods ago."""
    data = settings.data
    return [
        data.close_window - 1 + number * data.horizon + step
        for number, distance in enumerate(data.distances)
        if distance not in data.periodic_distances
        for step in range(data.horizon)
    ]


def _nearness(days: Floats) -> Floats:
    """exp(−JS / (0.5 · median)), 0 for itself."""
    rows = np.exp(days) / np.exp(days).sum(axis=1, keepdims=True)

    def entropy(p: Floats) -> Any:
        return -(p * np.log(p)).sum(axis=-1)

    apart = entropy((rows[:, None] + rows) / 2) - (entropy(rows)[:, None] + entropy(rows)) / 2
    off_diagonal = ~np.eye(len(days), dtype=bool)
    return np.exp(-apart / (0.5 * np.median(apart[off_diagonal]))) * off_diagonal


def _families(
    client_means: Any, priors: Any, periods: int, settings: Settings
) -> list[tuple[float, list[Floats]]]:
    """Return the candidates by family, each with the family's prior weight.

    (A + s·A' + Λ)⁻¹ (B + s·B' + Λ·W₀), 0 for waves and further lags that are left out. The values
    are the close ones and, for each step ahead, those so far before, the oldest first.
    """
    width, steps = client_means[1].shape
    close, distances = settings.data.close_window, settings.data.distances
    before = [n for n, far in enumerate(distances) if far in settings.data.periodic_distances]
    values, days = close + len(distances) * steps, settings.data.period
    plain = values + days
    last = np.zeros((width, steps))
    season, mean = last.copy(), last.copy()
    for step in range(steps):  # the newest of the close values is no feature of its own
        for number in before:
            mean[close - 1 + number * steps + step, step] = 1 / len(before)
        season[close - 1 + before[-1] * steps + step, step] = 1
    further = _further_lags(settings)
    omitted: list[list[int]] = [[], further] if further else [[]]

    def fit(
        problem: Any, value: float, calendar: float, wave: float, toward: Floats, omit: list[int]
    ) -> Floats:
        penalties = np.repeat([value, calendar, wave], [values, days, width - plain])
        used = np.delete(np.arange(plain if wave == np.inf else width), omit)
        coefficients = np.zeros_like(client_means[1])
        ridge = problem[0][np.ix_(used, used)] + np.diag(penalties[used])
        right = problem[1][used] + penalties[used, None] * toward[used]
        coefficients[used] = np.linalg.solve(ridge, right)
        return coefficients

    def one_penalty(problems: Any, penalties: list[float]) -> tuple[float, list[Floats]]:
        return 1.0, [
            fit(problem, penalty, penalty, wave, last, omit)
            for problem in problems
            for penalty in penalties
            for wave in (penalty, np.inf)
            for omit in omitted
        ]

    def blocks(problems: Any, pairs: Any, waves: Any, drawn: Any) -> tuple[float, list[Floats]]:
        return 1.0, [
            fit(problem, *pair, wave, toward, omit)
            for problem in problems
            for pair in pairs
            for wave in waves
            for toward in drawn
            for omit in omitted
        ]

    pairs = [(1e-2, 1e-2), (1e-2, 1), (1, 1e-2), (1, 1)]
    mixed = [
        (client_means[0] + strength * prior[0], client_means[1] + strength * prior[1])
        for prior in priors
        for strength in (0.5, 10.0, 50.0)
    ]
    return [
        (1 / periods, [last]),
        (1 / periods, [season, mean]),
        blocks([client_means], pairs, [1e-4, 1e-2, 1, np.inf], [last]),
        blocks([client_means], pairs, [1e-4, 1e-2, 1, np.inf], [season, mean]),
        one_penalty([client_means], [1e-4, 1e-3, 1e-2, 1e-1]),
        blocks(mixed, [(1, 0.1)], [1e-2, np.inf], [last]),
        blocks(mixed, [(1, 0.1)], [1e-2, np.inf], [season]),
        one_penalty(mixed, [1e-4, 1e-2]),
    ]
