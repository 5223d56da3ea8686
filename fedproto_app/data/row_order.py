"""Sort the rows of a client, or of a file of clients, by time, and keep each time once.

When clocks go back in autumn, local times have an hour twice. With ``data.time-zone`` they are
converted to UTC, and both hours are kept. Without it, the values of the two hours are averaged, so
that later rows keep their local time of day. The hour that clocks skip in spring is missing.

Other rows with the same time are kept once if their values agree, and otherwise refused. Times
that a logger wrote a little late are rounded to the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, did_you_mean
from fedproto_app.data.clock import Matrix, Stamps, Times, sampling_step
from fedproto_app.settings.choice import Repeated

RowName = Callable[[int], str]

SORTED = "rows were not in the order of time and are sorted"
_HOUR = np.timedelta64(1, "h")
# Clocks go back on a Sunday night in these months: April in the south, the others in the north.
_MONTHS_BACK = (4, 9, 10, 11)
_SUNDAY = 6
_LAST_HOUR_BACK = 3  # the latest hour of the day that can occur twice
# The usual steps of loggers, in seconds.
_ROUND_STEPS = np.array(
    [1, 2, 5, 10, 15, 20, 30, *(60 * n for n in (1, 2, 5, 10, 12, 15, 20, 30))]
    + [3600 * n for n in (1, 2, 3, 4, 6, 8, 12, 24)]
)
_LARGEST_JITTER = 0.05  # as a share of a step; times farther off are refused


def row_number(place: int) -> str:
    """Return the name in messages of the row at this place in the file."""
    return f"row {place + 1}"


@dataclass(frozen=True)
class FileRows:
    """The rows of one client, or of several clients in one table, in the order of the file.

    stamps: the times [T], or None if the file has none. values: [T, N + k], a column for each
    client, then k columns known in advance. clients: the names of the N clients. where: the name of
    the file in messages. row: returns the name of a row in messages from its place in the file.
    places: the place of each row in the file, [T], by default 0 to T − 1. notes: what a person
    should know of how the file was read.
    """

    stamps: Stamps | None
    values: Matrix
    where: object
    clients: Sequence[str] = ()
    row: RowName = row_number
    places: NDArray[np.intp] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimedRows:
    """Rows sorted by time.

    stamps: [T]. values: [T, N + k]. places: the place of each row in the file, [T]. notes: what a
    person should know of how the rows were sorted. counts: further notes, each with the number of
    rows that it applies to. `with_counts` adds up these numbers over all clients.
    """

    stamps: Stamps
    values: Matrix
    places: NDArray[np.intp]
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def with_counts(rows: Sequence[TimedRows]) -> list[TimedRows]:
    """Return the rows of all clients. For each count, a note gives its total over clients."""
    counts: Counter[str] = Counter()
    for of_client in rows:
        counts.update(of_client.counts)
    notes = tuple(f"{note}: {count:,}" for note, count in counts.items() if count)
    return [replace(of_client, notes=(*of_client.notes, *notes)) for of_client in rows]


class TimeTwice(DataError):
    """Two rows have the same time and different values. rows: their places in the file."""

    def __init__(self, message: str, rows: tuple[int, int]) -> None:
        super().__init__(message)
        self.rows = rows


def in_order(rows: FileRows, zone: str = "", repeated: Repeated = "refuse") -> TimedRows:
    """Return the rows sorted by time, with each time once. The rows must have times.

    zone: the zone of local times, such as Europe/Berlin, or "". repeated: what to do with rows that
    have the same time and different values.

    Raises `TimeTwice` for such rows if `repeated` refuses them. Raises `DataError` for a missing
    time, for an unknown zone, for a local time that the zone skips, and for a local time that
    occurs twice if the order of the rows does not tell the two apart.
    """
    stamps, values, where, row = rows.stamps, rows.values, rows.where, rows.row
    assert stamps is not None  # rows without times are in order already
    in_file = np.arange(len(stamps.times)) if rows.places is None else rows.places
    if (missing := np.isnat(stamps.times)).any():
        raise DataError(f"{where}: {row(int(in_file[missing.argmax()]))} has no time")
    if zone:
        stamps = _in_utc(stamps, zone, where, lambda place: row(int(in_file[place])))
    notes, places = (*rows.notes, *stamps.notes), in_file
    if (stamps.times[1:] < stamps.times[:-1]).any():
        _, firsts = np.unique(stamps.times, return_index=True)
        notes = (*notes, SORTED) if (np.diff(firsts) < 0).any() else notes
        order = np.argsort(stamps.times, kind="stable")
        stamps, values = replace(stamps, times=stamps.times[order]), values[order]
        places = in_file[order]
    ordered = _rounded(TimedRows(stamps, values, places, notes))
    if (ordered.stamps.times[1:] > ordered.stamps.times[:-1]).all():
        return ordered
    unique, counts = np.unique(ordered.stamps.times, return_counts=True)
    is_local = not stamps.utc and not stamps.is_count
    if is_local and (nights := _hours_twice(unique, counts)) is not None:
        note = (
            f"the hour from {nights[0].item():%Y-%m-%d %H:%M} comes twice, as clocks went back"
            f"{f', and so on {len(nights) - 1} other nights' if len(nights) > 1 else ''}: its "
            "values are averaged (set data.time-zone to keep both)"
        )
        firsts = np.cumsum(counts) - counts
        means = _of_groups(ordered.values, counts, "mean")
        return replace(
            ordered,
            stamps=replace(stamps, times=unique),
            values=means,
            places=ordered.places[firsts],
            notes=(*ordered.notes, note),
        )
    return _each_time_once(ordered, counts, where, row, repeated)


def _each_time_once(
    rows: TimedRows,
    counts: NDArray[np.intp],
    where: object,
    row: RowName,
    repeated: Repeated,
) -> TimedRows:
    """Return one row for each time. A missing value is taken from another row of the same time.

    counts: the number of rows for each time, in the order of time. repeated: which value to take if
    values differ. If it is "refuse", raises `TimeTwice`.
    """
    firsts = np.cumsum(counts) - counts
    lowest = np.fmin.reduceat(rows.values, firsts)
    wrong = lowest < np.fmax.reduceat(rows.values, firsts)
    if repeated != "refuse":
        lowest = np.where(wrong, _of_groups(rows.values, counts, repeated), lowest)
    elif wrong.any():
        group, column = (int(place) for place in np.argwhere(wrong)[0])
        alike = np.arange(firsts[group], firsts[group] + counts[group])
        present = alike[np.isfinite(rows.values[alike, column])]
        values = rows.values[present, column]
        contrary = int(np.flatnonzero(values != values[0])[0])
        first_row, second_row = int(rows.places[present[0]]), int(rows.places[present[contrary]])
        time, times = rows.stamps.times[firsts[group]], int(wrong.any(axis=1).sum())
        more = f" (in all {times} times do)" if times > 1 else ""
        zone = "; if clocks went back then, set data.time-zone" if _may_be_set_back(time) else ""
        raise TimeTwice(
            f"{where}: the time {time.item()} comes twice with different values, "
            f"{values[0]:.15g} in {row(first_row)} and {values[contrary]:.15g} in {row(second_row)}"
            f"{more}{'' if rows.stamps.utc or rows.stamps.is_count else zone}",
            (first_row, second_row),
        )
    contradicting = int((counts - 1)[wrong.any(axis=1)].sum())
    further_counts = {
        "rows left out that repeat the time and values of another": int((counts - 1).sum())
        - contradicting,
        f"rows with equal times but different values, whose {repeated} is taken": contradicting,
    }
    return TimedRows(
        replace(rows.stamps, times=rows.stamps.times[firsts]),
        lowest,
        rows.places[firsts],
        rows.notes,
        rows.counts | further_counts,
    )


def _rounded(rows: TimedRows) -> TimedRows:
    """Return the rows with times rounded to whole steps since 1970, if all are close to such steps.

    A row farther from a step is left out if it holds no value. If such a row holds a value, no time
    is rounded, and the clock later refuses the irregular times.
    """
    times = rows.stamps.times
    distances = np.diff(times)
    if rows.stamps.is_count or not len(distances) or not (distances > np.timedelta64(0)).any():
        return rows
    is_regular = (distances == distances[0]).all()
    later = distances[:1] if is_regular else distances[distances > np.timedelta64(0)]
    usual = np.median(later.astype(np.int64)) / 1e6
    seconds = int(_ROUND_STEPS[np.abs(_ROUND_STEPS - usual).argmin()])
    step = np.timedelta64(seconds * 1_000_000, "us")
    if abs(seconds - usual) > _LARGEST_JITTER * seconds:
        return rows
    since_first = distances[:1] if is_regular else times - times[0]
    if not (since_first % step).astype(np.int64).any():  # regular, only not from midnight on
        return rows
    late = (times - np.datetime64(0, "us") + step // 2) % step - step // 2
    stray = np.abs(late) > _LARGEST_JITTER * step
    if (stray & np.isfinite(rows.values).any(axis=1)).any():
        return rows
    is_near, notes = ~stray, rows.notes
    if count := int(stray.sum()):
        first = times[int(stray.argmax())].item()
        notes = (*notes, f"rows left out between the steps, without a value: {count}, at {first}")
    rounded = int((late[is_near] != np.timedelta64(0)).sum())
    return TimedRows(
        replace(rows.stamps, times=(times - late)[is_near]),
        rows.values[is_near],
        rows.places[is_near],
        notes,
        {f"times a little off the step of {step.item()}, rounded to it": rounded},
    )


def _of_groups(values: Matrix, counts: NDArray[np.intp], take: Literal["mean", "last"]) -> Matrix:
    """Return for each group of rows the mean, or the last, of the values that are present.

    counts: the number of rows in each group.
    """
    import pandas as pd

    groups = pd.DataFrame(values).groupby(np.repeat(np.arange(len(counts)), counts))
    return groups.agg(take).to_numpy()


def _hours_twice(unique: Times, counts: NDArray[np.intp]) -> Times | None:
    """Return the beginnings of the hours that occur twice because clocks went back.

    When clocks go back, every time in one hour of a Sunday night occurs twice, and no other time
    does. Return None if repeated times have another cause. unique: increasing times. counts: how
    often each of them occurs.
    """
    step = sampling_step(unique)
    if step is None or step > _HOUR or counts.max() > 2:
        return None
    hours = unique.astype("datetime64[h]")
    begins = np.unique(hours[counts == 2])
    inside = np.isin(hours, begins)
    days = begins.astype("datetime64[D]")
    if (inside != (counts == 2)).any() or len(np.unique(days)) < len(days):
        return None
    return begins if all(map(_may_be_set_back, begins)) else None


def _may_be_set_back(local: np.datetime64) -> bool:
    """Return whether clocks may go back at this local time."""
    time: datetime = local.item()  # type: ignore[assignment]
    is_hour = time.weekday() == _SUNDAY and time.hour <= _LAST_HOUR_BACK
    return is_hour and time.month in _MONTHS_BACK


def _in_utc(stamps: Stamps, zone: str, where: object, row: RowName) -> Stamps:
    """Return local times in UTC. Rows may be in descending order of time."""
    import pandas as pd

    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = did_you_mean(zone, sorted(available_timezones()))
        raise DataError(
            f"data.time-zone = {zone!r}: unknown; {near}expected a name such as Europe/Berlin"
        ) from None
    if stamps.utc or stamps.is_count:
        kind = "numbers of steps" if stamps.is_count else "an offset or count from 1970"
        raise DataError(f"{where}: data.time-zone is for local times, but its times are {kind}")
    is_backward = 2 * (np.diff(stamps.times) < np.timedelta64(0)).sum() >= len(stamps.times)
    direction = slice(None, None, -1 if is_backward else 1)
    local = pd.DatetimeIndex(stamps.times)
    readings = [
        local.tz_localize(zone, ambiguous=np.full(len(local), is_summer), nonexistent="NaT")
        for is_summer in (True, False)
    ]
    times, winter = readings
    if (never := np.asarray(times.isna())).any():
        place = int(never.argmax())
        raise DataError(
            f"{where}: {local[place]} in {row(place)} does not exist in {zone}, as clocks went "
            "forward; leave data.time-zone out if times are of another zone"
        )
    if (twice := np.asarray(times != winter)).any():
        try:  # the order of rows shows which are in summer time
            times = local[direction].tz_localize(zone, ambiguous="infer")
            are_in_order = times.is_monotonic_increasing
        except Exception:  # ValueError in pandas 3, an error of pytz in pandas 2
            are_in_order = False
        if not are_in_order:
            place = int(twice.argmax())
            in_utc = (str(reading[place].tz_convert("UTC")) for reading in readings)
            raise DataError(
                f"{where}: {local[place]} in {row(place)} may be {' or '.join(in_utc)}, as clocks "
                f"went back in {zone}, and the order of the rows does not show which; write times "
                "with an offset, or leave data.time-zone out to take them as written"
            )
        times = times[direction]
    naive = times.tz_convert("UTC").tz_localize(None)
    return Stamps(naive.to_numpy(dtype="datetime64[us]"), utc=True)
