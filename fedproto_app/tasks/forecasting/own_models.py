"""Models of methods that need a special model, for the windows that the settings choose."""

from __future__ import annotations

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import Forecaster
from fedproto_app.models.linear_forecaster import LinearForecaster
from fedproto_app.models.remembering import Remembering
from fedproto_app.settings import Settings


def linear(settings: Settings, layout: WindowLayout) -> LinearForecaster:
    """Return the model of the methods with closed-form solutions."""
    return LinearForecaster(layout)


def remembering(settings: Settings, layout: WindowLayout) -> Remembering:
    """Return the model of kNN-Per: FUELS's forecaster with an optional memory."""
    return Remembering(Forecaster(settings.model.representation_dim, layout), 0)
