"""The blocks that a sample of a series consists of, and the inputs that models derive from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

MOST_PHASES = 24  # most columns for a period. In a longer one several steps share a column
WEEK = 7

Samples = TypeVar("Samples", Tensor, NDArray[np.float32])


@dataclass(frozen=True)
class Blocks:
    """The named blocks of samples.

    close: [..., c], the newest values, oldest first. lagged: [..., Q, H], for each of the Q
    distances, longest first, the values at this distance before each of the H targets. times:
    [..., j], the numbers that give the first target's time. `beside` turns them into a calendar.
    """

    layout: WindowLayout
    close: Tensor
    lagged: Tensor
    times: Tensor

    def beside(self, ahead: int = 0, *, constant: bool = False) -> Tensor:
        """Return inputs known in advance for the target `ahead` steps after the first [..., m].

        This is the calendar: 1 in the columns of the target's phase and of its day of the week,
        else 0. constant: whether samples without a calendar get a 1 in its place [..., 1], so that
        a linear model always has an intercept.
        """
        layout = self.layout
        if not layout.times:
            return self.close.new_ones((*self.close.shape[:-1], int(constant)))
        numbers = self.times.long()
        steps = numbers[..., 0] + ahead
        phases, *days = layout.calendar_widths
        columns = [one_hot(steps % layout.period * phases // layout.period, phases)]
        if days:
            columns.append(one_hot((numbers[..., 1] + steps // layout.period) % WEEK, WEEK))
        return torch.cat(columns, dim=-1).to(self.times.dtype)


@dataclass(frozen=True)
class WindowLayout:
    """Where the blocks lie in samples [..., c + Q·H + j], which `data.windows` builds.

    close: c. distances: Q. horizon: H, the number of targets of a sample. period: in steps. times:
    j, the number of last columns, which give the first target's time: none, its phase of the
    period, or the phase and the number of its period modulo 7.

    A method may put further columns between the values and the times of its samples, because
    `blocks` reads the values from the front and the times from the end. `split` reads only the
    times.
    """

    close: int
    distances: int
    horizon: int
    period: int
    times: int

    @property
    def values(self) -> int:
        """The number of past values in a sample, c + Q·H."""
        return self.close + self.distances * self.horizon

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.values + self.times

    @property
    def calendar_widths(self) -> tuple[int, ...]:
        """The numbers of columns for the phase and for the day of the week, if there are any."""
        return (min(self.period, MOST_PHASES), WEEK)[: self.times]

    @property
    def beside_width(self) -> int:
        """m, the number of columns of `Blocks.beside`."""
        return sum(self.calendar_widths)

    @property
    def past_regressors(self) -> int:
        """The number of `regressors` that are past values, c + Q. These come first."""
        return self.close + self.distances

    @property
    def regressor_width(self) -> int:
        """d, the number of `regressors`."""
        return self.past_regressors + (self.beside_width or 1)

    def blocks(self, samples: Tensor) -> Blocks:
        """Return the blocks of these samples, as views."""
        lagged = samples[..., self.close : self.values]
        lagged = lagged.unflatten(-1, (self.distances, self.horizon))  # type: ignore[no-untyped-call]
        return Blocks(self, samples[..., : self.close], lagged, self.split(samples)[1])

    def split(self, samples: Samples) -> tuple[Samples, Samples]:
        """Return all columns before the times, such as the values, and the times [..., j]."""
        end = samples.shape[-1] - self.times
        return samples[..., :end], samples[..., end:]

    def with_beside(self, samples: Tensor) -> Tensor:
        """Return the values and the first target's `Blocks.beside` [..., c + Q·H + m]."""
        return torch.cat([self.split(samples)[0], self.blocks(samples).beside()], dim=-1)

    def regressors(self, samples: Tensor) -> Tensor:
        """Return the regressors of a linear forecast of each target [..., H, d].

        These are the close values, the values at the distances before the target, and the target's
        `Blocks.beside`, or 1 if there is no calendar.
        """
        return torch.stack(list(self.each_regressors(samples)), dim=-2)

    def each_regressors(self, samples: Tensor) -> Iterator[Tensor]:
        """Yield the `regressors` [..., d] one target at a time, which takes less memory."""
        blocks = self.blocks(samples)
        for ahead in range(self.horizon):
            beside = blocks.beside(ahead, constant=True)
            yield torch.cat([blocks.close, blocks.lagged[..., ahead], beside], dim=-1)

    def regressor_copies(self, weights: Tensor) -> Tensor:
        """Return the coefficients [k, H, d] of forecasts that are weighted means of past values.

        weights: [k, 1 + Q], for the newest value and the values at the Q distances. These are next
        to each other in the `regressors`.
        """
        coefficients = weights.new_zeros(len(weights), self.horizon, self.regressor_width)
        coefficients[:, :, self.close - 1 : self.past_regressors] = weights[:, None]
        return coefficients
