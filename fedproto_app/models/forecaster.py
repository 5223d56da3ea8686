"""Models for series: FUELS's model (A, section 4.1) with encoder and decoder, and a linear model.

FUELS's projector can be put on the representation of any encoder.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.gru import gru_last_hidden, gru_parameters
from fedproto_app.models.linear import linear, linear_parameters, with_prefixes
from fedproto_app.models.model import ENCODER, LinearHeadModel, Model

DECODER, PROJECTOR = "decoder.", "projector."
COEFFICIENTS = DECODER + "coefficients"  # of the linear forecaster
CLOSE, PERIODIC, _OUTLET = ENCODER + "close.", ENCODER + "periodic.", ENCODER + "outlet."


class Forecaster(LinearHeadModel):
    """FUELS's model: r = concat[GRU_c(close); GRU_p(periodic)] (P, eq. 2), samples [K, B, …].

    In each step, GRU_p reads the values at one distance before all H targets. The decoder computes
    H values from r and the m columns of the first target's calendar. The encoder does not see
    these, so that it represents only the series. With d_r = 256, H = 1 and m = 0 the encoder has
    exactly 100,608 values (A, Table 1) and the decoder 257.

    hidden: the width of each GRU, by default d_r / 2. If it differs, a linear layer maps both
    states to the d_r values of r.
    """

    sees_beside = True

    def __init__(self, representation_dim: int, layout: WindowLayout, hidden: int = 0) -> None:
        super().__init__(representation_dim, layout.horizon, DECODER, beside=layout.beside_width)
        self._layout, self._hidden = layout, hidden or representation_dim // 2
        self._has_outlet = 2 * self._hidden != representation_dim

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        parts = {
            CLOSE: gru_parameters(self._hidden, generator, 1),
            PERIODIC: gru_parameters(self._hidden, generator, self._layout.horizon),
        }
        if self._has_outlet:
            parts[_OUTLET] = linear_parameters(2 * self._hidden, self.representation_dim, generator)
        return with_prefixes(parts)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        blocks = self._layout.blocks(samples)
        states = torch.cat(
            [
                gru_last_hidden(parameters, CLOSE, blocks.close),
                gru_last_hidden(parameters, PERIODIC, blocks.lagged.flatten(-2)),
            ],
            dim=2,
        )
        return linear(parameters, _OUTLET, states) if self._has_outlet else states


def projector_parameters(
    representation_dim: int, prototype_dim: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return one client's initial projector d_r → d_p without the client axis, {} if d_p = 0."""
    if not prototype_dim:
        return {}
    return with_prefixes(
        {PROJECTOR: linear_parameters(representation_dim, prototype_dim, generator)}
    )


def project(parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
    """Return r' = pr(r): [K, B, d_r] → [K, B, d_p]. If there is no projector, r' = r (P)."""
    if PROJECTOR + "weight" not in parameters:
        return representation
    return linear(parameters, PROJECTOR, representation)


class LinearForecaster(Model):
    """A linear forecast ŷ_h = w_h · x_h without an encoder, for samples [K, B, …].

    x_h are the layout's regressors. The only parameter is w [H, d], which starts at 0. The H·d
    regressors are the representation.
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
