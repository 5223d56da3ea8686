"""Quantiles, tracked half widths and coverage by hand, and what stays at the node."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch

from benchmarks.interval_coverage import simulated_coverage
from fedproto_app.core.metrics import Metric
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.intervals import (
    GAIN,
    KEPT_LEVELS,
    first_half_widths,
    half_width,
    independent_errors,
    interval_metrics,
    is_half_width,
    kept_half_widths,
    tracked,
)
from fedproto_app.tasks.forecasting.metrics import COVERAGES, LEVELS, WIDTHS
from fedproto_app.tasks.forecasting.task import ForecastingTask


def series_of(values: list[float]) -> np.ndarray:
    """A series of scores one step ahead, [1, n, 1]."""
    return np.array(values)[None, :, None]


def first_widths(errors: list[list[float]] | np.ndarray, *levels: int) -> np.ndarray:
    """The first half widths [L, H] of one client without missing errors [n, H]."""
    client = np.array(errors, dtype=float)[None]
    return first_half_widths(client, np.ones(client.shape, dtype=bool), levels)[:, 0]


def test_the_width_of_a_single_error_by_hand() -> None:
    """One error of 2: s = 2, q = r = 1, N = 1. Level 50 has m = 1, z = 0.67449 and t = 1."""
    z = 0.67449
    assert first_widths([[2.0]], 50) == pytest.approx(2 * (1 + z) / 2 / z, rel=1e-5)


def test_the_width_of_many_equal_errors_by_hand() -> None:
    """Nine errors of size 3 that alternate in pairs: ρ = 0, so N = 9. Level 80 has m = 4."""
    errors = 3.0 * np.array([1, 1, -1, -1, 1, 1, -1, -1, 1])[:, None]
    z, t = 1.281552, 1.383029  # of 90% one-sided, t with 9 degrees of freedom
    assert first_widths(errors, 80) == pytest.approx(3 * (9 + 4 * z) / 13 * t / z, rel=1e-5)


def test_the_scale_of_a_step_is_between_that_of_the_step_and_of_all() -> None:
    """Two forecasts two steps ahead: v = 4 and 16. With weights of 2 and 2, s² = √(v_h · v)."""
    [near, far] = first_widths([[2.0, -4.0], [2.0, 4.0]], 80)[0]
    assert far / near == pytest.approx((16 / 4) ** 0.25)
    [near, far] = first_widths([[0.0, -4.0], [0.0, 4.0]], 80)[0]  # 8 / 100 instead of 0
    assert far / near == pytest.approx((16 / 0.08) ** 0.25)


def test_missing_errors_count_for_nothing() -> None:
    errors = np.array([[1.0, 99.0], [2.0, 4.0], [3.0, 5.0]])[None]
    present = np.array([[True, False], [True, True], [True, True]])[None]
    changed = np.where(present, errors, -7.0)
    assert np.array_equal(
        first_half_widths(errors, present, LEVELS), first_half_widths(changed, present, LEVELS)
    )
    present[0, :, 1] = False  # a step without any error: its scale is that of all errors
    widths = first_half_widths(errors, present, LEVELS)[:, 0]
    assert widths[:, 1] == pytest.approx(widths[:, 0])
    without = first_half_widths(errors, np.zeros_like(present), LEVELS)
    assert without[:, 0, 0] == pytest.approx([1.2816, 1.9600], abs=1e-4)  # of a deviation of 1


def test_a_longer_client_in_the_cohort_changes_no_width() -> None:
    """Bit for bit: intervals must not depend on who is computed together."""
    rng = np.random.default_rng(2)
    for horizon in (1, 7):
        errors = rng.normal(size=(2, 300, horizon))
        present = np.ones(errors.shape, dtype=bool)
        present[0, :13], present[0, 90:] = False, False
        together = first_half_widths(errors, present, KEPT_LEVELS)[:, 0]
        alone = first_half_widths(errors[:1, :95], present[:1, :95], KEPT_LEVELS)[:, 0]
        assert np.array_equal(together, alone)


def test_independent_errors_by_hand() -> None:
    def number(errors: list[list[float]]) -> float:
        client = np.array(errors)[None]
        return float(independent_errors(client, np.ones(client.shape, dtype=bool))[0])

    assert number([[5.0]]) == 1
    # ρ = 0: products 1, -1, 1, -1, 1 of squares 5 give 0.2² < 1 / 5.
    assert number([[1.0], [1], [-1], [-1], [1], [1]]) == 6
    # One forecast that keeps its sign: ρ = 1, so ρ² - 1 / 5 = 4 / 5, and 6 · 0.2 / 1.8 is below 1.
    assert number([[1.0, 1, 1, 1, 1, 1]]) == 1
    # Two forecasts two steps ahead have three target times.
    assert number([[1.0, -1], [-1, 1]]) == pytest.approx(3 * 0.5 / 1.5)
    assert number([[0.0], [0], [0]]) == 3


def test_few_validation_errors_cover_as_often_as_intended() -> None:
    """As benchmarks/interval_coverage.py: with 5 to 20 forecasts, dependent or not."""
    for case, by_count in simulated_coverage().items():
        for count, (coverage_80, coverage_95) in by_count.items():
            assert 76 < coverage_80 < 86, (case, count)
            assert (89 if "walk" in case else 91.5) < coverage_95 < 97, (case, count)


def test_tracking_by_hand() -> None:
    """80%: a miss widens by e^(0.1 · 0.8), a hit narrows by e^(-0.1 · 0.2)."""
    wider, narrower = np.exp(GAIN * 0.8), np.exp(-GAIN * 0.2)
    scores = series_of([0.5, 2.0, 0.5, 9.0, 0.5])
    judged = np.array([True, True, True, False, True])[None, :, None]
    result = tracked(np.ones((1, 1, 1)), scores, judged, [80])
    expected = [1, narrower, narrower * wider, narrower**2 * wider, narrower**2 * wider]
    np.testing.assert_allclose(result.at[0, 0, :, 0], expected, rtol=1e-6)
    assert result.after[0, 0, 0] == pytest.approx(narrower**3 * wider)


def test_a_forecast_two_steps_ahead_teaches_two_steps_later() -> None:
    wider, narrower = np.exp(GAIN * 0.8), np.exp(-GAIN * 0.2)
    scores = np.zeros((1, 4, 2))
    scores[0, 0] = 5  # both values of the first forecast are far off
    result = tracked(np.ones((1, 1, 2)), scores, np.ones((1, 4, 2), dtype=bool), [80])
    near = [1, wider, wider * narrower, wider * narrower**2]
    far = [1, 1, wider, wider * narrower]
    np.testing.assert_allclose(result.at[0, 0], np.transpose([near, far]), rtol=1e-6)
    # After the last sample come its own values: one two steps ahead, and none unknown is left.
    np.testing.assert_allclose(result.after[0, 0], [wider * narrower**3] * 2)


def test_no_width_knows_what_comes_later() -> None:
    rng = np.random.default_rng(0)
    scores = np.abs(rng.normal(size=(1, 40, 3)))
    judged = np.ones(scores.shape, dtype=bool)
    first = np.ones((2, 1, 3))
    before = tracked(first, scores, judged, LEVELS).at
    for place in (5, 20):
        changed = scores.copy()
        for ahead in range(3):  # the values of time `place` and later
            changed[0, place - ahead :, ahead] = 1e9
        after = tracked(first, changed, judged, LEVELS).at
        assert np.array_equal(after[:, :, : place + 1], before[:, :, : place + 1])
        assert (after[:, :, place + 1] != before[:, :, place + 1]).any()


def test_series_of_several_lengths_are_followed_as_each_alone() -> None:
    rng = np.random.default_rng(1)
    scores = np.abs(rng.normal(size=(2, 30, 2)))
    judged = np.zeros(scores.shape, dtype=bool)
    judged[0, 4:21], judged[1, 10:] = True, True
    first = rng.uniform(0.5, 1, size=(1, 2, 2)).repeat(2, axis=0)
    together = tracked(first, scores, judged, LEVELS)
    for row, part in enumerate((slice(4, 21), slice(10, 30))):
        row_slice = slice(row, row + 1)
        alone = tracked(
            first[:, row_slice], scores[row_slice, part], judged[row_slice, part], LEVELS
        )
        assert np.array_equal(together.at[:, row, part], alone.at[:, 0])
        assert np.array_equal(together.after[:, row], alone.after[:, 0])


@pytest.mark.parametrize("drift", [1.0, 3.0])
@pytest.mark.parametrize("horizon", [1, 24])
def test_known_noise_is_covered_as_often_as_asked(drift: float, horizon: int) -> None:
    """Checked on 20 series, also if errors grow threefold after the validation part."""
    rng = np.random.default_rng(3)
    errors = rng.standard_t(5, size=(20, 460, horizon))
    errors[:, 60:] *= drift
    scores = np.abs(errors)
    first = first_half_widths(errors[:, :60], np.ones((20, 60, horizon), dtype=bool), LEVELS)
    result = tracked(first, scores[:, 60:], np.ones((20, 400, horizon), dtype=bool), LEVELS)
    for level, widths in zip(LEVELS, result.at, strict=True):
        assert (scores[:, 60:] <= widths).mean() == pytest.approx(level / 100, abs=0.03)
    assert (result.at[0] <= result.at[1]).all()
    assert (result.after[0] <= result.after[1]).all()
    static = (scores[:, 60:] <= first[:, :, None]).mean(axis=(1, 2, 3))
    assert (drift == 1) == (abs(static[0] - 0.8) < 0.03)  # not to follow is not enough


def test_late_answers_do_not_make_widths_swing() -> None:
    """A value two days ahead of hours: its answers come in long runs of misses and hits."""
    rng = np.random.default_rng(4)
    errors = rng.normal(size=(4, 1000, 48))
    errors[:, 300:340] *= 20
    scores = np.abs(errors)
    first = first_half_widths(errors[:, :100], np.ones((4, 100, 48), dtype=bool), LEVELS)
    widths = tracked(first, scores, np.ones(scores.shape, dtype=bool), LEVELS).at
    assert widths.max() < 20 * scores[:, :100].max()


def test_a_width_of_nothing_can_grow() -> None:
    first = first_half_widths(np.zeros((1, 20, 1)), np.ones((1, 20, 1), dtype=bool), LEVELS)
    result = tracked(first, np.ones((1, 600, 1)), np.ones((1, 600, 1), dtype=bool), LEVELS)
    assert result.after.min() > 0.5


def test_a_sensor_that_stood_still_is_followed_again() -> None:
    scores = np.r_[np.zeros(1500), np.ones(200)][None, :, None]
    first = np.full((1, 1, 1), 0.5)
    widths = tracked(first, scores, np.ones_like(scores, dtype=bool), [80]).at[0, 0, :, 0]
    assert widths.min() == pytest.approx(0.005)
    assert (widths[1500:] >= 1).argmax() < 80


def parts(validation: int, test: int) -> tuple[torch.Tensor, torch.Tensor]:
    n = validation + test
    is_test = (torch.arange(n) >= validation).float()[None, :, None]
    return 1 - is_test, is_test


def test_coverage_and_width_of_few_values_by_hand() -> None:
    """The third of five test errors is missing, and widths move by the rule of `tracked`."""
    error = torch.tensor([1.0, -4, 2, 3, 0.1, -50, 100, 0.2])[None, :, None].double()
    validation, test = parts(4, 4)
    test[0, 6] = 0  # missing
    metrics = {m.name: values[0] for m, values in interval_metrics(error, validation, test).items()}
    for level, width in zip(
        LEVELS, first_widths([[1], [-4], [2], [3]], *LEVELS)[:, 0], strict=True
    ):
        # Inside, then outside. The missing value changes nothing.
        inside, outside = np.exp(GAIN * (level / 100 - 1)), np.exp(GAIN * level / 100)
        widths = width * np.array([1, inside, inside * outside])
        assert metrics[f"coverage-{level}"] == pytest.approx(2 / 3)
        assert metrics[f"width-{level}"] == pytest.approx(2 * np.mean(widths), rel=1e-6)
        assert metrics[half_width(level, 0)] == pytest.approx(widths[-1] * inside)
    reported = {metric.name for metric in (*COVERAGES, *WIDTHS)}
    assert set(metrics) == {*reported, *(half_width(level, 0) for level in KEPT_LEVELS)}


def test_each_step_ahead_has_separate_widths() -> None:
    rng = np.random.default_rng(0)
    error = torch.from_numpy(rng.normal(size=(3, 50, 2)) * [1, 10])
    validation, test = parts(48, 2)
    validation, test = validation.expand_as(error), test.expand_as(error)
    metrics = interval_metrics(error, validation, test)
    stored = {metric.name: values[1] for metric, values in metrics.items()}
    half_widths = kept_half_widths(stored, 3)
    assert half_widths.shape == (2, 3)
    assert 7 < half_widths[1, 1] / half_widths[1, 0] < 13
    assert np.isnan(half_widths[:, 2]).all()
    assert (half_widths[0, :2] <= half_widths[1, :2]).all()


def test_other_levels_lie_between_the_kept_ones() -> None:
    """Normal errors: half widths of all levels from 1 to 99 are z, as the kept levels' are."""
    z = {level: NormalDist().inv_cdf(0.5 + level / 200) for level in range(1, 100)}
    stored = {half_width(level, 0): 3 * z[level] for level in KEPT_LEVELS}
    widths = kept_half_widths(stored, 1, list(z))
    np.testing.assert_allclose(widths[:, 0], [3 * value for value in z.values()], rtol=1e-12)
    stored[half_width(95, 0)] = 10.0
    assert kept_half_widths(stored, 1, (95, 80)).tolist() == [[10.0], [3 * z[80]]]
    between = (z[90] - z[80]) / (z[95] - z[80])
    assert kept_half_widths(stored, 1, (90,))[0, 0] == pytest.approx(
        3 * z[80] + between * (10 - 3 * z[80])
    )


def test_half_widths_stay_and_the_server_takes_none() -> None:
    task = ForecastingTask(settings_from({"data.horizon": 2}))
    required = task.required_metrics(task.settings)
    assert {*COVERAGES, *WIDTHS} <= set(required)
    assert not any(task.stays(metric) for metric in required)
    private = Metric(half_width(80, 0))
    assert task.stays(private)
    assert is_half_width(private.name)
    assert task.metrics_fault({private: 0.5}) is not None
    assert task.metrics_fault({Metric("coverage-80"): 1.0, Metric("width-95"): 9.0}) is None
    assert "is not a share" in str(task.metrics_fault({Metric("coverage-80"): 1.1}))
    assert "not finite" in str(task.metrics_fault({Metric("width-80"): float("nan")}))
