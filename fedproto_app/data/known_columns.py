"""Columns known in advance: the covariates of a series, its holidays and its time of the year.

Some sources, such as a long table and a user's function, give covariates beside the values. For any
source, a separate table can give them. Holidays and harmonics of the year are functions of time, so
they have values at any position of a clock. They are always the last columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, did_you_mean, optional
from fedproto_app.data.clock import DAY, Clock, Matrix
from fedproto_app.data.files import missing
from fedproto_app.data.format import Candidate, CovariateReader, Fit, all_formats
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import require_available
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import KnownColumn, text_of

HOLIDAY_COLUMNS = ("holiday", "holiday-before", "holiday-after")
YEAR_COLUMNS = ("year-cos-1", "year-sin-1", "year-cos-2", "year-sin-2")
_MOST_MISSING = 0.2  # largest missing share of the rows up to a client's last value
_OTHER_UNIT = 100  # a column this many times as large as the median client's has another unit
_MOST_MOVED = 168  # most steps by which a column may be the shifted target


@dataclass(frozen=True)
class KnownTable:
    """A table of columns known in advance, beside the source.

    name: the table's path or another name in messages. key: the setting or option that gave it,
    such as data.covariates.
    """

    name: str
    key: str
    read: CovariateReader


def with_known_columns(
    clients: Sequence[ClientSeries],
    settings: DataSettings,
    where: str,
    steps: int = 0,
    future: KnownTable | None = None,
) -> list[ClientSeries]:
    """Return the clients with the columns that the settings name, the same for all clients.

    A gap in a column is filled with the last value before it, and a note gives the number of gaps.
    A column that ends before a client's last value is not continued.

    where: the source's name in messages. steps: for how many steps after the last value the
    functions of time are computed. future: a table whose rows after the last value replace the
    source's rows. Its earlier rows only fill gaps of the source.

    Raises `DataError` if a column does not exist, lacks more than a fifth of its rows, or has times
    that do not fit.
    """
    clock = clients[0].clock if clients else None
    if settings.calendar == "week" and clock is not None and clock.is_of_calendar:
        raise DataError(
            f"data.calendar = 'week': models see a weekday where a period is a day, but a step of "
            f"{where} is {clock.rhythm}; phase is the place in the period"
        )
    available = sorted({column for client in clients for column in client.columns})
    series = list(clients)
    if not available and not settings.has_known:
        return series
    if settings.known:
        chosen = {c for c in available if any(k.gives(c) for k in settings.known_columns)}
        series = [
            _selected(client, [c for c in client.columns if c in chosen]) for client in series
        ]
    if settings.covariates:
        series = _with_covariates(series, settings, where, must_meet=future is None)
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
            _refuse_missing(column.name, available, settings, where)
    # The order must be the same at every site, wherever the columns come from.
    order = [c for column in settings.known_columns for c in columns if column.gives(c)]
    order = order or sorted(columns)
    if order:
        series = [_selected(client, order) for client in series]
        series = _with_future(series, future, steps, settings, where) if future else series
        series = _filled(series, where)
    return [with_calendar(client, settings, steps, where) for client in series]


def as_trained(settings: DataSettings, columns: Sequence[str]) -> DataSettings:
    """Return settings that read the columns that a model was trained with, in the same order.

    A column of texts becomes one column for each text seen in training. For any other text, all
    of these are 0.
    """
    listed = {column.name for column in settings.known_columns}
    texts: dict[str, list[str]] = {}
    for column in columns:
        name, sign, text = column.partition("=")
        if column in calendar_names(settings):
            continue
        if sign and name in listed:
            texts.setdefault(name, []).append(text)
        else:
            texts[column] = []
    listed_columns = (
        KnownColumn(name, tuple(listed), bool(listed)) for name, listed in texts.items()
    )
    known_text = text_of(column.text for column in listed_columns)
    return settings.model_copy(update={"known": known_text})


def _refuse_missing(
    name: str, available: Sequence[str], settings: DataSettings, where: str
) -> None:
    """Raise `DataError` if the source does not have a column that ``data.known`` names."""
    if not available:
        raise DataError(
            f"data.known = {settings.known!r}: {where} has no columns beside the clients' values; "
            "put those that are known in advance into a table of their own, data.covariates"
        )
    names = [column.partition("=")[0] for column in available]
    require_available([name], list(dict.fromkeys(names)), "known", "column", where)


def _selected(series: ClientSeries, columns: Sequence[str]) -> ClientSeries:
    """Return the series with only these known columns, in this order."""
    places = [series.columns.index(column) for column in columns]
    return replace(series, columns=tuple(columns), known=series.known[:, places])


def _with_covariates(
    clients: Sequence[ClientSeries], settings: DataSettings, where: str, *, must_meet: bool
) -> list[ClientSeries]:
    """Return the clients with the columns of the table ``data.covariates`` after their own.

    must_meet: whether some times in the table must be times at which the client has values.
    """
    table = table_in(Path(settings.covariates), "data.covariates")
    lacking = [
        column.text
        for column in settings.known_columns
        if not any(map(column.gives, clients[0].columns))
    ]
    if settings.known and not lacking:
        raise DataError(
            f"data.covariates: data.known = {settings.known!r} names no column of {table.name} "
            "beside those that the source has"
        )
    columns = _read(table, lacking, clients, settings, where)
    _require_no_target(columns.values(), clients, table.name)
    joined = []
    for client in clients:
        of_client = columns.get("") or columns.get(client.name)
        if of_client is None:
            raise DataError(f"data.covariates: {table.name} has no row of client {client.name!r}")
        if twice := sorted({*client.columns} & {*of_client.columns}):
            raise DataError(
                f"data.known: column {twice[0]!r} is in the source and in {table.name}; rename one "
                "of them"
            )
        _require_clock(client, of_client, table.name)
        if must_meet:
            _require_common_times(client, of_client, table.name)
        rows = max(len(client.values), len(client.known), of_client.end - client.start)
        blocks = [_placed(series, client, rows) for series in (client, of_client)]
        columns_of_both = (*client.columns, *of_client.columns)
        joined.append(replace(client, known=np.hstack(blocks), columns=columns_of_both))
    return joined


def _require_no_target(
    tables: Iterable[ClientSeries], clients: Sequence[ClientSeries], name: str
) -> None:
    """Raise `DataError` if a table of covariates has the column that is to be forecast."""
    targets = {client.table.values if client.table else "" for client in clients}
    if not any(targets):  # every client is a column
        targets = {client.name for client in clients}
    for table in tables:
        if twice := [column for column in table.columns if column in targets]:
            raise DataError(
                f"data.covariates: column {twice[0]!r} of {name} is what is forecast; name the "
                "others in data.known"
            )


def _with_future(
    clients: Sequence[ClientSeries],
    table: KnownTable,
    steps: int,
    settings: DataSettings,
    where: str,
) -> list[ClientSeries]:
    """Return the clients with this many rows of a table after their last value.

    Earlier rows of the table fill gaps of the clients.
    """
    texts = [column.text for column in settings.known_columns]
    try:
        columns = _read(table, texts, clients, settings, where)
        extended = []
        for client in clients:
            of_client = columns.get("") or columns.get(client.name)
            if of_client is None:
                extended.append(client)
                continue
            _require_clock(client, of_client, table.name)
            of_client = with_columns(of_client, client.columns, table.name)
            end = len(client.values)
            rows, past = _placed(of_client, client, end + steps), client.known[:end]
            past = np.where(np.isnan(past), rows[:end], past)
            notes = (*client.notes, *(f"{table.name}: {note}" for note in of_client.notes))
            client = replace(client, known=past, notes=notes)
            extended.append(client.with_future(rows[end:]))
    except DataError as error:
        raise DataError(str(error).replace("data.covariates", table.key)) from None
    return extended


def with_columns(series: ClientSeries, columns: Sequence[str], where: str) -> ClientSeries:
    """Return the series with only the columns that a model was trained with, in the same order.

    Raises `DataError` if the series lacks one. where: the name of the data in messages.
    """
    for column in columns:
        if column not in series.columns:
            raise DataError(
                f"{where}: no column {column!r}, with which the models were trained; it has "
                f"{', '.join(series.columns) or 'no column known in advance'}"
            )
    return _selected(series, columns)


def table_in(path: Path, key: str) -> KnownTable:
    """Return the table in a file. Raises `DataError` if there is none. key: as in `KnownTable`."""
    if not path.exists():
        raise DataError(f"{key}: {missing(path)}")
    candidate = Candidate(path)
    readers = [form for form in all_formats().values() if form.covariates is not None]
    best = max(readers, key=lambda form: form.fit(candidate))
    if best.fit(candidate) is Fit.NONE or best.covariates is None:
        raise DataError(f"{key}: {path} is no table; a CSV, Parquet or Excel file is")
    return KnownTable(str(path), key, best.covariates)


def _read(
    table: KnownTable,
    columns: Sequence[str],
    clients: Sequence[ClientSeries],
    settings: DataSettings,
    where: str,
) -> Mapping[str, ClientSeries]:
    """Return these columns of a table by client. The key is "" if all clients share them.

    columns: as ``data.known`` names them. Raises `DataError` if no client is in the table.
    """
    clock = next((client.clock for client in clients if client.clock is not None), None)
    counts = settings.time_unit == "auto" and clock is None
    changes = {
        "path": table.name,
        "known": text_of(columns),
        "covariates": "",
        "clients": "",
        "missing": "gap",
        "header": "auto",
        "delimiter": "auto",
        "decimal": "auto",
        "time_unit": "step" if counts else settings.time_unit,
    }
    read = table.read(settings.model_copy(update=changes), clock)
    of_clients = {series.name: series for series in read}
    names = [client.name for client in clients]
    if "" not in of_clients and not set(of_clients) & set(names):
        raise DataError(
            f"data.covariates: {table.name} is for the clients {text_of(list(of_clients)[:5])}, "
            f"but {where} has only {text_of(names[:5])}"
        )
    return of_clients


def _placed(table: ClientSeries, client: ClientSeries, rows: int) -> Matrix:
    """Return the table's known columns at the times of a client's first rows, [rows, k].

    They are NaN where the table has no row.
    """
    placed = np.full((rows, len(table.columns)), np.nan)
    ahead = table.start - client.start
    first, end = max(0, ahead), min(rows, ahead + len(table.known))
    if first < end:
        placed[first:end] = table.known[first - ahead : end - ahead]
    return placed


def _require_common_times(client: ClientSeries, table: ClientSeries, name: str) -> None:
    """Raise `DataError` if the client has no values at any time in the table."""
    if client.values.size and (table.start >= client.end or table.end <= client.start):
        raise DataError(
            f"data.covariates: {name} goes from {table.when(0)} to "
            f"{table.when(len(table.values) - 1)}, but the values of client {client.name!r} go "
            f"from {client.when(0)} to {client.when(len(client.values) - 1)}"
        )


def _clock_text(series: ClientSeries) -> str:
    """Return in words the kind of a series' times. Only times of the same kind can be compared."""
    clock = series.clock
    if clock is None:
        return "counted steps"
    zone = "times in UTC" if clock.utc else "local times"
    if clock.is_of_calendar:
        return f"{zone}, {clock.words}"
    past = f" and {clock.offset.item()} past a whole step" if clock.offset else ""
    return f"{zone} {clock.step.item()} apart{past}"


