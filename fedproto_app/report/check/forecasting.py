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
    listed,
    refusals,
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
    """The facts about one client.

    start, length, period: in steps, period None if there is none. missing_share: of its values, 1
    if all are missing. largest: the largest absolute value. refused: why a run would leave the
    client out, or None. oddities: None for a refused client. worst: the place of its farthest
    outlier in words, "" without outliers.
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
        """The verdict in one word."""
        if self.refused is not None:
            return Text("refused", "red")
        return Text("constant", "yellow") if self.constant else Text("ok", "green")

    @property
    def notes(self) -> str:
        """The client's oddities in words, "" if there are none."""
        return self.oddities.notes if self.oddities else ""


def check(settings: Settings, all_rows: bool) -> Checked:
    """Print the source's clients, all or the first; return whether any is usable."""
    data = settings.data
    sources = load_series(data)
    clients = [facts_of(series, data) for series in sources]
    titles: list[Cell] = ["client", "steps", "start", "period", "missing", "verdict"]
    noted = any(client.notes for client in clients)
    rows: list[Sequence[Cell]] = [[*titles, "notes"] if noted else titles]
    for client in clients:
        numbers = (client.length, client.start, client.period or "-", f"{client.missing_share:.1%}")
        notes = [Text(client.notes, "yellow")] if noted else []
        rows.append((client.name, *map(str, numbers), client.verdict, *notes))
    Findings(
        rows,
        _summary(clients, data),
        refusals({client.name: client.refused for client in clients}),
        [*too_large((client.name, client.largest) for client in clients), *_warnings(clients)],
    ).print(all_rows)
    common_period = _common_period(clients)
    with_period = data.model_copy(update={"period": common_period})
    fits = common_period and any(why_refused(series, with_period) is None for series in sources)
    proposed = {"data.period": common_period} if fits and common_period != data.period else {}
    return Checked(any(client.refused is None for client in clients), proposed)


def facts_of(series: ClientSeries, settings: DataSettings) -> ClientFacts:
    """Return the facts about a client as a run with these settings would see it."""
    present = series.values[np.isfinite(series.values)]
    length, refused = len(series.values), why_refused(series, settings)
    oddities = None if refused else oddities_of(series, settings)
    return ClientFacts(
        name=series.name,
        start=series.start,
        length=length,
        period=find_period(series.values),
        missing_share=1 - len(present) / length if length else 1.0,  # sources trim missing values
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
    """Return (period, number of clients), most clients first, shorter periods first on a tie."""
    votes = Counter(client.period for client in clients if client.period is not None)
    return sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))


def _common_period(clients: Sequence[ClientFacts]) -> int:
    """Return the period of the majority of all clients, 0 if there is none."""
    votes = period_votes(clients)
    return votes[0][0] if votes and 2 * votes[0][1] > len(clients) else 0


def _warnings(clients: Sequence[ClientFacts]) -> list[str]:
    """Return a line for each kind of oddity, with the most affected clients first."""
    odd = [(client, client.oddities) for client in clients if client.oddities is not None]
    lines = [
        _outliers([(client, oddities.outliers) for client, oddities in odd if oddities.outliers]),
        _constants(
            [client.name for client, oddities in odd if oddities.constant and not client.constant]
        ),
        _sizes(
            {client.name: oddities.largest for client, oddities in odd if oddities.is_too_large}
        ),
        _shifts({client.name: oddities.shift for client, oddities in odd if oddities.is_shifted}),
        _ratios({client.name: oddities.ratio for client, oddities in odd if oddities.is_spread}),
    ]
    return [line for line in lines if line]


def _outliers(odd: Sequence[tuple[ClientFacts, Outliers]]) -> str:
    if not odd:
        return ""
    odd = sorted(odd, key=lambda pair: -pair[1].distance)
    first = odd[0][0]
    count = sum(outliers.count for _, outliers in odd)
    return (
        f"{listed([client.name for client, _ in odd])}: outliers ({count} values), over "
        f"{FARTHEST} robust deviations from the median and from the values a period before and "
        f"after; the farthest: {first.name}, {first.worst}"
    )


def _constants(names: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        f"{listed(names)}: the train part is constant, so errors cannot be standardised "
        "and are in the data's unit"
    )


def _sizes(largest: Mapping[str, float]) -> str:
    if not largest:
        return ""
    names = sorted(largest, key=lambda name: -largest[name])
    return (
        f"{listed(names)}: values up to {largest[names[0]]:.4g} train deviations from the train "
        "mean; a server refuses such large errors"
    )


def _shifts(shifts: Mapping[str, float]) -> str:
    if not shifts:
        return ""
    names = sorted(shifts, key=lambda name: -abs(shifts[name]))
    return (
        f"{listed(names)}: the mean of the test part lies over {LARGEST_SHIFT:g} train deviation "
        f"from that of the train part (at most {shifts[names[0]]:+.2g})"
    )


def _ratios(ratios: Mapping[str, float]) -> str:
    if not ratios:
        return ""
    names = sorted(ratios, key=lambda name: min(ratios[name], 1 / max(ratios[name], 1e-30)))
    return (
        f"{listed(names)}: the deviation of the test part is over {LARGEST_RATIO:g} times that of "
        f"the train part, or as much below (at most ×{ratios[names[0]]:.2g})"
    )


def _summary(clients: Sequence[ClientFacts], settings: DataSettings) -> list[tuple[str, Cell]]:
    lengths = [client.length for client in clients]
    usable = sum(client.refused is None for client in clients)
    steps = f"{min(lengths)} shortest, {median(lengths):g} median, {max(lengths)} longest"
    # A series without any value is trimmed to length 0: it counts as one missing value.
    missing = sum(client.missing_share * max(client.length, 1) for client in clients)
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
