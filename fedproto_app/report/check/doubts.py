"""Raise doubts about what values and classes mean. Each doubt is a line that says what to do.

A run accepts doubtful data. But if they contain a code for missing values, a meter's total or a
copy of another client, the run's answer is wrong. The data themselves do not say what they mean. A
false alarm costs trust, so each rule states its conditions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import DAY
from fedproto_app.data.empty_times import empty_times_text
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.sequences.pool import NO_CLASS, SequencePool
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import cut_of, lookback, why_refused
from fedproto_app.report.check.findings import LARGEST_VALUE, listed, most_affected
from fedproto_app.settings import DataSettings

_FEWEST_REPEATS = 5  # times that a value far from the others must occur to be a code
_FEWEST_VALUES = 100  # changes that a series needs to be a counter
_MOST_RESETS = 0.01  # share of a counter's changes that may be falls
_FEWEST_RISES = 0.2  # share of a counter's changes that must be rises
_FEWEST_ZEROS = 24  # zeros in a row at an end of a series
_FEWEST_REPEATED = 48  # values in a row that equal those of a period, or of seven, before
_WINDOW = 32  # values in a row that are looked for in other series
_WINDOWS = 8  # windows of a series, from which those to look for are chosen
_FEWEST_DISTINCT = 4  # different values in a window, or in a part that repeats
_EQUAL = 0.95  # share of the values that a copy has in common with the original
_MOST_SUMMED = 500  # clients. Among more, totals and multiples are not looked for
_SUM_ERROR = 0.05  # share of a total's changes that its parts may miss, because of rounding
_SMALLEST_REST = 0.002  # share of a series' changes. With a smaller rest it is a multiple
_UNIT_JUMP = 20.0  # times. From hours to days it is 24, and a series that just grows takes longer
_FEWEST_AROUND_A_JUMP = 2  # periods
_FEWEST_BESIDE_A_GIANT = 5  # clients
_GIANT = 20.0  # times the median client
# In five public data sets of hourly values, 95% intervals held 63 to 100% of the test values (means
# over clients) with 14 days of history, 84 to 99% with 21 days, 89 to 98% with 30 days, and 92 to
# 97% with 40 and 60 days.
_FEWEST_VALIDATED = 3  # days in the validation part, which about 33 days of history have
_NO_NAMES = {"nan", "none", "null", "na", "n/a"}

Vector = NDArray[np.float64]


def doubts_about_gain(series: Sequence[ClientSeries]) -> list[str]:
    """Name the clients that repeat other clients, so that their gain from sharing is not real."""
    clients = [client for client in series if len(client.values)]
    lines: list[str] = []
    copies = copies_among(clients)
    named = {name for name, *_ in copies}
    totals, multiples = sums_among(clients)
    scaled = [(name, first) for name, first in multiples if name not in named]
    leave_out = "leave out all but one of them (data.clients selects the clients)"
    if copies:
        parts = [
            f"{copy} has the values of {first}"
            + (f" {abs(shift)} steps {'later' if shift > 0 else 'earlier'}" if shift else "")
            for copy, first, shift in copies
        ]
        gain = "the gain of such clients from sharing is not real"
        lines.append(f"{listed(parts)}: {gain}; {leave_out}")
    if scaled:
        parts = [f"{name} rises and falls in proportion to {first}" for name, first in scaled]
        doubt = "these may be the same values in another unit, whose gain from sharing is not real"
        lines.append(f"{listed(parts)}: {doubt}; {leave_out}")
    if totals:
        parts = [f"{name} is the sum of {listed(summed)}" for name, summed in totals]
        doubt = "a total repeats its parts, so its gain from sharing is not real; leave it out"
        lines.append(f"{', and '.join(parts)}: {doubt} (data.clients selects the clients)")
    return lines


def doubts_about_series(series: Sequence[ClientSeries], settings: DataSettings) -> list[str]:
    """Return the other doubts about series, which are given as `load_series` returns them."""
    clients = [client for client in series if len(client.values)]
    return [
        *_giants(clients),
        *_codes(clients),
        *_unit_jumps(clients, settings.period),
        *_counters(clients),
        *_zeros_at_the_ends(clients, settings.period),
        *_repeating_parts(clients, settings.period),
        *_empty_times(clients, settings.period),
        *_lacking(clients, settings),
        *_little_history(clients, settings),
    ]


def _codes(clients: Iterable[ClientSeries]) -> list[str]:
    """Name values such as -999 that occur repeatedly, far from all other values."""
    repeated_codes = [(c.name, code, count) for c in clients for code, count in codes_in(c.values)]
    parts = [f"{code:g} occurs {count} times in {name}" for name, code, count in repeated_codes]
    codes = ",".join(dict.fromkeys(f"{code:g}" for _, code, _ in repeated_codes))
    doubt = f"if it stands for a missing value, --set data.missing-values={codes} leaves it out"
    return [f"{listed(parts)}, far from the other values: {doubt}"] if parts else []


def codes_in(values: Vector) -> list[tuple[float, int]]:
    """Return the values that may be codes for "missing", and how often each occurs.

    A code is the lowest or the highest of the values [T]. It is not 0 and occurs at least
    `_FEWEST_REPEATS` times. Its distance from the next value is larger than the range of all other
    values, apart from a code at the other end. The highest value is a code only if it is also
    written like one, since the values of a machine that is on or off repeat their maximum too.
    """
    values = values[np.isfinite(values)]
    ends = (values.min(), values.max()) if len(values) else ()
    if not any(end and np.count_nonzero(values == end) >= _FEWEST_REPEATS for end in ends):
        return []
    sizes, counts = np.unique(values, return_counts=True)
    low, high = 0, len(sizes) - 1
    codes = []
    while high - low > _FEWEST_REPEATS:
        repeats = counts >= _FEWEST_REPEATS
        others_low, others_high = low + int(repeats[low]), high - int(repeats[high])
        spread = sizes[others_high] - sizes[others_low]
        if repeats[low] and sizes[low] and sizes[low + 1] - sizes[low] > spread:
            codes.append((float(sizes[low]), int(counts[low])))
            low += 1
        elif (
            repeats[high]
            and _is_written_like_a_code(sizes[high])
            and (sizes[high] - sizes[high - 1] > spread)
        ):
            codes.append((float(sizes[high]), int(counts[high])))
            high -= 1
        else:
            break
    return codes


def _is_written_like_a_code(value: float) -> bool:
    """Return whether a value looks like a code: 999.9, 8888, 1e20, or an integer type's maximum."""
    digits = f"{value:.7g}".replace(".", "")
    is_largest = value in (2**7 - 1, 2**8 - 1, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**32 - 1)
    return is_largest or value >= LARGEST_VALUE or (len(digits) > 1 and len(set(digits)) == 1)


