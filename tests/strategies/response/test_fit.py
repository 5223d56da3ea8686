"""A client's response from sums of seasonal differences, by the hand checks of covariates.md."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedproto_app.strategies.response import fit
from fedproto_app.strategies.response.features import FEATURES, WIDTHS, Columns, Floats, Response
from fedproto_app.strategies.response.fit import (
    BINS,
    History,
    Sums,
    bin_counts,
    column_weights,
    evidence,
    fitted,
    lags_of,
    pairs,
    posterior,
    seasonal_sums,
    supported_range,
)

PERIOD = 24
COLUMNS = Columns(np.zeros((3, 1)), np.ones((3, 1)), np.array([False]), np.array([True]))
ANYWHERE = (np.full((3, 1), -3.0), np.full((3, 1), 3.0))


def history(values: Floats, column: Floats, train: int) -> History:
    v = COLUMNS.standardised(column[:, None], PERIOD)
    positions = np.arange(len(values))
    parts = slice(0, train), slice(train, len(values))
    return History(values, v, positions, *parts, lags=(PERIOD,), period=PERIOD)


def sums_of(client: History) -> Sums:
    return seasonal_sums(client, client.features(COLUMNS))


def response_of(client: History, shared_sums: Sums | None = None) -> Response:
    return fitted(client, COLUMNS, sums_of(client), shared_sums, ANYWHERE)


def changes(values: Floats) -> Floats:
    return values[PERIOD:] - values[:-PERIOD]


@pytest.fixture
def weak_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_PENALTIES", np.array([1e-12]))


@pytest.mark.usefixtures("weak_penalty")
def test_differences_remove_every_daily_profile() -> None:
    rng = np.random.default_rng(0)
    x, profile = rng.uniform(-1, 1, 40 * PERIOD), 100 * rng.normal(size=PERIOD)
    values = 2 * x + np.tile(profile, 40) + 7
    response = response_of(history(values, x, 32 * PERIOD)).values(x[:, None], 0, PERIOD)
    trained = slice(0, 31 * PERIOD)  # later values may be beyond the range that it has seen
    np.testing.assert_allclose(changes(response)[trained], changes(2 * x)[trained], atol=1e-6)
    np.testing.assert_allclose(changes(values - response)[trained], 0, atol=1e-6)


@pytest.mark.usefixtures("weak_penalty")
def test_others_have_seen_what_a_client_has_not() -> None:
    """The answer is max(x − 1, 0), and one client has x below 1, the other above."""
    rng = np.random.default_rng(1)
    below, above = (rng.uniform(low, low + 1, 40 * PERIOD) for low in (0, 1))
    lower, upper = (history(np.maximum(x - 1, 0), x, 32 * PERIOD) for x in (below, above))
    unseen = np.array([[1.0], [1.5], [2.0]]).repeat(PERIOD, axis=0)
    alone = response_of(lower).values(unseen, 0, PERIOD)
    np.testing.assert_allclose(alone, alone[0], atol=1e-6)  # it does not extrapolate

    a, b = sums_of(lower), sums_of(upper)
    means = Sums((a.gram + b.gram) / 2, (a.moment + b.moment) / 2, b.square / 2, 32.0)
    counts = bin_counts(lower.v, lower.train) + bin_counts(upper.v, upper.train)
    shared = fitted(lower, COLUMNS, a, means, supported_range(counts)).values(unseen, 0, PERIOD)
    rises = shared[2 * PERIOD + 12] - shared[12]
    assert 0.3 < rises <= 1.01  # of the slope 1, as it knows too little to weigh them by


def test_a_constant_or_missing_column_changes_nothing() -> None:
    values = np.random.default_rng(2).normal(size=20 * PERIOD)
    for column in (np.full(len(values), 2.0), np.full(len(values), np.nan)):
        client = history(values, column, 16 * PERIOD)
        assert not changes(client.features(COLUMNS)).any()
        assert not sums_of(client).moment.any()
        assert not response_of(client).values(column[:, None], 0, PERIOD).any()


def test_sums_are_those_of_the_pooled_differences() -> None:
    rng = np.random.default_rng(3)
    clients = [history(*rng.normal(size=(2, days * PERIOD)), days * PERIOD) for days in (5, 9)]
    phi = np.concatenate([changes(client.features(COLUMNS)) for client in clients])
    values = np.concatenate([changes(client.values) for client in clients])
    a, b = (sums_of(client) for client in clients)
    pairs_of_a, pairs_of_b = 4 * PERIOD, 8 * PERIOD
    gram = pairs_of_a * a.gram + pairs_of_b * b.gram
    np.testing.assert_allclose(gram, phi.T @ phi, atol=1e-9)
    moment = pairs_of_a * a.moment + pairs_of_b * b.moment
    np.testing.assert_allclose(moment, phi.T @ values, atol=1e-9)


def test_a_difference_needs_both_values_and_stays_in_the_train_part() -> None:
    values, lag = np.arange(10.0) ** 2, 2
    values[4] = np.nan
    np.testing.assert_array_equal(pairs(values, lag, slice(3, 9)), [3, 5, 7, 8])

    phi = np.arange(10.0)[:, None] ** 3
    no_column = np.zeros((10, WIDTHS, 1))
    client = History(values, no_column, np.arange(10), slice(2, 9), slice(9, 10), (lag,), 4)
    steps = np.array([5, 7, 8])  # 4 and 6 lack a value, and 2 and 3 begin before the train part
    x, y = phi[steps, 0] - phi[steps - lag, 0], values[steps] - values[steps - lag]
    sums = seasonal_sums(client, phi)
    assert sums.gram.item() == pytest.approx(np.mean(x**2))
    assert sums.moment.item() == pytest.approx(np.mean(x * y))
    assert sums.square == pytest.approx(np.mean(y**2))


def test_noise_is_hardly_taken_for_a_response() -> None:
    rng = np.random.default_rng(4)
    values, noise = rng.normal(size=(2, 60 * PERIOD))
    response = response_of(history(values, noise, 48 * PERIOD)).values(noise[:, None], 0, PERIOD)
    assert changes(values - response).var() < 1.01 * changes(values).var()


def test_a_response_that_reverses_costs_hardly_anything() -> None:
    """It rises with x in the first half of the year and falls with it in the second."""
    rng = np.random.default_rng(8)
    x, noise = rng.normal(size=(2, 120 * PERIOD))
    sign = np.where(np.arange(len(x)) < len(x) // 2, 1.0, -1.0)
    values = 0.5 * sign * x + noise
    response = response_of(history(values, x, 110 * PERIOD)).values(x[:, None], 0, PERIOD)
    for half in (slice(0, 60 * PERIOD), slice(60 * PERIOD, None)):
        rest = changes((values - response)[half])
        assert rest.var() < 1.01 * changes(values[half]).var()


def test_without_own_values_the_others_response_is_taken() -> None:
    empty = np.zeros(0)
    client = replace(history(empty, empty, 0), train=slice(0, 0), validation=slice(0, 0))
    shared_sums = Sums(np.eye(FEATURES), np.eye(FEATURES)[0], 2.0, 100.0)
    personal, shared = response_of(client, shared_sums).parts
    assert not personal.coefficients.any()
    assert 0.4 < shared.coefficients[0] < 1


def test_a_range_is_what_enough_values_support() -> None:
    counts = np.zeros((3, 1, BINS))
    counts[:, 0, [3, 8, 12]] = 100
    counts[:, 0, 20] = 1
    lowest, highest = supported_range(counts)
    np.testing.assert_allclose([lowest[0, 0], highest[0, 0]], [-2.25, 0.25])
    assert not np.any(supported_range(np.zeros((3, 1, BINS))))


def test_weeks_of_days_give_a_second_lag() -> None:
    assert lags_of(24, has_weeks=True) == (24, 168)
    assert lags_of(48, has_weeks=False) == (48,)


def test_the_evidence_is_that_of_a_normal_model() -> None:
    """y ~ N(0, σ² (I + X Xᵀ / (n λ))): the determinant and the quadratic form of n pairs."""
    rng = np.random.default_rng(5)
    x, n = rng.normal(size=(30, 2)), 30
    y = x @ [1.0, 0.0] + rng.normal(size=30)
    sums = Sums(x.T @ x / n, x.T @ y / n, float(y @ y) / n, days=n / 3)
    logs, solutions = evidence(sums)
    for penalty, log, solution in zip(fit._PENALTIES, logs, solutions, strict=True):
        covariance = np.eye(n) + x @ x.T / (n * penalty)
        quadratic = y @ np.linalg.solve(covariance, y)
        expected = -0.5 * np.linalg.slogdet(covariance)[1] - n / 2 * np.log(quadratic / (y @ y))
        assert log == pytest.approx(expected)
        np.testing.assert_allclose((sums.gram + penalty * np.eye(2)) @ solution, sums.moment)
    assert 0.5 < posterior(sums, np.ones(2))[0][0] < 1.5
    noise = Sums(sums.gram, 0 * sums.moment, 1.0, 10.0)
    assert not posterior(noise, np.ones(2))[0].any()


def test_a_column_that_does_not_matter_is_scaled_down() -> None:
    two = Columns(np.zeros((3, 2)), np.ones((3, 2)), np.full(2, True), np.full(2, True))
    moment = np.zeros(2 * FEATURES)
    moment[0] = 0.9  # the features of the first column come at every second place
    weights = column_weights(Sums(np.eye(2 * FEATURES), moment, 1.0, 100.0), two)
    assert weights[0] > 0.999
    assert weights[1] < 0.35


def test_what_a_response_leaves_has_its_own_sums() -> None:
    rng = np.random.default_rng(6)
    x, y, response = rng.normal(size=(30, 2)), rng.normal(size=30), np.array([0.5, -1.0])
    rest = y - x @ response
    sums = Sums(x.T @ x, x.T @ y, float(y @ y), 1.0).without(response)
    np.testing.assert_allclose(sums.moment, x.T @ rest)
    assert sums.square == pytest.approx(rest @ rest)


def test_sums_of_nothing_are_zero() -> None:
    sums = sums_of(history(np.full(30, np.nan), np.zeros(30), 30))
    assert sums.square == 0
    assert not sums.gram.any()
