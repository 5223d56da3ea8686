"""Make the charts of clients' responses to the columns known in advance.

A simulation leaves the responses in its run folder. Deployed nodes keep theirs to themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import Axis, Chart, DotRow, Dots, Line, Lines, Section, number
from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.known_columns import YEAR_COLUMNS
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.report.forecasting.examples import kept_responses, ranked_clients, series_of
from fedproto_app.report.runs import read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.response.curve import curve, trained_range
from fedproto_app.strategies.response.features import Response

POINTS = 41  # of each curve
BAND = 80  # percent of the clients
_MOST_CLIENTS, _MOST_COLUMNS, _SHOWN = 100, 6, 3
_BINS, _HEIGHT = 30, 0.15  # of the area of training data. Its height is a share of the curves'
_MOST_CHOICES = 12  # clients to choose from

_log = logging.getLogger(__name__)
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class _Clients:
    """The clients with a response. Those with the best, median and worst error come first.

    columns: the names of all columns. by_client: the responses, by client.
    """

    settings: Settings
    columns: tuple[str, ...]
    windows: Mapping[str, ClientWindows]
    by_client: Mapping[str, Response]

    def flags(self, name: str) -> NDArray[np.bool_]:
        """Return the flag of this name for all columns of all clients, [K, k]."""
        return np.array([getattr(r.columns, name) for r in self.by_client.values()])

    def curve(self, response: Response, place: int, x: Vector) -> Vector:
        """Return the curve of a response, shifted to be 0 at the mean of all clients.

        Without the shift, clients that share nothing would have their 0 at different places, each
        at its own mean.
        """
        means = [response.columns.mean[0, place] for response in self.by_client.values()]
        values = curve(response, place, np.append(x, np.mean(means)), self.settings.data.period)
        return np.asarray(values[:-1] - values[-1], dtype=np.float64)

    def trained(self, client: str, place: int) -> Vector:
        """Return the values of a column at the targets of a client's train part."""
        windows = self.windows[client]
        first, last = windows.start + windows.batches.min(), windows.start + windows.batches.max()
        start, horizon = windows.series.start, self.settings.data.horizon
        values: Vector = windows.series.known[max(0, first - start) : last + horizon - start, place]
        return values


def response_sections(run_dir: Path) -> list[Section]:
    """Return the sections on the responses of a simulation's clients, or [] without responses."""
    clients = _clients_of(run_dir)
    if clients is None:
        return []
    about = (
        "How much a forecast changes if a column stays at a value instead of at the mean of all "
        "clients, in standard deviations of the client's series. Other columns stay as they are. "
        f"The band holds the middle {BAND}% of the clients. The lines of the clients with the "
        "best, the median and the worst test error end where their training data end. The area at "
        "the bottom shows where the training data of all clients are."
    )
    panels = _panels(clients)
    charts = _charts(clients, panels)
    sections = [Section("What the columns known in advance change", about, charts)]
    if panels:
        names = list(clients.by_client)[:_MOST_CHOICES]
        place, chart = panels[0]
        choices = [_of_client(clients, name, place, chart.lines[0].x) for name in names]
        about = (
            "What a client learned from its own data, and what it learned from the sums of all "
            "clients, add up to the line of its forecasts. The area at the bottom shows where its "
            "training data are."
        )
        sections.append(Section("A client and the others", about, choices, names))
    return sections


def response_charts(run_dir: Path) -> list[Chart]:
    """Return charts of the columns that change forecasts most, and one chart for all 0/1 columns.

    Return [] if there is no response, if the nodes' state of a simulation is missing, or if the
    data are gone.
    """
    clients = _clients_of(run_dir)
    return [] if clients is None else _charts(clients, _panels(clients))


def _clients_of(run_dir: Path) -> _Clients | None:
    try:
        settings = settings_from(read_run(run_dir).settings)
        if not settings.has_response or not (run_dir / "state").is_dir():
            return None
        responses = kept_responses(run_dir, ranked_clients(run_dir, _MOST_CLIENTS))
        series = series_of(settings, responses)
        for name, response in responses.items():
            if len(series[name].columns) != len(response.columns.is_used):
                raise FedProtoError("the data have other known columns, and so have changed")
        windows = {name: make_windows(series[name], settings.data) for name in responses}
    except (FedProtoError, OSError) as error:
        _log.info("%s: no responses to show: %s", run_dir, error)
        return None
    columns = next((series[client].columns for client in responses), ())
    return _Clients(settings, columns, windows, responses) if responses else None


