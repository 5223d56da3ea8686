"""Load the series of any source, check and trim them, and limit their number and length.

A loader yields clients as they are in its format. This module does what all sources need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Matrix
from fedproto_app.data.files import require_room
from fedproto_app.data.format import all_sources
from fedproto_app.data.known_columns import Beside, KnownTable, judged, with_known_columns
from fedproto_app.data.recognition import advice
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import chosen, loaded_from
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import text_of


def load_series(settings: DataSettings) -> list[ClientSeries]:
    """Return all clients of the source, in the source's order.

    A client that is too short, constant or without any value is loaded too, so that one bad client
    does not stop the others. Its values may be empty. If something cannot be read, raises a
    `DataError` that names the file or source, and the client or column.
    """
    clients, steps = _checked_clients(settings), settings.max_steps
    source = all_sources().get(settings.source)
    if source is not None and source.form in ("long", "folder"):
        # Each client has its own range of dates, so its steps are counted from its own start.
        cut = [trimmed(series.part(0, steps or None)) for series in clients]
    else:
        cut = _first_steps([trimmed(series) for series in clients], steps)
    return [_up_to_window(series, settings) for series in cut] if settings.backtest else cut


def load_histories(
    settings: DataSettings, steps: int | None = None, future: KnownTable | None = None
) -> list[ClientSeries]:
    """Return the clients as `load_series` does, but keep gaps at the end (see `histories_of`).

    steps: how many steps ahead they are to be forecast, by default the horizon. future: as in
    `with_known_columns`.
    """
    ahead = settings.horizon if steps is None else steps
    return histories_of(_checked_clients(settings, ahead, future))


def histories_of(clients: Sequence[ClientSeries]) -> list[ClientSeries]:
    """Return the series from their first value to the end of the source, where forecasts begin.

    A source ends with its last row, but a long table ends with the newest value of any client. The
    later rows are steps to be forecast. They may hold only the weather of the next days.
    """
    histories = [from_first_value(client) for client in clients]
    if not all(client.table and client.table.clients for client in histories):
        return histories
    newest = max(trimmed(client).end for client in histories)
    return [client.part(0, newest - client.start) for client in histories]


def columns_beside(settings: DataSettings, names: Sequence[str]) -> list[Beside]:
    """Return for each of these columns whether it could be known in advance, and why not."""
    if not names:
        return []
    try:
        clients, _ = _read(settings.model_copy(update={"known": text_of(names), "covariates": ""}))
    except DataError as error:
        if len(names) > 1:
            return [beside for name in names for beside in columns_beside(settings, [name])]
        why_not = str(error).removeprefix(f"{settings.path}: ").removeprefix(f"column {names[0]!r}")
        return [Beside(names[0], why_not=why_not.lstrip(" ,:"))]
    return [judged(name, clients) for name in names]


def _checked_clients(
    settings: DataSettings, steps: int = 0, future: KnownTable | None = None
) -> list[ClientSeries]:
    """Return the source's clients, checked. An error suggests settings that may read the file."""
    try:
        clients, where = _read(settings)
    except DataError as error:
        if ":" in settings.source or not settings.path or not Path(settings.path).exists():
            raise
        if not (hint := advice(settings)):
            raise
        raise DataError(f"{error}; {hint}") from None
    return with_known_columns(clients, settings, where, steps, future)


def _read(settings: DataSettings) -> tuple[list[ClientSeries], str]:
    loaded, where = loaded_from(settings, "series")
    return checked_clients(loaded, settings, where), where


def checked_clients(loaded: object, settings: DataSettings, where: str) -> list[ClientSeries]:
    """Return the clients of a loader that the settings choose, with checked names and values.

    where: the source's name in messages. An error is a `DataError` that names the client.
    """
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
    series_of_clients = list(clients.values())
    if settings.known or settings.covariates or any(c.columns for c in series_of_clients):
        # Rows after the newest value of any client are the future, not missing values.
        up_to_last = [trimmed(client) for client in series_of_clients]
        ends = [client.end for client in up_to_last if client.values.size]
        series_of_clients = [
            c.part(0, max(ends) - c.start) if ends else c for c in series_of_clients
        ]
    return _with_zeros(series_of_clients) if settings.missing == "zero" else series_of_clients


def _with_zeros(clients: list[ClientSeries]) -> list[ClientSeries]:
    """Return the series with 0 in place of missing values.

    Each goes from its own first value to the last time of any client.
    """
    end = max(client.end for client in clients)
    from_first = [from_first_value(client) for client in clients]
    require_room(8 * sum(end - client.start for client in from_first if client.values.size), "data")
    return [_padded(client, end) for client in from_first]


def _padded(series: ClientSeries, end: int) -> ClientSeries:
    """Return the series up to a position on the clock, with 0 in place of missing values."""
    more = end - series.end if series.values.size else 0
    values = np.pad(np.nan_to_num(series.values, nan=0.0), (0, more))
    unknown = max(0, len(values) - len(series.known))
    padded = np.pad(series.known, ((0, unknown), (0, 0)), constant_values=np.nan)
    return replace(series, values=values, known=padded)


def _require_name(series: object, where: str) -> ClientSeries:
    """Return the series. Raises `DataError` if it is not a `ClientSeries` with a name."""
    if not isinstance(series, ClientSeries):
        raise DataError(f"{where}: gave a {type(series).__name__}, expected a ClientSeries")
    if not isinstance(series.name, str) or not series.name.strip():
        raise DataError(f"{where}: client name {series.name!r}: expected a text that is not empty")
    return series


def _checked(series: ClientSeries, where: str) -> ClientSeries:
    """Return the series with float64 copies of its arrays. Raises `DataError` if it is invalid."""
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
    in_advance = _checked_known(series, client)
    return replace(series, values=values, known=in_advance, start=int(series.start))


def _checked_known(series: ClientSeries, client: str) -> Matrix:
    """Return a float64 copy of the known columns [T', k]. Raises `DataError` if invalid."""
    cells = np.asarray(series.known)
    if cells.ndim != 2 or cells.shape[1] != len(series.columns) or cells.dtype.kind not in "iuf":
        raise DataError(
            f"{client}: known is {cells.dtype} {cells.shape}, expected numbers [T', "
            f"{len(series.columns)}], a column for each of its names"
        )
    if series.columns and len(cells) < len(series.values):
        raise DataError(
            f"{client}: {len(cells)} rows of known columns for {len(series.values)} values"
        )
    if np.isinf(cells).any():
        raise DataError(f"{client}: a known value is infinite")
    return cells.astype(np.float64)


def trimmed(series: ClientSeries) -> ClientSeries:
    """Return the series from its first present value to its last."""
    present = np.flatnonzero(np.isfinite(series.values))
    return from_first_value(series.part(0, int(present[-1]) + 1 if present.size else 0))


def from_first_value(series: ClientSeries) -> ClientSeries:
    """Return the series from its first present value on."""
    present = np.flatnonzero(np.isfinite(series.values))
    return series.part(int(present[0])) if present.size else series.part(0, 0)


def _up_to_window(series: ClientSeries, settings: DataSettings) -> ClientSeries:
    """Return the series up to the end of the backtest's window."""
    end = math.floor(len(series.values) * settings.used_share + 1e-9)
    return trimmed(series.part(0, end))


def _first_steps(clients: list[ClientSeries], steps: int) -> list[ClientSeries]:
    """Return the series cut after `steps` steps of the source's clock, or whole if that is 0."""
    starts = [series.start for series in clients if series.values.size]
    if steps == 0 or not starts:
        return clients
    end = min(starts) + steps
    return [trimmed(series.part(0, end - series.start)) for series in clients]
