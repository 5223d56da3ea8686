"""Columns known in advance: the covariates of a series, its holidays and its time of the year.

A source gives them beside the values, as a long table and a user's function do, or a table of
covariates gives them for all sources. Holidays and harmonics of the year are functions of time, so
they are known at any position of a clock, and are always the last columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, did_you_mean, optional
from fedproto_app.data.clock import Clock, Matrix
from fedproto_app.data.files import missing
from fedproto_app.data.format import Candidate, Fit, all_formats
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import require_available
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import text_of

HOLIDAY_COLUMNS = ("holiday", "holiday-before", "holiday-after")
YEAR_COLUMNS = ("year-cos-1", "year-sin-1", "year-cos-2", "year-sin-2")
_MOST_MISSING = 0.2  # of the rows up to a client's last value
_DAY = np.timedelta64(1, "D")


def with_known_columns(
    clients: Sequence[ClientSeries], settings: DataSettings, where: str
) -> list[ClientSeries]:
    """Return the clients with the columns that the settings name, all with the same ones.

    where: the source's name in messages. A missing value takes the last value before it in its
    column, and a note says how many do. After the last value the columns end where the first of
    them ends. Raises `DataError` for a column that is not there, that misses more than a fifth of a
    client's rows, or whose times do not fit.
    """
    given = sorted({column for client in clients for column in client.columns})
    if not given and not settings.has_known:
        return list(clients)
    series = list(clients)
    if settings.known:
        chosen = {c for c in given if any(column.gives(c) for column in settings.known_columns)}
        series = [
            _selected(client, [c for c in client.columns if c in chosen]) for client in series
        ]
    if settings.covariates:
        series = _with_covariates(series, settings, where)
    for client in series[1:]:
        if differing := sorted({*client.columns} ^ {*series[0].columns}):
            has, lacks = (client, series[0])[:: 1 if differing[0] in client.columns else -1]
            raise DataError(
                f"{where}: client {lacks.name!r} has no column {differing[0]!r}, but client "
                f"{has.name!r} has; all clients need the same columns known in advance"
            )
    columns = series[0].columns
    for column in settings.known_columns:
        if not any(map(column.gives, columns)):
            _refuse_missing(column.name, given, settings, where)
    # An order that is the same at every site, wherever its columns come from.
    order = [c for column in settings.known_columns for c in columns if column.gives(c)]
    order = order or sorted(columns)
    if order:
        series = _filled([_selected(client, order) for client in series], where)
    return [with_calendar(client, settings, where=where) for client in series]


def _refuse_missing(name: str, given: Sequence[str], settings: DataSettings, where: str) -> None:
    """Raise `DataError` for a column of ``data.known`` that is not among those of the source."""
    if not given:
        raise DataError(
            f"data.known = {settings.known!r}: {where} has no columns beside the clients' values; "
            "put those that are known in advance into a table of their own, data.covariates"
        )
    names = [column.partition("=")[0] for column in given]
    require_available([name], list(dict.fromkeys(names)), "known", "column", where)


def _selected(series: ClientSeries, columns: Sequence[str]) -> ClientSeries:
    """Return the series with these of its known columns alone, in this order."""
    places = [series.columns.index(column) for column in columns]
    return replace(series, columns=tuple(columns), known=series.known[:, places])


def _with_covariates(
    clients: Sequence[ClientSeries], settings: DataSettings, where: str
) -> list[ClientSeries]:
    """Return the clients with the columns of the table ``data.covariates`` after their own."""
    path = Path(settings.covariates)
    tables = {series.name: series for series in _covariates(path, clients, settings)}
    shared = tables.get("")
    names = [client.name for client in clients]
    if shared is None and not set(tables) & set(names):
        raise DataError(
            f"data.covariates: {path} is of the clients {text_of(list(tables)[:5])}, none of which "
            f"is in {where}, which has {text_of(names[:5])}"
        )
    targets = {client.table.values if client.table else "" for client in clients}
    if not any(targets):  # every client is a column
        targets = set(names)
    for table in tables.values():
        if twice := [column for column in table.columns if column in targets]:
            raise DataError(
                f"data.covariates: column {twice[0]!r} of {path} is what is forecast; name the "
                "others in data.known"
            )
    return [_joined(client, shared or tables.get(client.name), path) for client in clients]


def _covariates(
    path: Path, clients: Sequence[ClientSeries], settings: DataSettings
) -> list[ClientSeries]:
    """Return the columns of a table that the clients lack: a series for each client, or one."""
    if not path.exists():
        raise DataError(f"data.covariates: {missing(path)}")
    candidate = Candidate(path)
    readers = [form for form in all_formats().values() if form.covariates is not None]
    best = max(readers, key=lambda form: form.fit(candidate))
    if best.fit(candidate) is Fit.NONE or best.covariates is None:
        raise DataError(f"data.covariates: {path} is no table; a CSV, Parquet or Excel file is")
    lacking = [
        column.text
        for column in settings.known_columns
        if not any(map(column.gives, clients[0].columns))
    ]
    if settings.known and not lacking:
        raise DataError(
            f"data.covariates: data.known = {settings.known!r} names no column of {path} beside "
            "those that the source has"
        )
    counts = settings.time_unit == "auto" and all(client.clock is None for client in clients)
    changes = {
        "path": str(path),
        "known": text_of(lacking),
        "covariates": "",
        "clients": "",
        "missing": "gap",
        "header": "auto",
        "delimiter": "auto",
        "decimal": "auto",
        "time_unit": "step" if counts else settings.time_unit,
    }
    return list(best.covariates(settings.model_copy(update=changes)))


def _joined(client: ClientSeries, table: ClientSeries | None, path: Path) -> ClientSeries:
    """Return the client with the columns of a table of covariates after its own."""
    if table is None:
        raise DataError(f"data.covariates: {path} has no row of client {client.name!r}")
    if twice := sorted({*client.columns} & {*table.columns}):
        raise DataError(
            f"data.known: column {twice[0]!r} is in the source and in {path}; rename one of them"
        )
    kinds = _clock_text(client), _clock_text(table)
    if kinds[0] != kinds[1]:
        raise DataError(
            f"data.covariates: {path} has {kinds[1]}, but client {client.name!r} has {kinds[0]}; "
            "write both on one clock"
        )
    end = table.end - client.start
    if client.values.size and (table.start >= client.end or end <= 0):
        raise DataError(
            f"data.covariates: {path} goes from {_time(table, table.start)} to "
            f"{_time(table, table.end - 1)}, where client {client.name!r} has no values, which go "
            f"from {_time(client, client.start)} to {_time(client, client.end - 1)}"
        )
    rows = max(len(client.values), len(client.known), end)
    known = np.full((rows, len(client.columns) + len(table.columns)), np.nan)
    known[: len(client.known), : len(client.columns)] = client.known[:, : len(client.columns)]
    first = max(0, table.start - client.start)
    known[first:end, len(client.columns) :] = table.known[first + client.start - table.start :]
    return replace(client, known=known, columns=(*client.columns, *table.columns))


def _clock_text(series: ClientSeries) -> str:
    """Return the kind of a series' times in words, the same for times that can be compared."""
    clock = series.clock
    if clock is None:
        return "counted steps"
    past = f" and {clock.offset.item()} past a whole step" if clock.offset else ""
    return f"{'times in UTC' if clock.utc else 'local times'} {clock.step.item()} apart{past}"


