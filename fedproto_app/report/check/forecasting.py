"""The part of ``fedproto data check`` that looks at series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from fedproto_app.data.known_columns import calendar_names
from fedproto_app.data.period import find_period, period_of
from fedproto_app.data.series import ClientSeries, notes_of
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import (
    cut_of,
    make_windows,
    shortest_length,
    why_refused,
)
from fedproto_app.report.check.doubts import doubts_about_gain, doubts_about_series
from fedproto_app.report.check.findings import (
    MOST_LISTED,
    Cell,
    Checked,
    Findings,
    hint,
    listed,
    most_affected,
    refusals,
    too_large,
)
from fedproto_app.settings import DataSettings, Settings

FARTHEST = 10  # robust deviations. A normal value is farther off with probability 10⁻²³
LARGEST_SHIFT = 1.0  # of the mean, in train deviations. This shift adds 1 to the MSE
LARGEST_RATIO = 2.0  # of the larger deviation to the smaller one
LARGEST_SCALED = 1e15  # in train deviations. Its square is the largest error that servers accept
_NORMAL = 1.4826  # for normal values: their deviation over the median distance from the median

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Outliers:
    """The outliers of a series.

    count: their number. place, size, distance: the farthest outlier's index, its value, and its
    distance from the median in robust deviations.
    """

    count: int
    place: int
    size: float
    distance: float

    @property
    def words(self) -> str:
        """The number of outliers, with the noun."""
        return f"{self.count} outlier{'s' * (self.count > 1)}"


@dataclass(frozen=True)
class Oddities:
    """What is odd about a client's series, once it is split and standardised as in a run.

    constant: whether the train part is constant. largest: the largest distance of any value from
    the train mean, in train deviations, infinite if it overflows. shift: the test mean minus the
    train mean, in train deviations. ratio: the standard deviation of the test part divided by that
    of the train part. With a constant train part, shift has no meaning and ratio is NaN.
    """

    outliers: Outliers | None
    constant: bool
    largest: float
    shift: float
    ratio: float

    @property
    def is_too_large(self) -> bool:
        """Whether a server may refuse the client's errors because they are too large."""
        return self.largest > LARGEST_SCALED

    @property
    def is_shifted(self) -> bool:
        """Whether the test part has a different level."""
        if self.constant or self.is_too_large:
            return False
        return abs(self.shift) > LARGEST_SHIFT

    @property
    def is_spread(self) -> bool:
        """Whether the test part varies much more, or much less, than the train part."""
        if self.constant or self.is_too_large:
            return False
        return not 1 / LARGEST_RATIO <= self.ratio <= LARGEST_RATIO

    @property
    def notes(self) -> str:
        """All oddities in a few words, "" if there are none."""
        conditions = {
            self.outliers.words if self.outliers else "": self.outliers is not None,
            "train part constant": self.constant,
            "too large": self.is_too_large,
            f"test mean {self.shift:+.1f}": self.is_shifted,
            f"test spread ×{self.ratio:.2g}": self.is_spread,
        }
        return ", ".join(words for words, apply in conditions.items() if apply)


def oddities_of(series: ClientSeries, settings: DataSettings) -> Oddities:
    """Return the oddities of a client. A run with these settings must accept the client."""
    with np.errstate(all="ignore"):  # values of any size may overflow here
        windows = make_windows(series, settings)
        train = cut_of(series, settings).trained
        test = series.values[windows.first_test - series.start :]
        scale = windows.scale
        scaled = np.abs(scale.standardised(series.values[np.isfinite(series.values)]))
        largest = float(scaled.max()) if np.isfinite(scale.std) else np.inf
        constant = bool(np.nanmax(train) == np.nanmin(train))
        return Oddities(
            outliers=outliers_of(series.values, settings.period),
            constant=constant,
            largest=largest if np.isfinite(largest) else np.inf,
            shift=scale.standardised(float(np.nanmean(test))),
            ratio=np.nan if constant else float(np.nanstd(test)) / scale.std,
        )


def outliers_of(values: Vector, period: int) -> Outliers | None:
    """Return the outliers among values [T], or None if there are none.

    An outlier lies more than `FARTHEST` robust deviations from the median and also from the values
    one period before and after. A peak that repeats is therefore no outlier. The robust deviation
    is 1.4826 times the median distance from the median. If more than half of the values are equal,
    this is 0 and the standard deviation is used instead. Missing values are NaN.
    """
    distances = np.abs(values - np.nanmedian(values))
    deviation = _NORMAL * float(np.nanmedian(distances)) or float(np.nanstd(values))
    limit = FARTHEST * deviation
    far = distances > limit
    seasonal = np.abs(values[period:] - values[:-period])
    far[period:] &= ~(seasonal <= limit)
    far[:-period] &= ~(seasonal <= limit)
    if not far.any():
        return None
    place = int(np.argmax(np.where(far, distances, -1.0)))
    return Outliers(
        int(far.sum()), place, float(values[place]), float(distances[place] / deviation)
    )