def _require_clock(client: ClientSeries, table: ClientSeries, name: str) -> None:
    """Raise `DataError` if the table's times are of another kind or step than the client's."""
    kinds = _clock_text(client), _clock_text(table)
    if kinds[0] != kinds[1]:
        raise DataError(
            f"data.covariates: {name} has {kinds[1]}, but client {client.name!r} has {kinds[0]}; "
            "write both on one clock"
        )


def _filled(clients: Sequence[ClientSeries], where: str) -> list[ClientSeries]:
    """Return the clients with a note, and with each gap filled with the value before it.

    A column that ends before the client's values is not continued. Gaps after the values stay, so
    that a forecast that needs them is refused.
    """
    import pandas as pd

    counts: Counter[str] = Counter()
    filled = []
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
        past, ahead = np.split(client.known, [len(client.values)])
        past = pd.DataFrame(past).ffill(limit_area="inside").to_numpy()
        were_filled = is_missing[: len(past)] & ~np.isnan(past)
        counts.update(dict(zip(client.columns, were_filled.sum(axis=0).tolist(), strict=True)))
        filled.append(replace(client, known=np.concatenate([past, ahead])))
    texts = ", ".join(f"{count} of {column!r}" for column, count in counts.items() if count)
    if not texts:
        return filled
    note = f"missing values of columns known in advance, filled with the value before: {texts}"
    return [replace(client, notes=(*client.notes, note)) for client in filled]


