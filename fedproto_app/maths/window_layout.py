"""The columns of a sample of a series, and the inputs that models derive from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

MOST_PHASES = 24  # columns of a period; a longer one has one column for several steps
WEEK = 7


@dataclass(frozen=True)
class WindowLayout:
    """The columns of samples [..., c + Q·H + j].

    close: c, the newest values, oldest first. distances: Q; for each distance, longest first,
    follow the values at that distance before each of the H targets. times: j, the last columns,
    numbers of the first target's time: none, its phase of the period, or also the number of its
    period modulo 7.
    """

    close: int
    distances: int
    horizon: int
    period: int
    times: int

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.close + self.distances * self.horizon + self.times

    @property
    def calendar_width(self) -> int:
        """m, the columns of `calendar`."""
        return sum(self._kinds)

    @property
    def regressor_width(self) -> int:
        """d, the columns of `regressors`."""
        return self.close + self.distances + (self.calendar_width or 1)

    @property
    def _kinds(self) -> tuple[int, ...]:
        return (min(self.period, MOST_PHASES), WEEK)[: self.times]

    def close_values(self, samples: Tensor) -> Tensor:
        """Return the close values [..., c]."""
        return samples[..., : self.close]

    def distant_values(self, samples: Tensor) -> Tensor:
        """Return the distant values [..., Q·H], the H values of each distance side by side."""
        return samples[..., self.close : self.close + self.distances * self.horizon]

    def calendar(self, samples: Tensor, ahead: int = 0) -> Tensor:
        """Return the calendar [..., m] of the target `ahead` steps after the first.

        It is 1 in the columns of the target's phase and of its day of the week, else 0.
        """
        numbers = samples[..., samples.shape[-1] - self.times :].long()
        if not self.times:
            return samples[..., :0]
        steps = numbers[..., 0] + ahead
        phase = steps % self.period * self._kinds[0] // self.period
        columns = [one_hot(phase, self._kinds[0])]
        if self.times > 1:
            day = (numbers[..., 1] + steps // self.period) % WEEK
            columns.append(one_hot(day, WEEK))
        return torch.cat(columns, dim=-1).to(samples.dtype)

    def with_calendar(self, samples: Tensor) -> Tensor:
        """Return the values and the calendar of the first target, [..., c + Q·H + m]."""
        if not self.times:
            return samples
        return torch.cat([samples[..., : -self.times], self.calendar(samples)], dim=-1)

    def regressors(self, samples: Tensor) -> Tensor:
        """Return the regressors of a linear forecast of each target, [..., H, d].

        They are the close values, the values at the distances before the target, and its calendar,
        or 1 without a calendar.
        """
        return torch.stack(list(self.each_regressors(samples)), dim=-2)

    def each_regressors(self, samples: Tensor) -> Iterator[Tensor]:
        """Yield the `regressors` [..., d] target by target, which takes less memory."""
        values = self.distant_values(samples)
        distant = values.reshape(*values.shape[:-1], self.distances, self.horizon)
        for ahead in range(self.horizon):
            calendar = self.calendar(samples, ahead) if self.times else samples.new_ones(1)
            calendar = calendar.expand(*samples.shape[:-1], calendar.shape[-1])
            yield torch.cat([self.close_values(samples), distant[..., ahead], calendar], dim=-1)

    def regressor_copies(self, weights: Tensor) -> Tensor:
        """Return the coefficients [k, H, d] of forecasts that are weighted means of past values.

        weights: [k, 1 + Q], of the newest value and of the values at the Q distances, which are
        next to each other in the `regressors`.
        """
        coefficients = weights.new_zeros(len(weights), self.horizon, self.regressor_width)
        newest = self.close - 1
        coefficients[:, :, newest : newest + weights.shape[1]] = weights[:, None]
        return coefficients
