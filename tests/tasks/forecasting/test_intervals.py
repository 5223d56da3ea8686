"""Intervals of a cohort: coverage and width by hand, and what stays at the node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.core.metrics import Metric
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.intervals import (
    conformal_quantile,
    half_width,
    interval_metrics,
    is_half_width,
    kept_half_widths,
)
from fedproto_app.tasks.forecasting.metrics import COVERAGES, LEVELS, WIDTHS
from fedproto_app.tasks.forecasting.task import ForecastingTask


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
