"""A forecast that is linear in fixed, random functions of what is known.

Random features (Rahimi and Recht, NeurIPS 2007) make a closed form non-linear. They are drawn from
the run's seed, so all clients have the same ones and nobody sends them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.models.model import Model


class RandomFeatureForecaster(Model):
    """ŷ_h = (newest value) + w_h · φ(x) of samples [K, B, c + Q·H + j].

    φ(x), [D], which is the representation, has three blocks: the plain features u (every other
    value less the newest one, the newest one, the calendar of the first target or a 1), then
    tanh(u R + b) and cos(u R' + b'), `width` of each, divided by √width. R is N(0, 1/values) for
    values and N(0, 1) for the calendar; b is N(0, 1), b' uniform on the circle.
    """

    def __init__(self, layout: WindowLayout, width: int, generator: torch.Generator) -> None:
        values = layout.width - layout.times
        self._layout, self._values = layout, values
        self.plain_width = values + (layout.calendar_width or 1)
        self.block_widths = (self.plain_width, width, width)
        self.representation_dim = sum(self.block_widths)
        scales = torch.ones(self.plain_width, 1)
        scales[:values] = values**-0.5
        draws = torch.randn(2, self.plain_width, width, generator=generator) * scales
        self._tanh, self._cos = draws
        self._tanh_offset = torch.randn(width, generator=generator)
        self._cos_offset = torch.rand(width, generator=generator) * 2 * math.pi

    @property
    def newest(self) -> int:
        """Which of the features is the newest value."""
        return self._values - 1

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {COEFFICIENTS: torch.zeros(self._layout.horizon, self.representation_dim)}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        layout, device = self._layout, samples.device
        newest = samples[..., layout.close - 1 : layout.close]
        others = torch.cat(
            [samples[..., : layout.close - 1], samples[..., layout.close : self._values]], dim=-1
        )
        known = layout.calendar(samples) if layout.times else torch.ones_like(newest)
        plain = torch.cat([others - newest, newest, known], dim=-1)
        root = math.sqrt(len(self._tanh_offset)) or 1.0
        bent = torch.tanh(plain @ self._tanh.to(device) + self._tanh_offset.to(device)) / root
        waves = torch.cos(plain @ self._cos.to(device) + self._cos_offset.to(device))
        return torch.cat([plain, bent, waves * math.sqrt(2) / root], dim=-1)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        newest = representation[..., self.newest : self.newest + 1]
        steps: Tensor = representation @ parameters[COEFFICIENTS].transpose(1, 2)
        return newest + steps
