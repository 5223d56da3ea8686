"""A forecast that is linear in fixed, random functions of what is known.

Random Fourier features (Rahimi and Recht, NeurIPS 2007) make a closed form non-linear. They are
drawn from the run's seed, so all clients have the same ones and nobody sends them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.models.model import Model

_SCALES = (1.0, 0.5)  # of the values in the waves: finer and coarser ones


class RandomFeatureForecaster(Model):
    """ŷ_h = (newest value) + w_h · φ(x) of samples [K, B, c + Q·H + j].

    φ(x), [D], is the representation. First in it are the plain features u: every other value less
    the newest one, the newest one, the calendar of the first target or a 1. Then come, for each
    scale σ, `width` waves √2 · cos(u R + b) / √width, with b uniform on the circle and R of
    N(0, 1), times σ/√(number of values) for values. Waves are bounded, so they cannot extrapolate.
    """

    def __init__(self, layout: WindowLayout, width: int, generator: torch.Generator) -> None:
        values = layout.width - layout.times
        self._layout, self.values = layout, values
        self.plain_width = values + (layout.calendar_width or 1)
        self.representation_dim = self.plain_width + len(_SCALES) * width
        self._amplitude = math.sqrt(2 / width) if width else 0.0
        scale = torch.ones(self.plain_width, len(_SCALES))
        scale[:values] = torch.tensor(_SCALES) * values**-0.5
        draws = torch.randn(self.plain_width, len(_SCALES), width, generator=generator)
        self._directions = (draws * scale.unsqueeze(2)).flatten(start_dim=1)
        self._phases = 2 * math.pi * torch.rand(len(_SCALES) * width, generator=generator)

    @property
    def newest(self) -> int:
        """Which of the features is the newest value."""
        return self.values - 1

    def repeating(self, weights: Tensor) -> Tensor:
        """[k, plain, H] the coefficients of forecasts that are weighted means of known values.

        weights: [k, 1 + Q], each with sum 1, of the newest value and of those at the Q distances.
        """
        layout = self._layout
        coefficients = weights.new_zeros(len(weights), self.plain_width, layout.horizon)
        for step in range(layout.horizon):
            columns = layout.close - 1 + step + layout.horizon * torch.arange(layout.distances)
            coefficients[:, columns, step] = weights[:, 1:]
        return coefficients

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {COEFFICIENTS: torch.zeros(self._layout.horizon, self.representation_dim)}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        layout = self._layout
        newest = samples[..., layout.close - 1 : layout.close]
        others = torch.cat(
            [samples[..., : layout.close - 1], samples[..., layout.close : self.values]], dim=-1
        )
        known = layout.calendar(samples) if layout.times else torch.ones_like(newest)
        plain = torch.cat([others - newest, newest, known], dim=-1)
        angles = plain @ self._directions.to(samples.device) + self._phases.to(samples.device)
        return torch.cat([plain, self._amplitude * angles.cos()], dim=-1)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        newest = representation[..., self.newest : self.newest + 1]
        steps: Tensor = representation @ parameters[COEFFICIENTS].transpose(1, 2)
        return newest + steps
