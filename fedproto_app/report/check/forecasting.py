"""The part of ``fedproto data check`` that looks at series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from rich.text import Text

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import shortest_length, why_refused
from fedproto_app.report.check.findings import (
    Cell,
    Checked,
    Findings,
    hint,
    refusals,
    some,
    too_large,
)
from fedproto_app.report.check.oddities import (
    FARTHEST,
    LARGEST_RATIO,
    LARGEST_SHIFT,
    Oddities,
    Outliers,
    oddities_of,
)
from fedproto_app.report.check.period import find_period
from fedproto_app.settings import DataSettings, Settings


@dataclass(frozen=True)
class ClientFacts:
    """One client. start, length and period in steps, period None where none was found.

    missing_share: of its values, 1 if none is present. largest: in size, of those present.
    refused: why a run would leave it out, or None. oddities: None of one that is refused. worst:
    where its farthest outlier is, in words, "" without any.
    """

    name: str
    start: int
    length: int
    period: int | None
    missing_share: float
    largest: float
    constant: bool
    refused: str | None
    oddities: Oddities | None = None
    worst: str = ""

    @property
    def verdict(self) -> Text:
        """In one word."""
        if self.refused is not None:
            return Text("refused", "red")
        return Text("constant", "yellow") if self.constant else Text("ok", "green")

    @property
    def notes(self) -> str:
        """What is odd about it, "" if nothing."""
        return self.oddities.notes if self.oddities else ""


def check(settings: Settings, every: bool) -> Checked:
    """Print every client of the source, or the first ones; whether one is usable."""
    data = settings.data
    sources = load_series(data)
    clients = [facts_of(series, data) for series in sources]
    titles: list[Cell] = ["client", "steps", "start", "period", "missing", "verdict"]
    noted = any(one.notes for one in clients)
    rows: list[Sequence[Cell]] = [[*titles, "notes"] if noted else titles]
    for one in clients:
        numbers = (one.length, one.start, one.period or "-", f"{one.missing_share:.1%}")
        notes = [Text(one.notes, "yellow")] if noted else []
        rows.append((one.name, *map(str, numbers), one.verdict, *notes))
    Findings(
        rows,
        _summary(clients, data),
        refusals({one.name: one.refused for one in clients}),
        [*too_large((one.name, one.largest) for one in clients), *_warnings(clients)],
    ).print(every)
    found = _common_period(clients)
    other = data.model_copy(update={"period": found})
    fits = found and any(why_refused(series, other) is None for series in sources)
    told = {"data.period": found} if fits and found != data.period else {}
    return Checked(any(one.refused is None for one in clients), told)


def facts_of(series: ClientSeries, settings: DataSettings) -> ClientFacts:
    """The client as a run with these settings would see it."""
    present = series.values[np.isfinite(series.values)]
    length, refused = len(series.values), why_refused(series, settings)
    oddities = None if refused else oddities_of(series, settings)
    return ClientFacts(
        name=series.name,
        start=series.start,
        length=length,
        period=find_period(series.values),
        missing_share=1 - len(present) / length if length else 1.0,  # sources trim what is missing
        largest=float(np.abs(present).max(initial=0)),
        constant=bool(len(present) and np.ptp(present) == 0),
        refused=refused,
        oddities=oddities,
        worst=_where(series, oddities.outliers) if oddities and oddities.outliers else "",
    )


def _where(series: ClientSeries, outliers: Outliers) -> str:
    position = series.start + outliers.place
    when = f"step {position}" if series.clock is None else series.clock.time(position)
    return f"{outliers.size:.4g} at {when}, {outliers.distance:.3g} robust deviations off"


def period_votes(clients: Sequence[ClientFacts]) -> list[tuple[int, int]]:
    """(period, clients that have it), most votes first, the shorter period first on a tie."""
    votes = Counter(client.period for client in clients if client.period is not None)
    return sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))


def _common_period(clients: Sequence[ClientFacts]) -> int:
    """The period that most of all clients have, 0 if there is none."""
    votes = period_votes(clients)
    return votes[0][0] if votes and 2 * votes[0][1] > len(clients) else 0


def _warnings(clients: Sequence[ClientFacts]) -> list[str]:
    """A line for each kind of oddity that there is, the clients that have most of it first."""
    odd = [(one, one.oddities) for one in clients if one.oddities is not None]
    lines = [
        _outliers([(one, its.outliers) for one, its in odd if its.outliers]),
        _constants([one.name for one, its in odd if its.constant and not one.constant]),
        _sizes({one.name: its.largest for one, its in odd if its.is_too_large}),
        _shifts({one.name: its.shift for one, its in odd if its.is_shifted}),
        _ratios({one.name: its.ratio for one, its in odd if its.is_spread}),
    ]
    return [line for line in lines if line]


def _outliers(found: Sequence[tuple[ClientFacts, Outliers]]) -> str:
    if not found:
        return ""
    found = sorted(found, key=lambda pair: -pair[1].distance)
    first = found[0][0]
    return (
        f"{some([one.name for one, _ in found])}: outliers ({sum(its.count for _, its in found)} "
        f"values), over {FARTHEST} robust deviations from the median and from the values a period "
        f"before and after; the farthest: {first.name}, {first.worst}"
    )


def _constants(names: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        f"{some(names)}: the train part is constant, so errors have no scale; they count in the "
        "data's unit"
    )


def _sizes(largest: Mapping[str, float]) -> str:
    if not largest:
        return ""
    names = sorted(largest, key=lambda name: -largest[name])
    return (
        f"{some(names)}: values up to {largest[names[0]]:.4g} train deviations from the train "
        "mean; a server refuses the errors that these make"
    )


def _shifts(shifts: Mapping[str, float]) -> str:
    if not shifts:
        return ""
    names = sorted(shifts, key=lambda name: -abs(shifts[name]))
    return (
        f"{some(names)}: the mean of the test part lies over {LARGEST_SHIFT:g} train deviation "
        f"from that of the train part (at most {shifts[names[0]]:+.2g})"
    )


def _ratios(ratios: Mapping[str, float]) -> str:
    if not ratios:
        return ""
    names = sorted(ratios, key=lambda name: min(ratios[name], 1 / max(ratios[name], 1e-30)))
    return (
        f"{some(names)}: the deviation of the test part is over {LARGEST_RATIO:g} times that of "
        f"the train part, or as much below (at most ×{ratios[names[0]]:.2g})"
    )


def _summary(clients: Sequence[ClientFacts], settings: DataSettings) -> list[tuple[str, Cell]]:
    lengths = [one.length for one in clients]
    usable = sum(one.refused is None for one in clients)
    steps = f"{min(lengths)} shortest, {median(lengths):g} median, {max(lengths)} longest"
    # A series that has no value at all is trimmed to no length: it counts as one value missing.
    missing = sum(one.missing_share * max(one.length, 1) for one in clients)
    missing /= max(sum(max(length, 1) for length in lengths), 1)
    votes = period_votes(clients)
    periods = [f"{period} ({count} client{'s' * (count > 1)})" for period, count in votes[:3]]
    facts: list[tuple[str, Cell]] = [
        ("clients", f"{len(clients)}, of them {usable} usable"),
        ("steps", steps),
        ("needed", f"{shortest_length(settings)} steps at period {settings.period}"),
        ("period found", ", ".join(periods) or "none"),
    ]
    if votes and votes[0][0] != settings.period:
        facts.append(hint(f"checked with --period {settings.period}, not with {votes[0][0]}"))
    return [*facts, ("missing", f"{missing:.2%} of all values")]