def _unit_jumps(clients: Iterable[ClientSeries], period: int) -> list[str]:
    """Name series whose values become many times larger, or smaller, from some time on."""
    others = [client for client in clients if not is_counter(client.values)]  # resets are no jumps
    jumps = [(c, *jump) for c in others if (jump := unit_jump(c.values, period)) is not None]
    parts = [f"{client.name} {_from_time(client, place)}" for client, place, _ in jumps]
    if not parts:
        return []
    _, _, factor = max(jumps, key=lambda jump: abs(np.log(jump[-1])))
    times = f"{float(f'{factor:.2g}'):g} times those before"
    doubt = "if the unit changed there, convert one of the two parts"
    return [f"{listed(parts)}: the values are about {times}; {doubt}"]


def unit_jump(values: Vector, period: int) -> tuple[int, float] | None:
    """Return the place where values [T] become many times larger or smaller, and the factor.

    From there on, each period's median size must be at least `_UNIT_JUMP` times the median of every
    period before, or at most a `_UNIT_JUMP`-th of it. A period whose median is 0 or missing is
    ignored. The factor compares the medians of both sides. Return None without such a place.
    """
    periods = len(values) // period
    table = np.abs(values[: periods * period].reshape(periods, period))
    places = np.flatnonzero(np.isfinite(table).any(axis=1))
    sizes = np.nanmedian(table[places], axis=1)
    places, sizes = places[sizes > 0], sizes[sizes > 0]
    if len(sizes) < 2 * _FEWEST_AROUND_A_JUMP:
        return None
    splits = np.arange(_FEWEST_AROUND_A_JUMP, len(sizes) - _FEWEST_AROUND_A_JUMP + 1)
    low, high = np.minimum.accumulate(sizes), np.maximum.accumulate(sizes)
    low_after = np.minimum.accumulate(sizes[::-1])[::-1]
    high_after = np.maximum.accumulate(sizes[::-1])[::-1]
    rises = low_after[splits] / high[splits - 1]
    falls = low[splits - 1] / high_after[splits]
    best = int(np.argmax(np.maximum(rises, falls)))
    if max(rises[best], falls[best]) < _UNIT_JUMP:
        return None
    split = splits[best]
    factor = float(np.median(sizes[split:]) / np.median(sizes[:split]))
    return int(places[split]) * period, factor