@dataclass(frozen=True)
class Beside:
    """A table's column, beside the columns of values, that the user may know in advance.

    steps: for how many steps it continues after the newest value of any client, as the median over
    clients. why_not: why it cannot be used, or "".
    """

    name: str
    steps: int = 0
    why_not: str = ""


def judged(name: str, clients: Sequence[ClientSeries]) -> Beside:
    """Judge whether a column could be known in advance. name: its name in ``data.known``.

    The clients' values must end with the newest value of any client.
    """
    columns = clients[0].columns
    places = [place for place, c in enumerate(columns) if KnownColumn(name).gives(c)]
    steps, varies = [], False
    shares: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for client in clients:
        cells, present = client.known[:, places], np.flatnonzero(np.isfinite(client.values))
        if not present.size:
            continue
        is_missing = np.asarray(np.isnan(cells).any(axis=1))
        complete = cells[~is_missing]
        shares[client.name] = float(is_missing[present[0] : present[-1] + 1].mean())
        sizes[client.name] = float(np.sqrt((complete**2).mean())) if complete.size else 0.0
        varies |= bool(complete.size and (np.ptp(complete, axis=0) > 0).any())
        ahead = np.flatnonzero(~is_missing[len(client.values) :])
        steps.append(int(ahead[-1]) + 1 if ahead.size else 0)
    why_not = ""
    worst = max(shares, key=shares.__getitem__, default="")
    largest = max(sizes, key=sizes.__getitem__, default="")
    usual = median_low(sizes.values()) if sizes else 0.0
    moved = _moved(clients[0], places[0]) if len(places) == 1 else None
    if not shares:
        why_not = "no client has a value"
    elif shares[worst] > _MOST_MISSING:
        why_not = f"misses {shares[worst]:.0%} of the rows of client {worst!r}"
    elif not varies:
        why_not = "is constant at every client"
    elif moved is not None:
        steps_away = f", moved by {moved} step{'s' * (moved > 1)}" if moved else ""
        why_not = f"is the values themselves{steps_away}"
    elif 0 < usual < sizes[largest] / _OTHER_UNIT:
        times = f"{sizes[largest] / usual:.0f} times as large as at others"
        why_not = f"is at client {largest!r} about {times}, as in another unit"
    return Beside(name, median_low(steps or [0]), why_not)


