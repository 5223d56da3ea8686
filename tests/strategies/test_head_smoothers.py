"""What ``fed-react.smoothing`` chooses."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.clustered_heads import (
    ForgettingMean,
    HeadSmoother,
    KalmanSmoothing,
    NoSmoothing,
    RunningMean,
)
from fedproto_app.strategies.fed_react.strategy import make_smoother

SMOOTHINGS = FedReactSettings.model_fields["smoothing"].annotation


def estimates(smoother: HeadSmoother) -> list[float]:
    return [smoother.update(np.array([head]), 0.5).item() for head in (3.0, 6.0, 0.0)]


def test_the_settings_choose() -> None:
    kinds = [NoSmoothing, RunningMean, ForgettingMean, KalmanSmoothing]
    chosen = [make_smoother(FedReactSettings(smoothing=name)) for name in get_args(SMOOTHINGS)]
    assert [type(smoother) for smoother in chosen] == kinds


def test_the_settings_reach_the_kalman_filter() -> None:
    """q = 3, r = 1: gains 4/5, 19/24, 91/115."""
    settings = FedReactSettings(
        smoothing="kalman", process_variance=3, measurement_variance=1, em_iterations=0
    )
    second = 3 + 19 / 24 * 3
    assert estimates(make_smoother(settings)) == pytest.approx([3, second, second * 24 / 115])
    more = settings.model_copy(update={"em_iterations": 3})
    assert estimates(make_smoother(more)) == estimates(KalmanSmoothing(3, 1, 3))
