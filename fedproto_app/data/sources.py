"""The registry of sources of series.

A loader yields clients as its format gives them. This module does what is common to all sources:
it checks names and values, trims the ends and takes the first clients and steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.array_source import load_hdf5, load_npz
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import PathKind, chosen, chosen_loader
from fedproto_app.data.synthetic_traffic import load_synthetic_traffic
from fedproto_app.data.table_source import load_folder, load_long, load_wide
from fedproto_app.settings import DataSettings

Loader = Callable[[DataSettings], Iterable[ClientSeries]]

SOURCES: dict[str, Loader] = {
    "wide-csv": load_wide,
    "long-csv": load_long,
    "csv-folder": load_folder,
    "wide-parquet": load_wide,
    "long-parquet": load_long,
    "parquet-folder": load_folder,
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
# In these sources, each client has a separate date range, so max-steps counts from its own start.
_OWN_STARTS = ("csv-folder", "parquet-folder", "long-csv", "long-parquet")


def load_series(settings: DataSettings) -> list[ClientSeries]:
    """Return all clients of the source, in the source's order.

    A client that is too short, constant or without any value is loaded too (its values may be
    empty), so that one bad client does not stop the others. Raises `DataError` naming the file or
    source, and the client or column, if something cannot be read.
    """
    clients, steps = _checked_clients(settings), settings.max_steps
    if settings.source in _OWN_STARTS:
        shortened = (replace(series, values=series.values[: steps or None]) for series in clients)
        trimmed = [_trimmed(series) for series in shortened]
    else:
        trimmed = _first_steps([_trimmed(series) for series in clients], steps)
    return [_up_to_window(series, settings) for series in trimmed] if settings.backtest else trimmed


def load_histories(settings: DataSettings) -> list[ClientSeries]:
    """Return the clients as `load_series` does, but keep gaps at the end of a series.

    Forecasts start after the end of the source, which is the same for all columns of a file.
    """
    return [from_first_value(series) for series in _checked_clients(settings)]


def _checked_clients(settings: DataSettings) -> list[ClientSeries]:
    """Return the source's clients, checked; an error hints at settings that may read the file."""
    try:
        return _read(settings)
    except DataError as error:
        if settings.source not in FILE_SOURCES or not Path(settings.path).exists():
            raise
        from fedproto_app.data.recognition import advice  # knows all formats, so slow to import

        if not (hint := advice(settings)):
            raise
        raise DataError(f"{error}; {hint}") from None


def _read(settings: DataSettings) -> list[ClientSeries]:
    loader, where = chosen_loader(settings, SOURCES, FILE_SOURCES)
    loaded = loader(settings)
    if not isinstance(loaded, Iterable):
        raise DataError(
            f"{where}: returned {type(loaded).__name__}, expected an iterable of ClientSeries"
        )
    clients: dict[str, ClientSeries] = {}
    series_with_names = (_require_name(item, where) for item in loaded)
    for raw in chosen(series_with_names, lambda series: series.name, settings, where):
        series = _checked(raw, where)
        if series.name in clients:
            raise DataError(f"{where}: two clients are named {series.name!r}")
        clients[series.name] = series
    if not clients:
        raise DataError(f"{where}: no client in it")
    return list(clients.values())


def _require_name(series: object, where: str) -> ClientSeries:
    """Return the series; raise `DataError` if it is not a `ClientSeries` with a name."""
    if not isinstance(series, ClientSeries):
        raise DataError(f"{where}: gave a {type(series).__name__}, expected a ClientSeries")
    if not isinstance(series.name, str) or not series.name.strip():
        raise DataError(f"{where}: client name {series.name!r}: expected a text that is not empty")
    return series


def _checked(series: ClientSeries, where: str) -> ClientSeries:
    """Return the series with a float64 copy of its values; raise `DataError` if it is invalid."""
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
    """Return the series from its first present value to its last."""
    series_from_first = from_first_value(series)
    present = np.flatnonzero(np.isfinite(series_from_first.values))
    return (
        replace(series_from_first, values=series_from_first.values[: present[-1] + 1])
        if present.size
        else series_from_first
    )


def from_first_value(series: ClientSeries) -> ClientSeries:
    """Return the series from its first present value on."""
    present = np.flatnonzero(np.isfinite(series.values))
    if not present.size:
        return replace(series, values=series.values[:0])
    first = int(present[0])
    return replace(series, values=series.values[first:], start=series.start + first)


def _up_to_window(series: ClientSeries, settings: DataSettings) -> ClientSeries:
    """Return the series up to the end of the backtest's window."""
    end = math.floor(len(series.values) * settings.used_share + 1e-9)
    return _trimmed(replace(series, values=series.values[:end]))


def _first_steps(clients: list[ClientSeries], steps: int) -> list[ClientSeries]:
    """Return the series cut after `steps` steps of the source's clock (0 = all)."""
    starts = [series.start for series in clients if series.values.size]
    if steps == 0 or not starts:
        return clients
    end = min(starts) + steps
    return [
        _trimmed(replace(series, values=series.values[: max(0, end - series.start)]))
        for series in clients
    ]