def _moved(client: ClientSeries, place: int) -> int | None:
    """Return by how many steps a column is the client's values shifted, or None if it is not."""
    values, column = client.values, client.known[: len(client.values), place]
    for distance in range(min(_MOST_MOVED, len(values) // 2) + 1):
        early, late = slice(0, len(values) - distance), slice(distance, None)
        for first, second in ((values[early], column[late]), (values[late], column[early])):
            present = np.isfinite(first) & np.isfinite(second)
            first, second = first[present], second[present]
            if first.size and np.ptp(first) > 0 and (first == second).all():
                return distance
    return None


def advice_on(columns: Sequence[Beside], option: str) -> list[str]:
    """Return lines that say which columns could be used as known in advance, and why others cannot.

    option: the option that names columns, such as "--set data.known=".
    """
    names: dict[str, list[str]] = {}
    for column in columns:
        why = column.why_not or f"for {column.steps} steps after the last value"
        if not column.steps and not column.why_not:
            why = "only if you know them before the values, as from a forecast; with measured "
            why += "columns the gain is an upper bound"
        names.setdefault(why, []).append(column.name)
    refused = {column.why_not for column in columns}
    return [
        f"not known in advance: {', '.join(of_why)} ({why})"
        if why in refused
        else f"could be known in advance: {', '.join(of_why)} ({why}): {option}{text_of(of_why)}"
        for why, of_why in names.items()
    ]


def with_calendar(
    series: ClientSeries, settings: DataSettings, steps: int = 0, where: str = "the data"
) -> ClientSeries:
    """Return the series with new columns that are functions of time, in place of any old ones.

    steps: how many steps after the last value the new columns reach, unless others reach further.
    Raises `DataError` if the times have no dates.
    """
    names = calendar_names(settings)
    if not names:
        return series
    covariates = _selected(series, [c for c in series.columns if c not in names])
    rows = max(len(covariates.known), len(series.values) + steps)
    if series.clock is None:
        key = "holidays" if settings.holidays else "calendar"
        raise DataError(
            f"data.{key} = {getattr(settings, key)!r}: needs times with dates, and {where} has none"
        )
    columns = calendar_columns(series.clock, series.start + np.arange(rows), settings)
    cells = np.hstack([_placed(covariates, series, rows), columns])
    return replace(series, known=cells, columns=(*covariates.columns, *names))


def calendar_names(settings: DataSettings) -> tuple[str, ...]:
    """Return the names of the columns that are functions of time."""
    holidays = HOLIDAY_COLUMNS if settings.holidays else ()
    return (*holidays, *(YEAR_COLUMNS if settings.calendar == "year" else ()))


def calendar_columns(clock: Clock, positions: NDArray[np.int64], settings: DataSettings) -> Matrix:
    """Return the columns `calendar_names` at positions [n] of a clock, [n, k].

    Every client has the harmonics of the year, even if its history is shorter. If no client has a
    year of values, the response stage leaves them out, because they would only tell when a value
    was measured.
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
    """Return three columns [n, 3]: is a time's local day a holiday, the day before or after one?

    Times in UTC are assigned to days of ``data.time-zone`` if it is set, else to days in UTC.
    """
    import pandas as pd

    if clock.months or clock.step > DAY:
        raise DataError(
            f"data.holidays = {settings.holidays!r}: a step of {clock.rhythm} is longer than the "
            "day that a holiday is"
        )
    if clock.utc and settings.time_zone:
        local = pd.DatetimeIndex(moments).tz_localize("UTC").tz_convert(settings.time_zone)
        moments = local.tz_localize(None).to_numpy(dtype="datetime64[us]")
    days = moments.astype("datetime64[D]")
    if not len(days):
        return np.empty((0, 3))
    first, last = days.min() - DAY, days.max() + DAY
    years = [int(str(day.astype("datetime64[Y]"))) for day in (first, last)]
    free = _free_days(settings.holidays, range(years[0], years[1] + 1))
    shifts = (0, 1, -1)  # a holiday is today, tomorrow, or was yesterday
    flags = [np.isin(days + shift * DAY, free) for shift in shifts]
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
