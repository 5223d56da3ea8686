"""Quantiles, tracked half widths and coverage by hand, and what stays at the node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.core.metrics import Metric
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.intervals import (
    GAIN,
    conformal_quantile,
    first_half_widths,
    half_width,
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


@pytest.mark.parametrize(
    ("n", "level", "rank"),
    [
        (9, 80, 8),  # ⌈10 · 0.8⌉
        (10, 80, 9),  # ⌈8.8⌉
        (4, 80, 4),  # ⌈5 · 0.8⌉ = 4, the least n that has an 80% quantile
        (3, 80, 3),  # ⌈3.2⌉ = 4 of 3: the largest
        (19, 95, 19),  # ⌈20 · 0.95⌉ = 19, the least n that has a 95% quantile
        (18, 95, 18),  # ⌈18.05⌉ = 19 of 18: the largest
        (39, 95, 38),
        (100, 95, 96),  # ⌈95.95⌉
        (1, 95, 1),
    ],
)
def test_the_quantile_has_the_finite_sample_rank(n: int, level: int, rank: int) -> None:
    scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    quantile = conformal_quantile(series_of(list(scores)), np.ones((1, n, 1), dtype=bool), level)
    assert quantile.tolist() == [[rank]]


def test_missing_scores_count_for_nothing() -> None:
    scores = np.arange(1.0, 13.0).reshape(1, 6, 2)  # odd numbers one step ahead, even ones two
    present = np.ones((1, 6, 2), dtype=bool)
    present[0, 4:, 0] = False
    assert conformal_quantile(scores, present, 80).tolist() == [[7, 12]]  # 4 of 4, 6 of 6
    present[0, :, 0] = False
    assert np.isnan(conformal_quantile(scores, present, 80)[0, 0])
    assert first_half_widths(scores, present, LEVELS)[:, 0].tolist() == [[12, 12], [12, 12]]


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
    scores = np.abs(rng.standard_t(5, size=(20, 460, horizon)))
    scores[:, 60:] *= drift
    first = first_half_widths(scores[:, :60], np.ones((20, 60, horizon), dtype=bool), LEVELS)
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
    scores = np.abs(rng.normal(size=(4, 1000, 48)))
    scores[:, 300:340] *= 20
    first = first_half_widths(scores[:, :100], np.ones((4, 100, 48), dtype=bool), LEVELS)
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
    """Four validation errors: the largest, 4, is the half width of both levels at first."""
    error = torch.tensor([1.0, -4, 2, 3, 3.9, -5, 100, 4.05])[None, :, None].double()
    validation, test = parts(4, 4)
    test[0, 6] = 0  # missing
    metrics = {m.name: values[0] for m, values in interval_metrics(error, validation, test).items()}
    # 80%: 4, then narrower, missed and so wider; the missing value changes nothing.
    widths = {80: [4, 4 * np.exp(-0.02), 4 * np.exp(0.06)]}
    widths[95] = [4, 4 * np.exp(-0.005), 4 * np.exp(0.09)]
    for level in LEVELS:
        assert metrics[f"coverage-{level}"] == pytest.approx(2 / 3)
        assert metrics[f"width-{level}"] == pytest.approx(2 * np.mean(widths[level]), rel=1e-6)
        later = {80: -0.02, 95: -0.005}[level]
        assert metrics[half_width(level, 0)] == pytest.approx(widths[level][-1] * np.exp(later))
    reported = {metric.name for metric in (*COVERAGES, *WIDTHS)}
    assert set(metrics) == {*reported, half_width(80, 0), half_width(95, 0)}


def test_each_step_ahead_has_separate_widths() -> None:
    rng = np.random.default_rng(0)
    error = torch.from_numpy(rng.normal(size=(3, 50, 2)) * [1, 10])
    validation, test = parts(48, 2)
    validation, test = validation.expand_as(error), test.expand_as(error)
    metrics = interval_metrics(error, validation, test)
    static = conformal_quantile(error.abs().numpy(), validation.numpy() > 0, 95)
    stored = {metric.name: values[1] for metric, values in metrics.items()}
    half_widths = kept_half_widths(stored, 3)
    assert half_widths.shape == (2, 3)
    assert half_widths[1, :2] == pytest.approx(static[1], rel=0.25)  # two values taught little
    assert np.isnan(half_widths[:, 2]).all()
    assert (half_widths[0, :2] <= half_widths[1, :2]).all()


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
