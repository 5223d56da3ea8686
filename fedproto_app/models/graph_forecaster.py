"""Forecasters that read a vector g with each sample, computed at the server from all encodings.

CNFGNN's own (Meng, Rambhatla, Liu, KDD 2021) has a GRU that encodes and another that decodes. The
other is FUELS's, with g beside its representation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedproto_app.maths.window_layout import WEEK, WindowLayout
from fedproto_app.models.forecaster import DECODER, Forecaster
from fedproto_app.models.gru import gru_last_hidden, gru_parameters
from fedproto_app.models.linear import linear, linear_parameters
from fedproto_app.models.model import ENCODER, Model

_DECODING = DECODER + "gru."


class GraphForecaster(Model):
    """A model of guided samples [K, B, c + Q·H + 1 + d_g + j], see `guided`.

    encoding_width: d_h, the length of h, which the server receives. graph_width: d_g, the length
    of g, which it returns.
    """

    encoding_width: int
    graph_width: int

    def __init__(self, layout: WindowLayout, graph_width: int) -> None:
        self.layout, self.graph_width = layout, graph_width
        self._values = layout.width - layout.times

    @abstractmethod
    def encoding(self, parameters: Mapping[str, Tensor], samples: Tensor) -> Tensor:
        """Return h without g: [K, B, …] → [K, B, d_h], a GRU's state, so between -1 and 1."""

    def guided(self, samples: Tensor, phases: Tensor, graph: Tensor) -> Tensor:
        """Return samples [K, n, c + Q·H + j] with phase and g inserted after the values.

        phases: of the first target, [K, n]. graph: g, [K, n, d_g].
        """
        values, times = samples[..., : self._values], samples[..., self._values :]
        return torch.cat([values, phases.unsqueeze(2), graph, times], dim=2)

    def phase_of(self, samples: Tensor) -> Tensor:
        """Return the phase [K, B] of the first target of guided samples."""
        return samples[..., self._values]

    def graph_of(self, samples: Tensor) -> Tensor:
        """Return g [K, B, d_g] of guided samples."""
        return samples[..., self._values + 1 : self._values + 1 + self.graph_width]


class Seq2SeqForecaster(GraphForecaster):
    """CNFGNN's encoder and decoder GRUs.

    The encoder reads the c + Q·H values in the order of their times, each with its phase as a share
    of the period. The decoder starts at [h; g], reads the newest value and forecasts the next, and
    so on for several steps ahead. Where models see the day of the week, it follows the phase. At
    d_h = d_g = 64 without it there are 63,873 parameters: 13,056 of the encoder, 50,688 and 129 of
    the decoder.
    """

    def __init__(self, layout: WindowLayout, places: Sequence[int], hidden: int) -> None:
        """places: of the c + Q·H values, in steps from the first target on. hidden: d_h = d_g."""
        super().__init__(layout, hidden)
        self.encoding_width = hidden
        self._sees_days = layout.times > 1
        self._inputs = 2 + self._sees_days
        self.representation_dim = 2 * hidden + self._inputs
        self._order = sorted(range(len(places)), key=places.__getitem__)
        self._places = torch.tensor([places[column] for column in self._order])

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = gru_parameters(self.encoding_width, generator, self._inputs)
        return {ENCODER + name: value for name, value in drawn.items()}

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        width = self.encoding_width + self.graph_width
        decoding = gru_parameters(width, generator, self._inputs)
        last = linear_parameters(width, 1, generator)
        return {
            **{_DECODING + name: value for name, value in decoding.items()},
            **{DECODER + name: value for name, value in last.items()},
        }

    def encoding(self, parameters: Mapping[str, Tensor], samples: Tensor) -> Tensor:
        times = self._times(samples).unsqueeze(2)  # (K, B, 1, 1 or 2)
        read = self._read(samples[..., self._order], times, self._places.to(samples.device))
        return gru_last_hidden(parameters, ENCODER, read.flatten(2))

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Return the decoder's start: [h; g], the newest value, the first target's time."""
        (samples,) = inputs
        newest = samples[..., self.layout.close - 1, None]
        encoding = self.encoding(parameters, samples)
        return torch.cat([encoding, self.graph_of(samples), newest, self._times(samples)], dim=2)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        state, inputs = torch.split(
            representation, [self.encoding_width + self.graph_width, self._inputs], dim=2
        )
        newest, times, forecasts = inputs[..., 0], inputs[..., 1:], []
        for step in range(self.layout.horizon):
            read = self._read(newest, times, step - 1)
            state = gru_last_hidden(parameters, _DECODING, read, state)
            newest = linear(parameters, DECODER, state).squeeze(2)
            forecasts.append(newest)
        return torch.stack(forecasts, dim=2)

    def _times(self, samples: Tensor) -> Tensor:
        """Return the first target's phase, and its day where models see it, [K, B, 1 or 2]."""
        phase = self.phase_of(samples).unsqueeze(2)
        return torch.cat([phase, samples[..., -1:]], dim=2) if self._sees_days else phase

    def _read(self, values: Tensor, times: Tensor, ahead: Tensor | int) -> Tensor:
        """Return each value with its time as shares of period and week, [..., 2 or 3].

        times: of a reference step. ahead: the number of steps from it to the values.
        """
        period = self.layout.period
        steps = times[..., 0] + ahead
        columns = [values, steps.remainder(period) / period]
        if self._sees_days:
            columns.append((times[..., 1] + steps.div(period, rounding_mode="floor")) % WEEK / WEEK)
        return torch.stack(columns, dim=-1)


class GuidedForecaster(GraphForecaster):
    """FUELS's forecaster, whose decoder gets g after r; h is r."""

    def __init__(self, representation_dim: int, layout: WindowLayout, graph_width: int) -> None:
        super().__init__(layout, graph_width)
        self.encoding_width = representation_dim
        self.representation_dim = representation_dim + graph_width + layout.calendar_width
        self._forecaster = Forecaster(representation_dim, layout)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._forecaster.encoder_parameters(generator)

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = linear_parameters(self.representation_dim, self.layout.horizon, generator)
        return {DECODER + name: value for name, value in drawn.items()}

    def encoding(self, parameters: Mapping[str, Tensor], samples: Tensor) -> Tensor:
        return self._forecaster.encode(parameters, samples)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        encoding, calendar = self.encoding(parameters, samples), self.layout.calendar(samples)
        return torch.cat([encoding, self.graph_of(samples), calendar], dim=2)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        return linear(parameters, DECODER, representation)