def _charts(clients: _Clients, panels: Sequence[tuple[int, Lines]]) -> list[Chart]:
    is_effect = clients.flags("is_used").any(axis=0) & clients.flags("is_plain").all(axis=0)
    rows = [
        _effects(clients, place)
        for place in np.flatnonzero(is_effect).tolist()
        if clients.columns[place] not in YEAR_COLUMNS
    ]
    shown = panels[: _MOST_COLUMNS - bool(rows)]
    return [*(chart for _, chart in shown), *([_dots(rows)] if rows else [])]


def _panels(clients: _Clients) -> list[tuple[int, Lines]]:
    """Return the place and chart of each column of numbers.

    The column that changes forecasts most comes first.
    """
    is_curve = clients.flags("is_used").any(axis=0) & ~clients.flags("is_plain").all(axis=0)
    panels = []
    for place in np.flatnonzero(is_curve).tolist():
        ends = np.array([trained_range(r, place) for r in clients.by_client.values()])
        if ends.min() < ends.max():
            panels.append((place, _curves(clients, place, ends)))
    return sorted(panels, key=lambda panel: -float(np.ptp(panel[1].lines[0].y)))


def _curves(clients: _Clients, place: int, ends: Vector) -> Lines:
    """Return a column's chart. ends: [K, 2], the range of each client's training data."""
    name, x = clients.columns[place], np.linspace(ends.min(), ends.max(), POINTS)
    curves = np.array([clients.curve(r, place, x) for r in clients.by_client.values()])
    low, middle, high = np.percentile(curves, [50 - BAND / 2, 50, 50 + BAND / 2], axis=0)
    band = np.stack([middle - low, high - middle])
    lines = [Line("median of the clients", x, middle, 0, {f"{BAND}% of the clients": band})]
    for row, client in enumerate(list(clients.by_client)[:_SHOWN]):
        has_data = (x >= ends[row, 0]) & (x <= ends[row, 1])
        lines.append(Line(client, x, np.where(has_data, curves[row], np.nan), row + 1))
    values = np.concatenate([clients.trained(client, place) for client in clients.by_client])
    first, last = (f"{number(middle[end])} at {number(x[end])}" for end in (0, -1))
    text = f"Line chart of what {name} changes; median of the clients: {first}, {last}."
    y = Axis("change (standard deviations)")
    return Lines(name, text, Axis(name), y, [*lines, _data(values, lines)])


def _of_client(clients: _Clients, client: str, place: int, x: Vector) -> Lines:
    """Return a chart of a client's curve and the curve's parts, in the data's units."""
    response, name = clients.by_client[client], clients.columns[place]
    first_part = replace(response, parts=response.parts[:1])  # of its own data
    size = clients.windows[client].scale.std
    together, alone = (size * clients.curve(part, place, x) for part in (response, first_part))
    lines = [
        Line("in its forecasts", x, together, None),
        Line("from its own data", x, alone, 1),
        Line("from the sums of all clients", x, together - alone, 0),
    ]
    first, last = (f"{number(together[end])} at {number(x[end])}" for end in (0, -1))
    data = _data(clients.trained(client, place), lines)
    return Lines(
        f"{client}: {name}",
        f"Line chart of what {name} changes for {client}: {first}, {last}.",
        Axis(name),
        Axis("change, in the data's units"),
        [*lines, data],
    )


def _data(values: Vector, lines: Sequence[Line]) -> Line:
    """Return an area below these lines that is higher where there are more values."""
    x, shown = lines[0].x, np.concatenate([line.y for line in lines])
    bottom, size = float(np.nanmin(shown)), float(np.ptp(shown[np.isfinite(shown)])) or 1.0
    counts, edges = np.histogram(values, bins=_BINS, range=(x[0], x[-1]))
    height = _HEIGHT * size * counts / max(1, counts.max())
    below = np.full(_BINS, bottom - 2 * _HEIGHT * size)
    label, middles = "training data", (edges[:-1] + edges[1:]) / 2
    return Line(label, middles, below, None, {label: np.stack([0 * height, height])})


def _effects(clients: _Clients, place: int) -> DotRow:
    """Return a dot per client: how much its forecast changes if the column is 1 instead of 0."""
    ends = np.array([0.0, 1.0])
    curves = np.array([clients.curve(r, place, ends) for r in clients.by_client.values()])
    values = curves[:, 1] - curves[:, 0]
    return DotRow(clients.columns[place], values, list(clients.by_client), float(np.median(values)))


def _dots(rows: Sequence[DotRow]) -> Dots:
    medians = ", ".join(f"{row.label} {number(row.middle or 0.0)}" for row in rows)
    text = f"Dots of what columns of 0 and 1 change for each client. Medians: {medians}."
    return Dots("1 instead of 0", text, Axis("change (standard deviations)"), rows)
