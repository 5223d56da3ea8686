"""The smoother of heads that a run's settings choose."""

from __future__ import annotations

from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.head_smoothing import (
    ForgettingMean,
    HeadSmoother,
    KalmanSmoothing,
    NoSmoothing,
    RunningMean,
)


def make_smoother(settings: FedReactSettings) -> HeadSmoother:
    """A new smoother as ``fed-react.smoothing`` names it."""
    match settings.smoothing:
        case "none":
            return NoSmoothing()
        case "mean":
            return RunningMean()
        case "forgetting":
            return ForgettingMean()
        case "kalman":
            return KalmanSmoothing(
                settings.process_variance, settings.measurement_variance, settings.em_iterations
            )
