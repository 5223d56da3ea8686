"""The picture of ``fedproto forecast``: the last periods of series, and what comes next."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.series import ClientSeries
from fedproto_app.report.drawing import COLOURS, STYLE, mark_dates, plot_band
from fedproto_app.serving.forecasts import ClientForecast
from fedproto_app.tasks.forecasting.intervals import LEVELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLIENTS = 6
_PERIODS_SHOWN = 4  # of the history
_SHADES = (0.3, 0.15)  # of the intervals of `LEVELS`


def draw_ahead(
    forecasts: Sequence[ClientForecast], series: Sequence[ClientSeries], period: int
) -> bytes:
    """A PNG of the first `MOST_CLIENTS` forecasts, each behind the last periods of its series."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context(STYLE):
        ahead_figure(forecasts, series, period).savefig(file, format="png")
    return file.getvalue()


def ahead_figure(
    forecasts: Sequence[ClientForecast], series: Sequence[ClientSeries], period: int
) -> Figure:
    """A panel a client; see `draw_ahead`."""
    from matplotlib.figure import Figure

    shown = forecasts[:MOST_CLIENTS]
    histories = {one.name: one for one in series}
    figure = Figure(figsize=(10, 2.6 * len(shown) + 0.8), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, one in zip(panels, shown, strict=True):
        _plot(axes, one, histories[one.client], period)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower right", ncols=4)
    figure.supylabel("value (the data's units)", fontsize=11)
    if len(forecasts) > len(shown):
        figure.suptitle(f"the first {len(shown)} of {len(forecasts)} clients", fontsize=12)
    return figure


def _plot(axes: Axes, one: ClientForecast, series: ClientSeries, period: int) -> None:
    known = series.values[-_PERIODS_SHOWN * period :]
    past = _places(one, one.first - len(known) + np.arange(len(known)))
    future = _places(one, one.first + np.arange(len(one.values)))
    axes.plot(past, known, color=COLOURS[0], label="known")
    marker = "o" if len(future) == 1 else None  # a line of one point is invisible
    axes.plot(future, one.values, color=COLOURS[1], linestyle="--", marker=marker, label="forecast")
    for level, half_width, alpha in zip(LEVELS, one.half_widths, _SHADES, strict=True):
        label = f"{level}% interval"
        plot_band(axes, future, one.values, half_width, COLOURS[1], label, alpha)
    axes.set_title(one.client, loc="left")
    axes.margins(x=0.01)
    if one.clock is None:
        axes.set_xlabel("step")
    else:
        mark_dates(axes)


def _places(one: ClientForecast, positions: NDArray[np.int64]) -> NDArray[Any]:
    return positions if one.clock is None else one.clock.moments(positions)