def _time(series: ClientSeries, position: int) -> str:
    return str(position) if series.clock is None else series.clock.time(position)


def _filled(clients: Sequence[ClientSeries], where: str) -> list[ClientSeries]:
    """Return the clients with the last value before it for each missing value, and a note."""
    counts: Counter[str] = Counter()
    filled, gaps = [], 0
    for client in clients:
        is_missing = np.isnan(client.known)
        present = np.flatnonzero(np.isfinite(client.values))
        first, end = (int(present[0]), int(present[-1]) + 1) if present.size else (0, 0)
        shares = is_missing[first:end].mean(axis=0) if end else np.zeros(len(client.columns))
        if (shares > _MOST_MISSING).any():
            worst = int(shares.argmax())
            raise DataError(
                f"{where}: client {client.name!r}: column {client.columns[worst]!r} misses "
                f"{shares[worst]:.0%} of the rows up to its last value, more than "
                f"{_MOST_MISSING:.0%}"
            )
        complete = np.flatnonzero(~is_missing.any(axis=1))
        rows = max(len(client.values), int(complete[-1]) + 1 if complete.size else 0)
        known = _carried(client.known[:rows])
        were_filled = (is_missing[:rows] & ~np.isnan(known)).sum(axis=0)
        gaps += bool(were_filled.any())
        counts.update(dict(zip(client.columns, were_filled.tolist(), strict=True)))
        filled.append(replace(client, known=known))
    if not gaps:
        return filled
    texts = ", ".join(f"{count} of {column!r}" for column, count in counts.items() if count)
    note = f"missing values of columns known in advance take the last value before: {texts}"
    return [replace(client, notes=(*client.notes, note)) for client in filled]