@dataclass(frozen=True)
class ClientFacts:
    """The facts about one client.

    start: the first time, or the first step of a series without times. length, period: in steps.
    The period is None if the series has none. missing_share: the share of its values that are
    missing, 1 if all are. largest: the largest absolute value.
    refused: why a run would leave the client out, or None. sends: whether its training contributes
    to others. young: what a run does with a newcomer, "" for any other client. oddities: None for a
    refused client and for a newcomer, whose few values say little. worst: where the farthest
    outlier is, in words, "" without outliers.
    """

    name: str
    start: str
    length: int
    period: int | None
    missing_share: float
    largest: float
    constant: bool
    refused: str | None
    sends: bool = False
    young: str = ""
    oddities: Oddities | None = None
    worst: str = ""

    @property
    def verdict(self) -> Text:
        """The verdict in one word."""
        if self.refused is not None:
            return Text("refused", "red")
        if self.young:
            return Text("newcomer", "yellow")
        return Text("constant", "yellow") if self.constant else Text("ok", "green")

    @property
    def notes(self) -> str:
        """The client's oddities in words, "" if there are none."""
        return self.oddities.notes if self.oddities else ""


def check(settings: Settings, all_rows: bool) -> Checked:
    """Print all of the source's clients or the first. The result says whether any is usable.

    Without ``data.period``, the data are checked with the period found in them, which the result
    then proposes as a setting.
    """
    sources = load_series(settings.data)
    period, why = period_of(sources)
    data = with_period = settings.data.model_copy(update={"period": period})
    fits = _some_are_long(sources, with_period)
    if "period" in settings.data.model_fields_set or (
        not fits and _some_are_long(sources, settings.data)
    ):
        data, why = settings.data, ""
    clients = [facts_of(series, data) for series in sources]
    titles: list[Cell] = ["client", "steps", "start", "period", "missing", "verdict"]
    noted = any(client.notes for client in clients)
    rows: list[Sequence[Cell]] = [[*titles, "notes"] if noted else titles]
    for client in clients:
        numbers = (client.length, client.start, client.period or "-", f"{client.missing_share:.1%}")
        notes = [Text(client.notes, "yellow")] if noted else []
        rows.append((client.name, *map(str, numbers), client.verdict, *notes))
    newcomers = [f"{client.name}, {client.young}" for client in clients if client.young]
    Findings(
        rows,
        [
            *_summary(clients, data, why),
            *_calendar(sources),
            *_known_columns(sources, settings.data),
            *(("newcomer", line) for line in newcomers[:MOST_LISTED]),
            *(("note", note) for note in notes_of(sources)),
        ],
        refusals({client.name: client.refused for client in clients}),
        [
            *doubts_about_gain(sources),
            *doubts_about_series(sources, data),
            *too_large((client.name, client.largest) for client in clients),
            *_warnings(clients),
        ],
    ).print(all_rows)
    is_proposed = (fits or data is with_period) and period != settings.data.period
    proposed = {"data.period": period} if is_proposed else {}
    return Checked(any(client.sends for client in clients), proposed)


def _calendar(sources: Sequence[ClientSeries]) -> list[tuple[str, Cell]]:
    """Return the calendar steps between the times, or [] if all steps are equally long."""
    clocks = [client.clock for client in sources if client.clock is not None]
    words = dict.fromkeys(clock.words for clock in clocks if clock.is_of_calendar)
    return [("times", "; ".join(list(words)[:MOST_LISTED]))] if words else []


def _known_columns(
    sources: Sequence[ClientSeries], settings: DataSettings
) -> list[tuple[str, Cell]]:
    """Return the number of columns known in advance, and until when all clients have them."""
    columns = sources[0].columns
    if not columns:
        return []
    count = f"{len(columns)} column{'s' * (len(columns) > 1)}"
    if set(columns) <= set(calendar_names(settings)):
        return [("known ahead", f"{count}, at any time")]
    first = min(sources, key=lambda series: len(series.future))
    last = first.end + len(first.future) - 1
    when = f"step {last}" if first.clock is None else first.clock.time(last)
    return [("known ahead", f"{count}, for {len(first.future)} steps, until {when}")]


def _some_are_long(sources: Sequence[ClientSeries], data: DataSettings) -> bool:
    usable = [series for series in sources if why_refused(series, data) is None]
    return any(not cut_of(series, data).is_young for series in usable)


def facts_of(series: ClientSeries, settings: DataSettings) -> ClientFacts:
    """Return the facts about a client, as a run with these settings would see the client."""
    present = series.values[np.isfinite(series.values)]
    length, refused = len(series.values), why_refused(series, settings)
    cut = None if refused else cut_of(series, settings)
    oddities = None if cut is None or cut.is_young else oddities_of(series, settings)
    return ClientFacts(
        name=series.name,
        start=series.when(0) if length else "-",
        length=length,
        period=find_period(series.values),
        missing_share=1 - len(present) / length if length else 1.0,  # sources trim missing values
        largest=float(np.abs(present).max(initial=0)),
        constant=bool(len(present) and np.ptp(present) == 0),
        refused=refused,
        sends=cut is not None and cut.sends,
        young=cut.words if cut and cut.is_young else "",
        oddities=oddities,
        worst=_where(series, oddities.outliers) if oddities and oddities.outliers else "",
    )


