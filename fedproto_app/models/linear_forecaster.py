"""A linear forecast: no encoder, one row of coefficients per step ahead."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import DECODER
from fedproto_app.models.model import Model

COEFFICIENTS = DECODER + "coefficients"


class LinearForecaster(Model):
    """ŷ_h = w_h · x_h of samples [K, B, c + Q·H + j], with the layout's regressors x_h.

    Its one parameter is [H, d], which starts at 0. The representation is the regressors, H·d.
    """

    def __init__(self, layout: WindowLayout) -> None:
        self.representation_dim = layout.horizon * layout.regressor_width
        self._layout = layout

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {COEFFICIENTS: torch.zeros(self._layout.horizon, self._layout.regressor_width)}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        return self._layout.regressors(samples).flatten(start_dim=2)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        coefficients = parameters[COEFFICIENTS]  # (K, H, d)
        regressors = representation.unflatten(2, coefficients.shape[1:])  # type: ignore[no-untyped-call]
        forecasts: Tensor = (regressors * coefficients.unsqueeze(1)).sum(dim=3)
        return forecasts
