"""Series out of a pandas DataFrame: a column a client, the index its times or mere positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.data.clock import clock_of, on_the_clock, sampling_step
from fedproto_app.data.series import ClientSeries
from fedproto_app.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame


def series_of(frame: DataFrame) -> list[ClientSeries]:
    """The clients in the order of the columns; NaN is a missing value.

    Times with a zone are counted in UTC, others as they are; an index of another kind only counts.
    Raises `DataError` for columns that are no numbers or have a name in common, and for times that
    are unordered, repeated or irregular.
    """
    import pandas as pd

    names = [str(name) for name in frame.columns]
    if len(set(names)) != len(names):
        raise DataError(f"the frame: two columns have one name: {names}")
    for name, kind in zip(names, frame.dtypes, strict=True):
        if kind.kind not in "iuf":
            raise DataError(f"the frame: column {name!r} holds {kind}, expected numbers")
    values, start, clock = frame.to_numpy(dtype=np.float64), 0, None
    if isinstance(frame.index, pd.DatetimeIndex):
        utc = frame.index.tz is not None
        naive = frame.index.tz_convert("UTC").tz_localize(None) if utc else frame.index
        times = naive.to_numpy(dtype="datetime64[us]")
        step = sampling_step(times)
        values, start = on_the_clock(times, values, step, "the frame")
        clock = clock_of(times, step, utc=utc)
    return [
        ClientSeries(name, values[:, column], start, clock=clock)
        for column, name in enumerate(names)
    ]