def _counters(clients: Iterable[ClientSeries]) -> list[str]:
    """Name series that only rise, like a meter's total."""
    names = [client.name for client in clients if is_counter(client.values)]
    doubt = (
        "the values only rise, like a meter's total; to forecast what is used in each step, "
        "replace them by the differences between neighbouring rows"
    )
    return [f"{listed(names)}: {doubt}"] if names else []


def is_counter(values: Vector) -> bool:
    """Return whether values [T] never fall, apart from a few resets, and rise often enough."""
    changes = np.diff(values[np.isfinite(values)])
    if len(changes) < _FEWEST_VALUES:
        return False
    falls, rises = int((changes < 0).sum()), int((changes > 0).sum())
    return falls <= _MOST_RESETS * len(changes) and rises >= _FEWEST_RISES * len(changes)


def _zeros_at_the_ends(clients: Iterable[ClientSeries], period: int) -> list[str]:
    """Name series that begin or end with long runs of zeros, as if the client did not exist yet."""
    parts = [
        f"{client.name} {verb} with {_duration(client, zeros)} of zeros"
        for client in clients
        for verb, zeros in zip(
            ("begins", "ends"), zeros_at_the_ends(client.values, period), strict=True
        )
        if zeros
    ]
    doubt = "if the client did not exist then, leave those cells empty"
    return [f"{listed(parts)}: {doubt}"] if parts else []


def zeros_at_the_ends(values: Vector, period: int) -> tuple[int, int]:
    """Return how many zeros the values [T] begin and end with. A number that says little becomes 0.

    A number says enough if the zeros last at least two periods and over twice as long as any run of
    zeros in between, and if at least half of the values in between are not 0.
    """
    not_zero = np.flatnonzero(values != 0)
    if not len(not_zero):
        return 0, 0
    first, last = int(not_zero[0]), int(not_zero[-1])
    between = int(np.diff(not_zero).max(initial=1)) - 1
    fewest = max(_FEWEST_ZEROS, 2 * period, 2 * between + 1)
    if 2 * len(not_zero) < last - first + 1:
        return 0, 0
    begin, end = (count if count >= fewest else 0 for count in (first, len(values) - 1 - last))
    return begin, end


def _repeating_parts(clients: Iterable[ClientSeries], period: int) -> list[str]:
    """Name series with long parts that equal the values of a period, or of seven, before."""
    lines = []
    for client in clients:
        parts = [(*repeating_part(client.values, lag), lag) for lag in (period, 7 * period)]
        place, count, lag = max(parts, key=lambda part: part[1])
        if count >= 2 * period:
            repeats = f"{count:,} values {_from_time(client, place)}"
            lines.append(
                f"{client.name} has {repeats} that equal those of {_duration(client, lag)} earlier"
            )
    doubt = (
        "if such values were filled in, leave those cells empty, because a forecast by repetition "
        "looks perfect on them"
    )
    return [f"{listed(lines)}: {doubt}"] if lines else []


def repeating_part(values: Vector, lag: int) -> tuple[int, int]:
    """Return the place and length of the longest part of values [T] that repeats earlier ones.

    lag: how many steps earlier. A part with fewer than `_FEWEST_REPEATED` values says little, and
    so does one with fewer than `_FEWEST_DISTINCT` different values. Its length becomes 0.
    """
    differ = values[lag:] != values[:-lag]  # missing values differ
    ends = np.flatnonzero(np.r_[True, differ, True])
    longest = int(np.argmax(np.diff(ends)))
    place, count = lag + int(ends[longest]), int(ends[longest + 1] - ends[longest]) - 1
    part = values[place : place + count]
    is_telling = count >= _FEWEST_REPEATED and len(np.unique(part)) >= _FEWEST_DISTINCT
    return place, count if is_telling else 0