def _carried(known: Matrix) -> Matrix:
    """Return the columns [T', k] with the last value before in place of a missing one.

    Missing values at the start stay NaN.
    """
    rows = np.arange(len(known))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(known), -1, rows), axis=0)
    columns = np.arange(known.shape[1])
    return np.where(last >= 0, known[np.maximum(last, 0), columns], np.nan)


def with_calendar(
    series: ClientSeries, settings: DataSettings, steps: int = 0, where: str = "the data"
) -> ClientSeries:
    """Return the series with the columns that are functions of time, instead of those it has.

    steps: how far after the last value they go if the series has no other columns, because they go
    only as far as the others do. Raises `DataError` for times without dates.
    """
    names = calendar_names(settings)
    if not names:
        return series
    others = _selected(series, [c for c in series.columns if c not in names])
    rows = len(others.known) if others.columns else len(series.values) + steps
    if series.clock is None:
        key = "holidays" if settings.holidays else "calendar"
        raise DataError(
            f"data.{key} = {getattr(settings, key)!r}: needs times with dates, and {where} has none"
        )
    columns = calendar_columns(series.clock, series.start + np.arange(rows), settings)
    past = others.known if others.columns else np.empty((rows, 0))
    known = np.concatenate([past, columns], axis=1)
    return replace(series, known=known, columns=(*others.columns, *names))


def calendar_names(settings: DataSettings) -> tuple[str, ...]:
    """Return the names of the columns that are functions of time."""
    holidays = HOLIDAY_COLUMNS if settings.holidays else ()
    return (*holidays, *(YEAR_COLUMNS if settings.calendar == "year" else ()))


def calendar_columns(clock: Clock, positions: NDArray[np.int64], settings: DataSettings) -> Matrix:
    """Return the columns `calendar_names` at positions [n] of a clock, [n, k].

    Every client has the harmonics of the year, also one with a shorter history. The response stage
    leaves them out if no client has a year, because then they say nothing but when a value was.
    """
    moments = clock.moments(positions)
    blocks = [np.empty((len(positions), 0))]
    if settings.holidays:
        blocks.append(_holidays(clock, moments, settings))
    if settings.calendar == "year":
        year = moments.astype("datetime64[Y]")
        begin, end = year.astype("datetime64[us]"), (year + 1).astype("datetime64[us]")
        angle = 2 * np.pi * ((moments - begin) / (end - begin))
        waves = [wave(number * angle) for number in (1, 2) for wave in (np.cos, np.sin)]
        blocks.append(np.stack(waves, axis=1))
    return np.concatenate(blocks, axis=1)


def _holidays(clock: Clock, moments: NDArray[np.datetime64], settings: DataSettings) -> Matrix:
    """Return 1 where the local day of a time [n] is a holiday, the day before, or after, [n, 3].

    Times in UTC are of the days of ``data.time-zone`` if it is set, else of days in UTC.
    """
    import pandas as pd

    if clock.step > _DAY:
        raise DataError(
            f"data.holidays = {settings.holidays!r}: a step of {clock.step.item()} is longer than "
            "the day that a holiday is"
        )
    if clock.utc and settings.time_zone:
        local = pd.DatetimeIndex(moments).tz_localize("UTC").tz_convert(settings.time_zone)
        moments = local.tz_localize(None).to_numpy(dtype="datetime64[us]")
    days = moments.astype("datetime64[D]")
    if not len(days):
        return np.empty((0, 3))
    first, last = days.min() - _DAY, days.max() + _DAY
    years = [int(str(day.astype("datetime64[Y]"))) for day in (first, last)]
    free = _free_days(settings.holidays, range(years[0], years[1] + 1))
    shifts = (0, 1, -1)  # a holiday is today, tomorrow, or was yesterday
    flags = [np.isin(days + shift * _DAY, free) for shift in shifts]
    return np.stack(flags, axis=1).astype(np.float64)


@cache
def _free_days(region: str, years: range) -> NDArray[np.datetime64]:
    """Return the holidays of these years in a region such as DE or DE-BY."""
    holidays = optional("holidays", "holidays", f"data.holidays = {region!r}")
    country, _, part = region.partition("-")
    countries = holidays.list_supported_countries()
    if country not in countries:
        raise DataError(
            f"data.holidays = {region!r}: no country {country!r}; "
            f"{did_you_mean(country, list(countries))}expected a code such as DE"
        )
    if part and part not in (parts := countries[country]):
        raise DataError(
            f"data.holidays = {region!r}: {country} has no part {part!r}; it has "
            f"{', '.join(parts) or 'none'}"
        )
    free = holidays.country_holidays(country, subdiv=part or None, years=years)
    return np.array(sorted(free), dtype="datetime64[D]")
