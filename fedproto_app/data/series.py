"""The result of every source of series: one client's series on the source's clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import Clock


@dataclass(frozen=True)
class ClientSeries:
    """The raw series of one client.

    name: unique within its source; it seeds the client's randomness and names its state.
    values: [T] float64, regularly sampled, NaN where a value is missing.
    start: position of ``values[0]`` on the source's clock, in sampling steps. Equal positions of
        two clients are the same time, and positions that are equal modulo the period have the same
        phase (hour of the day); this aligns the rows of prototypes across clients.
    clock: the meaning of positions, None if the source has no times.
    group: the client's true group if the source knows it (synthetic data), else "".
    """

    name: str
    values: NDArray[np.float64]
    start: int = 0
    group: str = ""
    clock: Clock | None = None
