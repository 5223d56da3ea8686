"""The part of ``fedproto data check`` that looks at series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.text import Text

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import shortest_length, why_refused
from fedproto_app.maths.period import find_period
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.findings import Cell, Findings, hint, refusals, too_large


@dataclass(frozen=True)
class ClientFacts:
    """One client. start, length and period in steps, period None where none was found.

    missing_share: of its values, 1 if none is present. largest: in size, of those present.
    refused: why a run would leave it out, or None.
    """

    name: str
    start: int
    length: int
    period: int | None
    missing_share: float
    largest: float
    constant: bool
    refused: str | None

    @property
    def verdict(self) -> Text:
        """In one word."""
        if self.refused is not None:
            return Text("refused", "red")
        return Text("constant", "yellow") if self.constant else Text("ok", "green")


def check(settings: Settings, every: bool, picture: Path | None) -> bool:
    """Print every client of the source, or the first ones; whether one is usable."""
    data = settings.data
    clients = [facts_of(series, data) for series in load_series(data)]
    rows: list[Sequence[Cell]] = [("client", "steps", "start", "period", "missing", "verdict")]
    for one in clients:
        numbers = (one.length, one.start, one.period or "-", f"{one.missing_share:.1%}")
        rows.append((one.name, *map(str, numbers), one.verdict))
    Findings(
        rows,
        _summary(clients, data),
        refusals({one.name: one.refused for one in clients}),
        too_large((one.name, one.largest) for one in clients),
    ).print(every)
    return any(one.refused is None for one in clients)


def facts_of(series: ClientSeries, settings: DataSettings) -> ClientFacts:
    """The client as a run with these settings would see it."""
    present = series.values[np.isfinite(series.values)]
    length = len(series.values)
    return ClientFacts(
        name=series.name,
        start=series.start,
        length=length,
        period=find_period(series.values),
        missing_share=1 - len(present) / length if length else 1.0,  # sources trim what is missing
        largest=float(np.abs(present).max(initial=0)),
        constant=bool(len(present) and np.ptp(present) == 0),
        refused=why_refused(series, settings),
    )


def period_votes(clients: Sequence[ClientFacts]) -> list[tuple[int, int]]:
    """(period, clients that have it), most votes first, the shorter period first on a tie."""
    votes = Counter(client.period for client in clients if client.period is not None)
    return sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))


def _summary(clients: Sequence[ClientFacts], settings: DataSettings) -> list[tuple[str, Cell]]:
    lengths = [one.length for one in clients]
    usable = sum(one.refused is None for one in clients)
    steps = f"{min(lengths)} shortest, {median(lengths):g} median, {max(lengths)} longest"
    missing = sum(one.missing_share * one.length for one in clients) / max(sum(lengths), 1)
    votes = period_votes(clients)
    periods = [f"{period} ({count} client{'s' * (count > 1)})" for period, count in votes[:3]]
    facts: list[tuple[str, Cell]] = [
        ("clients", f"{len(clients)}, of them {usable} usable"),
        ("steps", steps),
        ("needed", f"{shortest_length(settings)} steps at period {settings.period}"),
        ("period found", ", ".join(periods) or "none"),
    ]
    if votes and votes[0][0] != settings.period:
        facts.append(hint(f"checked with --period {settings.period}"))
    return [*facts, ("missing", f"{missing:.2%} of all values")]
