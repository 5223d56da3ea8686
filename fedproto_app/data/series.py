"""The result of every source of series: one client's series on the source's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import Clock, Matrix, Stamps, clock_of, on_the_clock, sampling_step


@dataclass(frozen=True)
class ColumnNames:
    """The names of a table's columns, "" for those that it lacks.

    values, clients: of a long table; in a wide one every client is a column of its name.
    """

    times: str = ""
    values: str = ""
    clients: str = ""


@dataclass(frozen=True)
class ClientSeries:
    """The raw series of one client.

    name: unique within its source; it seeds the client's randomness and names its state.
    values: [T] float64, regularly sampled, NaN where a value is missing.
    start: position of ``values[0]`` on the source's clock, in sampling steps. Equal positions of
        two clients are the same time, and positions that are equal modulo the period have the same
        phase (hour of the day); this aligns the rows of prototypes across clients.
    clock: the meaning of positions, None if the source has no times.
    columns: the columns of the table that the series comes from, None if it is no such table.
    group: the client's true group if the source knows it (synthetic data), else "".
    """

    name: str
    values: NDArray[np.float64]
    start: int = 0
    group: str = ""
    clock: Clock | None = None
    columns: ColumnNames | None = None


def columns_on_a_clock(
    names: Sequence[str],
    values: Matrix,
    stamps: Stamps | None,
    where: object,
    step: np.timedelta64 | None = None,
    row: Callable[[int], str] = lambda place: f"row {place + 1}",
    columns: ColumnNames | None = None,
) -> Iterator[ClientSeries]:
    """Yield a client for each column, on the regular grid of the step.

    values: [T, N]. step: the step shared with other files; None: the step of these stamps. Raises
    the same `DataError` as `on_the_clock`.
    """
    start, clock = 0, None
    if stamps is not None:
        step = step or sampling_step(stamps.times)
        values, start = on_the_clock(stamps.times, values, step, where, row)
        clock = None if stamps.is_count else clock_of(stamps.times, step, utc=stamps.utc)
    for name, column in zip(names, values.T, strict=True):
        yield ClientSeries(name, column, start, clock=clock, columns=columns)