def _from_time(client: ClientSeries, place: int) -> str:
    if client.clock:
        return f"from {client.clock.time(client.start + place)} on"
    return f"from step {client.start + place} on"


def _duration(client: ClientSeries, steps: int) -> str:
    """Return a number of steps in words, or in days if they last at least two days."""
    if client.clock is not None:
        first, end = client.clock.moments(np.array([0, steps]))
        if (days := (end - first) / np.timedelta64(1, "D")) >= 2:
            return f"{days:.0f} days"
    return f"{steps} steps"


def _empty_times(clients: Iterable[ClientSeries], period: int) -> list[str]:
    """Name the weekdays and times of day without values."""
    names: dict[str, list[str]] = {}
    for client in clients:
        if words := empty_times_text(client, period):
            names.setdefault(words, []).append(client.name)
    return [
        f"{listed(of_words)}: there is never a value {words}, so these times have no forecast"
        for words, of_words in names.items()
    ]


def _lacking(clients: Sequence[ClientSeries], settings: DataSettings) -> list[str]:
    """Name series that end early, are short, or lack many values."""
    if not clients:
        return []
    newest = max(client.end for client in clients)
    longest = max(len(client.values) for client in clients)
    back = lookback(settings)
    early = {client.name: newest - client.start - len(client.values) for client in clients}
    short = {client.name: longest - len(client.values) for client in clients}
    gaps = {client.name: float(np.isnan(client.values).mean()) for client in clients}
    return [
        *most_affected(
            {name: steps for name, steps in early.items() if steps >= back},
            "the last value, from which a forecast starts, is up to {:.0f} steps older than the "
            "newest value of all clients",
        ),
        *most_affected(
            {name: steps for name, steps in short.items() if 2 * steps > longest},
            "up to {:.0f} steps shorter than the longest series, so there is less to learn from",
        ),
        *most_affected(
            {name: share for name, share in gaps.items() if 3 * share > 1},
            "up to {:.0%} of the values are missing, and errors cover only the others",
        ),
    ]


def _little_history(clients: Sequence[ClientSeries], settings: DataSettings) -> list[str]:
    """Name clients with intervals based on few days. Only series with daily periods are checked."""
    daily = [c for c in clients if c.clock and c.clock.steps_in(DAY) == settings.period]
    usable = [client for client in daily if why_refused(client, settings) is None]
    days = {client.name: cut_of(client, settings).validation / settings.period for client in usable}
    return most_affected(
        {name: number for name, number in days.items() if number < _FEWEST_VALIDATED},
        "too little history for 95% intervals: their widths come from a validation part of only "
        "{:.1f} days, so they may hold far fewer, or far more, than 95% of the next values",
        lambda number: -number,
    )


def copies_among(clients: Sequence[ClientSeries]) -> list[tuple[str, str, int]]:
    """Return each copy, the first client with its values, and how many steps later the copy is.

    Two series are copies if they overlap by at least half of the shorter series, and at least
    `_EQUAL` of the values that both have there are equal. Candidates must have a window of
    `_WINDOW` values in common, with at least `_FEWEST_DISTINCT` different values. A series with
    hardly any different values therefore has no copies.
    """
    copies: list[tuple[str, str, int]] = []
    windows: dict[int, list[tuple[ClientSeries, int]]] = {}  # client and place, by hash
    hashes: NDArray[np.uint64] = np.empty(0, np.uint64)  # of these windows, in ascending order
    for client in clients:
        window_hashes = _window_hashes(client.values)
        shifts: dict[str, tuple[ClientSeries, int]] = {}
        for place in np.flatnonzero(np.isin(window_hashes, hashes)).tolist():
            for first, first_place in windows[int(window_hashes[place])]:
                shift = client.start + place - first.start - first_place
                if first.name not in shifts or abs(shift) < abs(shifts[first.name][1]):
                    shifts[first.name] = first, shift
        for first, shift in sorted(shifts.values(), key=lambda pair: abs(pair[1])):
            if _are_copies(first, client, shift):
                copies.append((client.name, first.name, shift))
                break
        else:
            for place in _telling_windows(client.values):
                windows.setdefault(int(window_hashes[place]), []).append((client, place))
                hashes = np.union1d(hashes, window_hashes[place])
    return copies


