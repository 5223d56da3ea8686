"""Pictures of single clients' kept models, from the node state that a simulation leaves behind."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.drawing import mark_dates, plot_band
from fedproto_app.report.forecasting.examples import (
    Example,
    Forecast,
    find_examples,
    kept_forecasts,
    last_periods,
)
from fedproto_app.report.runs import read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.tasks.forecasting.intervals import LEVELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_BLUE, _VERMILION = "#0072B2", "#D55E00"  # of Okabe and Ito (2008), as in the other pictures
_LARGEST_CIRCLES = 48  # phases; circles for more would be specks
_MOVED = 0.01  # of where an entry began
_PHASE_LABELS = 8  # about so many on an axis

_log = logging.getLogger(__name__)


def state_pictures(run_dir: Path) -> dict[str, Figure]:
    """The pictures that the clients' models allow, by file name.

    filter.png: FUELS's learned filters (P, Fig. 9), where they have moved. forecast.png: the last
    periods of the test part, forecast and true. Both need the node state of a simulation, the
    second one also the data; without them a picture is left out.
    """
    figures: dict[str, Figure] = {}
    if not (run_dir / "state").is_dir():
        return figures
    from safetensors import SafetensorError

    try:
        settings = settings_from(read_run(run_dir).settings)
        examples = find_examples(run_dir, settings)
        if _filters_moved(examples, settings):
            figures["filter.png"] = _draw_filters(examples, run_dir.name)
        figures["forecast.png"] = _draw_forecasts(examples, settings, run_dir.name)
    except (FedProtoError, SafetensorError, OSError) as error:
        _log.info("%s: not every picture of its clients' models: %s", run_dir, error)
    return figures


def _filters_moved(examples: Sequence[Example], settings: Settings) -> bool:
    """Whether filters were learned, and are more than the grids of equal entries they began as."""
    filters = [one.parameters["filter"] for one in examples if "filter" in one.parameters]
    start = getattr(settings.method_settings, "filter_start", 1.0)
    moved = [not np.allclose(weight.numpy(), start, rtol=_MOVED, atol=0) for weight in filters]
    return len(filters) == len(examples) and any(moved)


def _draw_filters(examples: Sequence[Example], name: str) -> Figure:
    from matplotlib.figure import Figure

    filters = [example.parameters["filter"].numpy() for example in examples]
    period, largest = len(filters[0]), max(float(np.abs(weight).max()) for weight in filters)
    circles = period <= _LARGEST_CIRCLES
    figure = Figure(figsize=(max(7.5, 4.9 * len(examples)), 6.1), layout="constrained")
    panels = figure.subplots(1, len(examples), squeeze=False)[0]
    for axes, example, weight in zip(panels, examples, filters, strict=True):
        axes.set_title(f"{example.title}\n{(weight > 0).mean():.0%} of the entries above 0")
        if circles:
            _plot_circles(axes, weight, largest)
        else:
            image = _plot_heat_map(axes, weight, largest)
        labelled = range(0, period, ceil(period / _PHASE_LABELS))
        axes.set_xticks(labelled)
        axes.set_yticks(labelled)
        axes.set(xlabel=f"phase of the shifted view (0 … {period - 1})")
    panels[0].set_ylabel(f"phase of the original view (0 … {period - 1})")
    if circles:
        key = f"area = |W|, at most {largest:.2g}; blue disc: W > 0, orange ring: W ≤ 0"
    else:
        key = "blue: W > 0, red: W < 0"
        figure.colorbar(image, ax=list(panels), label="W", shrink=0.7)
    figure.suptitle(f"{name}: filter W of the kept models\n{key}", fontsize=12)
    return figure


def _plot_circles(axes: Axes, weight: NDArray[np.floating[Any]], largest: float) -> None:
    """W as circles of area ∝ |W|: discs above 0, rings below, told apart in grey print too."""
    from matplotlib.collections import EllipseCollection

    period = len(weight)
    columns, rows = np.meshgrid(np.arange(period), np.arange(period))
    widths = 0.95 * np.sqrt(np.abs(weight) / (largest or 1))
    for mask, colour, filled in ((weight > 0, _BLUE, True), (weight <= 0, _VERMILION, False)):
        circles = EllipseCollection(
            widths[mask],
            widths[mask],
            np.zeros(mask.sum()),
            units="xy",
            offsets=np.column_stack([columns[mask], rows[mask]]),
            offset_transform=axes.transData,
            facecolor=colour if filled else "none",
            edgecolor=colour,
            linewidth=0 if filled else 1.2,
        )
        axes.add_collection(circles, autolim=False)
    axes.set(xlim=(-0.7, period - 0.3), ylim=(period - 0.3, -0.7), aspect="equal")
    axes.set_axisbelow(True)


def _plot_heat_map(axes: Axes, weight: NDArray[np.floating[Any]], largest: float) -> ScalarMappable:
    axes.grid(False)
    return axes.imshow(weight, cmap="RdBu", vmin=-largest, vmax=largest, interpolation="nearest")


def _draw_forecasts(examples: Sequence[Example], settings: Settings, name: str) -> Figure:
    from matplotlib.figure import Figure

    forecasts = kept_forecasts(examples, settings)
    figure = Figure(figsize=(10, 2.9 * len(examples) + 0.8), layout="constrained")
    panels = figure.subplots(len(examples), 1, squeeze=False)[:, 0]
    for axes, example, shown in zip(panels, examples, forecasts, strict=True):
        _plot_forecast(axes, shown, settings.data.period)
        rmse = shown.mse**0.5 * shown.std
        errors = f"test MSE {shown.mse:.3g}, RMSE {rmse:.3g} in the data's units"
        axes.set_title(f"{example.title}: {errors}", loc="left")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    if any(shown.clock is None for shown in forecasts):
        panels[-1].set_xlabel(
            f"step of the test part (marked: phase 0 of the period of {settings.data.period} steps)"
        )
    figure.supylabel("value (the data's units)", fontsize=11)
    ahead = settings.data.horizon
    made = f"forecasts of {ahead} steps at once" if ahead > 1 else "one-step forecasts"
    figure.suptitle(f"{name}: {made}, by the kept models", fontsize=12)
    return figure


def _plot_forecast(axes: Axes, shown: Forecast, period: int) -> None:
    """The last periods of a client's test part."""
    steps = last_periods(shown, period)
    times = steps if shown.clock is None else shown.clock.moments(shown.positions[steps])
    forecast, half_width = shown.forecast[steps], shown.half_widths[0, steps]
    axes.plot(times, shown.truth[steps], color=_BLUE, linewidth=2.2, label="true")
    axes.plot(times, forecast, color=_VERMILION, linestyle="--", label="forecast")
    plot_band(axes, times, forecast, half_width, _VERMILION, f"{LEVELS[0]}% interval")
    if shown.clock is None:
        axes.set_xticks(steps[shown.phases[steps] == 0])
    else:
        mark_dates(axes)
    axes.margins(x=0.01)
