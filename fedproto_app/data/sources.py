"""Where series come from: the one registry of data sources.

A loader yields clients as its format gives them; everything that all sources owe (unique names,
float64 without infinities, trimmed ends, the first clients and steps only) is done here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.choice import chosen
from fedproto_app.data.hdf5_source import load_hdf5
from fedproto_app.data.npz_source import load_npz
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import PathKind, chosen_loader
from fedproto_app.data.synthetic_traffic import load_synthetic_traffic
from fedproto_app.data.table_source import (
    load_csv_folder,
    load_long_csv,
    load_long_parquet,
    load_parquet_folder,
    load_wide_csv,
    load_wide_parquet,
)
from fedproto_app.settings import DataSettings

Loader = Callable[[DataSettings], Iterable[ClientSeries]]

SOURCES: dict[str, Loader] = {
    "wide-csv": load_wide_csv,
    "long-csv": load_long_csv,
    "csv-folder": load_csv_folder,
    "wide-parquet": load_wide_parquet,
    "long-parquet": load_long_parquet,
    "parquet-folder": load_parquet_folder,
    "hdf5": load_hdf5,
    "npz": load_npz,
    "synthetic-traffic": load_synthetic_traffic,
}
FILE_SOURCES: dict[str, PathKind] = {
    "wide-csv": "a file",
    "long-csv": "a file",
    "csv-folder": "a folder",
    "wide-parquet": "a file",
    "long-parquet": "a file or a folder",
    "parquet-folder": "a folder",
    "hdf5": "a file",
    "npz": "a file",
}
# In these, clients have dates of their own, so that the first steps of each are its own first.
_OWN_STARTS = ("csv-folder", "parquet-folder", "long-csv", "long-parquet")


def load_series(settings: DataSettings) -> list[ClientSeries]:
    """Every client of the source, in the source's order.

    A client that is too short, constant or without any value is loaded all the same (its values
    may be empty), so that one bad client does not cost the others. Raises `DataError` naming the
    file or source, and the client or column, for everything that cannot be read.
    """
    given, steps = _given(settings), settings.max_steps
    if settings.source in _OWN_STARTS:
        own = (replace(one, values=one.values[: steps or None]) for one in given)
        return [_trimmed(series) for series in own]
    return _first_steps([_trimmed(series) for series in given], steps)


def load_histories(settings: DataSettings) -> list[ClientSeries]:
    """As `load_series`, with the gap that a client has between its last value and the source's end.

    What is to be forecast comes after that end, which for all columns of a file is the same.
    """
    return [from_first_value(series) for series in _given(settings)]


def _given(settings: DataSettings) -> list[ClientSeries]:
    """Every client as its source gives it, checked; says what would read a table, if that is not
    what the settings say."""
    try:
        return _read(settings)
    except DataError as error:
        if settings.source not in FILE_SOURCES or not Path(settings.path).exists():
            raise
        from fedproto_app.data.recognition import advice  # knows all formats, so slow to import

        if not (told := advice(settings)):
            raise
        raise DataError(f"{error}; {told}") from None


def _read(settings: DataSettings) -> list[ClientSeries]:
    loader, where = chosen_loader(settings, SOURCES, FILE_SOURCES)
    loaded = loader(settings)
    if not isinstance(loaded, Iterable):
        raise DataError(
            f"{where}: returned {type(loaded).__name__}, expected an iterable of ClientSeries"
        )
    clients: dict[str, ClientSeries] = {}
    named = (_named(given, where) for given in loaded)
    for given in chosen(named, lambda one: one.name, settings, where):
        series = _checked(given, where)
        if series.name in clients:
            raise DataError(f"{where}: two clients are named {series.name!r}")
        clients[series.name] = series
    if not clients:
        raise DataError(f"{where}: no client in it")
    return list(clients.values())


def _named(series: object, where: str) -> ClientSeries:
    """The series; refuses what has no name and is no series at all."""
    if not isinstance(series, ClientSeries):
        raise DataError(f"{where}: gave a {type(series).__name__}, expected a ClientSeries")
    if not isinstance(series.name, str) or not series.name.strip():
        raise DataError(f"{where}: client name {series.name!r}: expected a text that is not empty")
    return series


def _checked(series: ClientSeries, where: str) -> ClientSeries:
    """The series with float64 values of its own; refuses what no loader may hand over."""
    client = f"{where}: client {series.name!r}"
    if not isinstance(series.group, str):
        raise DataError(f"{client}: group {series.group!r}: expected a text")
    if not isinstance(series.start, int | np.integer):
        raise DataError(f"{client}: start {series.start!r}: expected an integer")
    values = np.asarray(series.values)
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise DataError(f"{client}: values are {values.dtype} {values.shape}, expected numbers [T]")
    values = values.astype(np.float64)
    if np.isinf(values).any():
        step = int(np.argmax(np.isinf(values)))
        raise DataError(f"{client}: value number {step + 1} is infinite")
    return replace(series, values=values, start=int(series.start))


def _trimmed(series: ClientSeries) -> ClientSeries:
    """The series from its first present value to its last."""
    begun = from_first_value(series)
    present = np.flatnonzero(np.isfinite(begun.values))
    return replace(begun, values=begun.values[: present[-1] + 1]) if present.size else begun


def from_first_value(series: ClientSeries) -> ClientSeries:
    """The series from its first present value on."""
    present = np.flatnonzero(np.isfinite(series.values))
    if not present.size:
        return replace(series, values=series.values[:0])
    first = int(present[0])
    return replace(series, values=series.values[first:], start=series.start + first)


def _first_steps(clients: list[ClientSeries], steps: int) -> list[ClientSeries]:
    """Only the values in the first so many steps of the source's clock (0 = all)."""
    starts = [series.start for series in clients if series.values.size]
    if steps == 0 or not starts:
        return clients
    end = min(starts) + steps
    return [
        _trimmed(replace(series, values=series.values[: max(0, end - series.start)]))
        for series in clients
    ]