def _where(series: ClientSeries, outliers: Outliers) -> str:
    position = series.start + outliers.place
    when = f"step {position}" if series.clock is None else series.clock.time(position)
    return f"{outliers.size:.4g} at {when}, {outliers.distance:.3g} robust deviations off"


def period_votes(clients: Sequence[ClientFacts]) -> list[tuple[int, int]]:
    """Return pairs of a period and its number of clients, the most frequent period first.

    Of equally frequent periods, the shortest comes first.
    """
    votes = Counter(client.period for client in clients if client.period is not None)
    return sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))


def _warnings(clients: Sequence[ClientFacts]) -> list[str]:
    """Return a line for each kind of oddity, with the most affected clients first."""
    odd = [(client, client.oddities) for client in clients if client.oddities is not None]
    lines = []
    pairs = [(client, oddities.outliers) for client, oddities in odd if oddities.outliers]
    if outliers := sorted(pairs, key=lambda pair: -pair[1].distance):
        first, count = outliers[0][0], sum(of_client.count for _, of_client in outliers)
        lines.append(
            f"{listed([client.name for client, _ in outliers])}: outliers ({count} values), over "
            f"{FARTHEST} robust deviations from the median and from the values a period before and "
            f"after; the farthest: {first.name}, {first.worst}"
        )
    if constant := [
        client.name for client, oddities in odd if oddities.constant and not client.constant
    ]:
        lines.append(
            f"{listed(constant)}: the train part is constant, so errors cannot be standardised "
            "and are in the data's unit"
        )
    lines += most_affected(
        {client.name: oddities.largest for client, oddities in odd if oddities.is_too_large},
        "values up to {:.4g} train deviations from the train mean; a server refuses such large "
        "errors",
    )
    return [*lines, *_drift({client.name: oddities for client, oddities in odd})]


def _drift(oddities: Mapping[str, Oddities]) -> list[str]:
    """Name the clients whose test part differs in mean or spread from their train part."""
    return [
        *most_affected(
            {name: of_client.shift for name, of_client in oddities.items() if of_client.is_shifted},
            f"the mean of the test part lies over {LARGEST_SHIFT:g} train deviation from that of "
            "the train part (at most {:+.2g})",
        ),
        *most_affected(
            {name: of_client.ratio for name, of_client in oddities.items() if of_client.is_spread},
            f"the deviations of test and train part differ by a factor over {LARGEST_RATIO:g} "
            "(at most ×{:.2g})",
            lambda ratio: max(1 / ratio if ratio else np.inf, ratio),
        ),
    ]


def drift_of_most(series: Sequence[ClientSeries], settings: DataSettings) -> list[str]:
    """Return lines on the drifting clients if at least half of the clients drift, else [].

    A client drifts if its test part differs in level or spread from its train part. Newcomers are
    not counted.
    """
    usable = [client for client in series if why_refused(client, settings) is None]
    established = [client for client in usable if not cut_of(client, settings).is_young]
    oddities = {client.name: oddities_of(client, settings) for client in established}
    drifting = sum(client.is_shifted or client.is_spread for client in oddities.values())
    return _drift(oddities) if 2 * drifting >= len(oddities) else []


def _summary(
    clients: Sequence[ClientFacts], settings: DataSettings, why: str
) -> list[tuple[str, Cell]]:
    """Return facts about all clients. why: where the period comes from, or "" if it was set."""
    lengths = [client.length for client in clients]
    usable = sum(client.refused is None for client in clients)
    steps = f"{min(lengths)} shortest, {median(lengths):g} median, {max(lengths)} longest"
    # A series without any value is trimmed to length 0: it counts as one missing value.
    missing = sum(client.missing_share * max(client.length, 1) for client in clients)
    missing /= max(sum(max(length, 1) for length in lengths), 1)
    votes = period_votes(clients)
    periods = [f"{period} ({count} client{'s' * (count > 1)})" for period, count in votes[:3]]
    at_period = f"period {settings.period}{f' ({why})' if why else ''}"
    young = sum(bool(client.young) for client in clients)
    newcomers = f"; newcomers with fewer before their test part: {young}" if young else ""
    facts: list[tuple[str, Cell]] = [
        ("clients", f"{len(clients)}, of them {usable} usable"),
        ("steps", steps),
        ("needed", f"{shortest_length(settings)} steps at {at_period}{newcomers}"),
        ("period found", ", ".join(periods) or "none"),
    ]
    if votes and votes[0][0] != settings.period:
        facts.append(hint(f"checked with --period {settings.period}, not with {votes[0][0]}"))
    return [*facts, ("missing", f"{missing:.2%} of all values")]
