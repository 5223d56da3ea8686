"""What every data source hands over: one client's series on the source's clock."""

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
    start: position of ``values[0]`` on the source's clock, in sampling steps. Two values of two
        clients with equal positions were measured at the same time, and positions that are equal
        modulo the period have the same phase (hour of the day), which is what aligns the rows of
        prototypes across clients.
    clock: which times the positions are, None where the source only counts.
    group: the client's true group where the source knows it (synthetic data), else "".
    """

    name: str
    values: NDArray[np.float64]
    start: int = 0
    group: str = ""
    clock: Clock | None = None
