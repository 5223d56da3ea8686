"""A forecaster of GRUs on top of each other, over a sample's values in the order of time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import DECODER
from fedproto_app.models.gru import gru_parameters, gru_states
from fedproto_app.models.model import ENCODER, LinearHeadModel


class StackedGru(LinearHeadModel):
    """r = the last state of the uppermost GRU, and the calendar of the first target beside it.

    Samples are [K, B, c + Q·H + j]. The values at the largest distance come first, the newest value
    last; each GRU reads the states of the one below.
    """

    def __init__(self, layers: int, hidden: int, layout: WindowLayout) -> None:
        super().__init__(hidden + layout.calendar_width, layout.horizon, DECODER)
        self._layers, self._hidden, self._layout = layers, hidden, layout

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {
            _layer(number) + name: value
            for number in range(self._layers)
            for name, value in gru_parameters(
                self._hidden, generator, self._hidden if number else 1
            ).items()
        }

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        layout = self._layout
        window = torch.cat([layout.distant_values(samples), layout.close_values(samples)], dim=2)
        states = [window]
        for number in range(self._layers):
            states = gru_states(parameters, _layer(number), torch.cat(states, dim=2))
        return torch.cat([states[-1], layout.calendar(samples)], dim=2)


def _layer(number: int) -> str:
    return f"{ENCODER}layer-{number}."