def _window_hashes(values: Vector) -> NDArray[np.uint64]:
    """Return a hash of each window of values [T] as an array [T - _WINDOW + 1]."""
    hashes = (values + 0.0).view(np.uint64)  # + 0.0: no -0
    hashes = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    width = 1
    while width < _WINDOW:  # from the hashes of two halves
        mixed = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = mixed[:-width] + hashes[width:]
        width *= 2
    return hashes


def _telling_windows(values: Vector) -> list[int]:
    """Return the places of two windows with many different values, one in each half."""
    last = len(values) - _WINDOW
    if last < 0:
        return []
    places = np.linspace(0, last, _WINDOWS).astype(int)
    distinct = np.array([len(np.unique(values[place : place + _WINDOW])) for place in places])
    missing = [np.isnan(values[place : place + _WINDOW]).any() for place in places]
    distinct[missing] = 0
    half = _WINDOWS // 2
    best = {int(np.argmax(distinct[:half])), half + int(np.argmax(distinct[half:]))}
    return [int(places[number]) for number in best if distinct[number] >= _FEWEST_DISTINCT]


def _are_copies(first: ClientSeries, client: ClientSeries, shift: int) -> bool:
    """Return whether the client has the first client's values, but `shift` steps later."""
    moved = first.start + shift
    start = max(moved, client.start)
    end = min(moved + len(first.values), client.end)
    if 2 * (end - start) < min(len(first.values), len(client.values)):
        return False
    values = client.values[start - client.start : end - client.start]
    first_values = first.values[start - moved : end - moved]
    common = np.isfinite(values) & np.isfinite(first_values)
    equal = values[common] == first_values[common]
    return bool(len(equal) and equal.mean() >= _EQUAL)


def sums_among(
    clients: Sequence[ClientSeries],
) -> tuple[list[tuple[str, list[str]]], list[tuple[str, str]]]:
    """Return totals and multiples among the clients, as pairs of names.

    A total is the sum of at least two smaller clients, whose names come with it. A multiple is
    proportional to one smaller client. A total's changes must equal the sum of its parts' changes
    up to `_SUM_ERROR` of their norm, and a multiple's changes must be proportional up to
    `_SMALLEST_REST`. Only time steps at which all clients have a value are used, and there must be
    at least two for each client. From the smallest client to the largest, each client's changes are
    projected on the changes of the smaller ones. If these explain them, least squares gives the
    parts a weight of 1 and other clients a weight of 0.
    """
    count = len(clients)
    if not 2 <= count <= _MOST_SUMMED:
        return [], []
    start, end = max(client.start for client in clients), min(client.end for client in clients)
    table = np.stack([c.values[start - c.start : max(start, end) - c.start] for c in clients], 1)
    table = table[np.isfinite(table).all(axis=1)]
    if len(table) < _FEWEST_VALUES + 2 * count:
        return [], []
    sampled_rows = np.linspace(0, len(table) - 1, min(len(table), 1000 + 2 * count)).astype(int)
    order = np.argsort(np.abs(table).mean(axis=0), kind="stable")
    changes = np.diff(table[sampled_rows][:, order], axis=0)
    basis, parts = np.zeros_like(changes), list[int]()
    totals, multiples = list[tuple[str, list[str]]](), list[tuple[str, str]]()
    for place, values in enumerate(changes.T):
        span, size = basis[:, : len(parts)], float(np.linalg.norm(values))
        residual = values - span @ (span.T @ values)
        if size and np.linalg.norm(residual) <= _SUM_ERROR * size:
            weights = np.linalg.lstsq(changes[:, parts], values)[0]
            summed = [part for part, weight in zip(parts, weights, strict=True) if weight > 0.5]
            error = np.linalg.norm(values - changes[:, summed].sum(axis=1))
            if len(summed) > 1 and error <= _SUM_ERROR * size:
                names = [clients[order[part]].name for part in sorted(summed, key=order.item)]
                totals.append((clients[order[place]].name, names))
                continue
            smaller = changes[:, parts]
            likeness = np.abs(values @ smaller) / np.linalg.norm(smaller, axis=0)
            first = parts[int(np.argmax(likeness))]
            of_first = changes[:, first]
            rest = values - of_first * (values @ of_first) / (of_first @ of_first)
            if np.linalg.norm(rest) <= _SMALLEST_REST * size:
                multiples.append((clients[order[place]].name, clients[order[first]].name))
        if np.linalg.norm(residual) > _SMALLEST_REST * size:
            basis[:, len(parts)] = residual / np.linalg.norm(residual)
            parts.append(place)
    return totals, multiples


