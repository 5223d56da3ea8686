"""What all pictures of runs share: their look, curves over rounds, distributions over clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.report.runs import read_clients
from fedproto_app.report.task_report import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedproto_app.report.page.charts import Lines

# Okabe and Ito (2008): told apart with every common colour blindness; dashes tell them apart in
# grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "savefig.dpi": 150,
}
PARAMETERS = "parameters sent up and down, all clients"
_PALETTE = 20  # colours of matplotlib's largest palette of kinds
_WIDE_SPAN = 20  # from this ratio of largest to smallest on, a logarithmic axis reads better


def look(number: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],  # 7 and 4 have no divisor: 28 looks
    }


def category_colours(count: int) -> list[Any]:
    """A colour for each of so many kinds; beyond twenty, neighbours are hard to tell apart."""
    from matplotlib import colormaps

    if count <= len(COLOURS):
        return list(COLOURS[:count])
    if count <= _PALETTE:
        return [colormaps["tab20"](number) for number in (*range(0, 20, 2), *range(1, 20, 2))][
            :count
        ]
    return [colormaps["turbo"](place) for place in np.linspace(0, 1, count)]


def is_wide(values: NDArray[Any]) -> bool:
    """Whether the values above 0 span so much that a logarithmic axis shows them better."""
    positive = values[values > 0]
    return bool(positive.size and positive.max() / positive.min() > _WIDE_SPAN)


def client_figures(run_dir: Path, column: str, scale: float = 1.0) -> NDArray[np.float64]:
    """[N] one figure of ``clients.csv`` in units of `scale`, of the clients that have it."""
    values = [float(row[column] or "nan") for row in read_clients(run_dir)]
    return np.array([value for value in values if isfinite(value)]) / scale


def sent_so_far(rounds: Sequence[Mapping[str, Any]]) -> list[int]:
    """Parameters sent up and down by the end of each round."""
    return list(
        accumulate(record["parameters_up"] + record["parameters_down"] for record in rounds)
    )


def draw_clients(figures: Mapping[str, NDArray[np.float64]], measure: Measure, name: str) -> Figure:
    """Distributions of clients' figures [N], by label; equal ones are one line."""
    from matplotlib.figure import Figure

    apart = {label: np.array(its) for label, its in _joined(figures).items()}
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    plot_distribution(axes, apart, {label: look(i) for i, label in enumerate(apart)}, measure)
    axes.set_title(f"{name}\n{max(map(len, apart.values()))} clients")
    return figure


def draw_rounds(
    rounds: Sequence[Mapping[str, Any]],
    lines: Mapping[str, Sequence[float | None]],
    axis: str,
    name: str,
    scale: float = 1.0,
) -> Figure:
    """Lines by label over the rounds (left) and over what they cost (right), of the known values.

    rounds: of rounds.jsonl. lines: a value for each round, drawn in units of `scale`; equal ones
    are one line.
    """
    from matplotlib.figure import Figure

    numbers, sent = [record["round"] for record in rounds], sent_so_far(rounds)
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, places in ((left, numbers), (right, sent)):
        for number, (label, values) in enumerate(_joined(lines).items()):
            plot_known(axes, places, values, scale, label=label, **look(number))
    left.set(xlabel="round", ylabel=axis)
    mark_whole(left)
    drawn = np.array([y for line in left.lines for y in np.asarray(line.get_ydata())])
    if not axis.endswith("(%)") and is_wide(drawn):
        left.set_yscale("log")
    right.set(xlabel=PARAMETERS)
    right.ticklabel_format(axis="x", style="sci", scilimits=(0, 4))  # long numbers would overlap
    if left.lines:
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(name, fontsize=12)
    return figure


def _joined(lines: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Equal lines as one with all their labels, since the last would hide the others."""
    labels: dict[tuple[Any, ...], list[str]] = {}
    for label, values in lines.items():
        labels.setdefault(tuple(values), []).append(label)
    return {" = ".join(names): list(values) for values, names in labels.items()}


def plot_distribution(
    axes: Axes,
    figures: Mapping[str, NDArray[np.float64]],
    looks: Mapping[str, dict[str, Any]],
    measure: Measure,
) -> None:
    """Cumulative distributions of clients' figures [N]; a label and a look each."""
    for label, values in figures.items():
        if values.size:
            axes.ecdf(values, label=label, **looks[label])
    if measure.limits:
        axes.set_xlim(*measure.limits)
    elif is_wide(np.concatenate(list(figures.values()))):
        axes.set_xscale("log")
    axes.set(xlabel=f"{measure.axis} of a client", ylabel="share of clients", ylim=(0, 1.02))
    if axes.lines:
        axes.legend()


def plot_known(
    axes: Axes,
    places: Iterable[float],
    values: Iterable[float | None],
    scale: float = 1.0,
    **looks: Any,
) -> list[float]:
    """A line through the known values, in units of `scale`; returns where they are."""
    known = [(x, y / scale) for x, y in zip(places, values, strict=True) if y is not None]
    if known:
        marker = "o" if len(known) == 1 else None  # a line of one point is invisible
        axes.plot(*zip(*known, strict=True), **{"marker": marker, **looks})
    return [x for x, _ in known]


def plot_band(
    axes: Axes,
    places: NDArray[Any],
    middle: NDArray[np.floating[Any]],
    half_width: NDArray[np.floating[Any]],
    colour: str,
    label: str,
    alpha: float = 0.2,
) -> None:
    """The values no farther than the half width [n] from the middle [n]; none where unknown."""
    if len(places) == 1:  # an area of no breadth is invisible
        axes.errorbar(
            places, middle, half_width, color=colour, alpha=2 * alpha, capsize=4, label=label
        )
        return
    low, high = middle - half_width, middle + half_width
    axes.fill_between(places, low, high, color=colour, alpha=alpha, linewidth=0, label=label)


def mark_whole(axes: Axes) -> None:
    """Ticks of an axis of rounds: there is no round 1.5."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_chart(axes: Axes, chart: Lines, known: Mapping[str, Mapping[str, Any]]) -> None:
    """A page's chart of lines among the pictures; its times are seconds since 1970.

    known: looks by label, which go before the chart's own.
    """
    for line in chart.lines:
        places = line.x.astype("datetime64[s]") if chart.x.times else line.x
        ink = {"color": "black", "linewidth": 2.2}
        looks = ink if line.look is None else known.get(line.label) or look(line.look)
        axes.plot(places, line.y, label=line.label, **looks)
        if line.band is not None and line.look is not None:
            colour = str(looks["color"])
            plot_band(axes, places, line.y, line.band, colour, f"band of {line.label}")
    axes.set_title(chart.title, loc="left")
    axes.set(xlabel=chart.x.title, ylabel=chart.y.title)
    axes.margins(x=0.01)
    if chart.x.times:
        mark_dates(axes)
    elif chart.x.whole:
        mark_whole(axes)
    if chart.y.log:
        axes.set_yscale("log")
    if chart.y.percent:
        axes.yaxis.set_major_formatter("{x:.0%}")


def mark_dates(axes: Axes) -> None:
    """Dates and hours below an axis of times, as few words as possible."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    words = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(words)