def _giants(clients: Sequence[ClientSeries]) -> list[str]:
    """Name a client whose values are larger, or more numerous, than all others' together."""
    if len(clients) <= _FEWEST_BESIDE_A_GIANT:
        return []
    sizes = {client.name: float(np.nanmean(np.abs(client.values))) for client in clients}
    lengths = {client.name: float(np.isfinite(client.values).sum()) for client in clients}
    in_units = (
        "{}: its values are on average {:.0f} times those of the median client, so it "
        "dominates the mean of errors in the data's units; MSE and MASE count all clients alike"
    )
    longer = (
        "{}: it has {:.0f} times the values of the median client; where models are averaged, "
        "aggregation.weight-limit bounds its weight"
    )
    lines = []
    for numbers, words in ((sizes, in_units), (lengths, longer)):
        largest, middle = max(numbers.values()), float(np.median([*numbers.values()]))
        if 2 * largest > sum(numbers.values()) and largest > _GIANT * middle > 0:
            lines.append(words.format(max(numbers, key=numbers.__getitem__), largest / middle))
    return lines


def doubts_about_classes(names: Sequence[str]) -> list[str]:
    """Return the doubts about the names of classes.

    Names may differ only in case, blanks and Unicode form, or a name may mean that the class is
    unknown.
    """
    spellings: dict[str, list[str]] = {}
    for name in names:
        key = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        spellings.setdefault(key, []).append(repr(name))
    alike = [" and ".join(group) for group in spellings.values() if len(group) > 1]
    none = [name for key in _NO_NAMES & spellings.keys() for name in spellings[key]]
    lines = []
    if alike:
        lines.append(f"classes spelt almost alike are different classes: {listed(alike)}")
    if none:
        lines.append(
            f"{listed(sorted(none))}: read as classes of that name; leave such samples out if "
            f"their class is not known (sequences of unknown class have {NO_CLASS[0]!r})"
        )
    return lines


def doubts_about_images(pool: ImagePool) -> list[str]:
    """Return the doubts about the classes of images, and notes on how the images were read."""
    notes = doubts_about_classes(pool.classes)
    if pool.notes:
        clients = listed([name for name in pool.notes if name])
        note = next(iter(pool.notes.values()))
        notes.append(f"{clients}: {note}" if clients else note)
    return notes


_MOST_WHOLE = 20  # different targets that are whole numbers. More are hardly classes


def doubts_about_sequences(pool: SequencePool) -> list[str]:
    """Return the doubts about the targets and axes of sequences, and sensors that never change."""
    names = np.zeros(len(pool.sequences), int) if pool.clients is None else pool.clients
    low, high = (
        np.stack([reduce(steps, axis=0) for steps in pool.sequences]) for reduce in (np.min, np.max)
    )
    dead: dict[str, list[str]] = {}
    for name in np.unique(names):
        of_client = names == name
        still = low[of_client].min(axis=0) == high[of_client].max(axis=0)
        for dimension in np.flatnonzero(still):
            dead.setdefault(pool.dimensions[dimension], []).append(str(name))
    of_all = len(np.unique(names))
    lines = [
        f"{dimension} never changes"
        + (f" for {listed(clients)}" if len(clients) < of_all else "")
        + ": is the sensor dead?"
        for dimension, clients in dead.items()
    ]
    longest, targets = max(map(len, pool.sequences)), np.unique(pool.targets)
    if longest < len(pool.dimensions):
        lines.append(
            f"the longest sequence has {longest} steps of {len(pool.dimensions)} values: are the "
            "two axes swapped?"
        )
    if not pool.classes and len(targets) <= _MOST_WHOLE and (targets == targets.round()).all():
        lines.append(
            f"the targets are {len(targets)} whole numbers, saved as real ones: if they are "
            "classes, save them as integers"
        )
    return [*doubts_about_classes(pool.classes), *lines]
