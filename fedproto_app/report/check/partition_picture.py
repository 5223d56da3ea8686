"""Which client holds how many samples of which class, at every stage, as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito (2008) as in the other pictures; stages are told apart by their place as well.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_NAMED = 40  # clients or classes; more names than that cannot be read
_MOST_CLIENTS = 300  # rows; more would be finer than the dots
_CELL = 0.22  # inches: the height of a client, the width of a stage, where there is room for it
_LEAST_DOT, _LEAST_CELL, _LARGEST_CELL = 1.8, 4.5, 15.0  # points; a single sample must be seen
_LETTER = 6.0  # points, about, in the labels of the classes


def draw_partition_picture(
    counts: Mapping[str, NDArray[np.int64]], classes: Sequence[str], thing: str = "image"
) -> Figure:
    """Dots at clients × classes, area = samples; a class's stages side by side, a colour each.

    counts: for each client [M, C] train samples, with its own number of stages M. classes: [C]
    names. thing: what one sample is, an image or a sequence. Above, the samples of each class over
    all clients. Of very many clients the first are shown, and the title says so.
    """
    from matplotlib.figure import Figure

    shown = dict(list(counts.items())[:_MOST_CLIENTS])
    stages = max(len(table) for table in shown.values())
    width = float(np.clip(len(classes) * stages * _CELL, 6, 15))
    height = float(np.clip(len(shown) * _CELL, 1.2, 11))
    figure = Figure(figsize=(width + 2.2, height + 2.6), layout="constrained")
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, height])
    totals = np.sum([table.sum(axis=0) for table in counts.values()], axis=0)
    top.bar(range(len(classes)), totals, width=0.8, color="0.6")
    top.set_ylabel(f"{thing}s")
    for side in ("top", "right"):
        top.spines[side].set_visible(False)
    # The figure is not laid out yet: its cells will be a little smaller than this.
    cell = 72 * 0.9 * min(width / (len(classes) * stages), height / len(shown))
    cell = float(np.clip(cell, _LEAST_CELL, _LARGEST_CELL))  # of crowded cells, dots overlap
    largest = max(int(table.max(initial=0)) for table in shown.values())
    _plot_dots(main, shown, stages, cell, max(largest, 1))
    _label(main, list(shown), classes, 72 * width / len(classes))
    _legend(figure, stages, cell, max(largest, 1), thing)
    some = f"{len(shown)} of " if len(shown) < len(counts) else ""
    figure.suptitle(f"train {thing}s of {some}{len(counts)} clients", fontsize=12)
    return figure


def _size(samples: NDArray[np.int64], largest: int, cell: float) -> NDArray[np.float64]:
    """Matplotlib's s (points²) of dots whose area is how many samples, the largest a cell's."""
    widths = cell * np.sqrt(samples / largest)
    return np.where(samples > 0, np.maximum(widths, _LEAST_DOT), 0.0) ** 2


def _plot_dots(
    axes: Axes, counts: Mapping[str, NDArray[np.int64]], stages: int, cell: float, largest: int
) -> list[PathCollection]:
    drawn = []
    for stage in range(stages):
        here = [(row, t[stage]) for row, t in enumerate(counts.values()) if stage < len(t)]
        rows, tables = np.array([row for row, _ in here]), np.stack([table for _, table in here])
        which, labels = np.nonzero(tables)
        drawn.append(
            axes.scatter(
                labels + _offset(stage, stages),
                rows[which],
                s=_size(tables[which, labels], largest, cell),
                color=_COLOURS[stage % len(_COLOURS)],
                linewidth=0,
            )
        )
    return drawn


def _offset(stage: int, stages: int) -> float:
    """Where a stage's dots lie in a class's column, which is 1 wide."""
    return (stage + 0.5) / stages * 0.9 - 0.45


def _label(axes: Axes, names: Sequence[str], classes: Sequence[str], column: float) -> None:
    """column: the width of a class's column in points."""
    step = ceil(len(classes) / _NAMED)
    axes.set_xticks(range(0, len(classes), step), classes[::step])
    if max(map(len, classes)) * _LETTER > column * step:
        axes.tick_params(axis="x", rotation=90)
    axes.tick_params(axis="x", labelsize=8)
    every = 1 if len(names) <= _NAMED else 10
    axes.set_yticks(range(0, len(names), every), names[::every], fontsize=8)
    axes.set(xlim=(-0.55, len(classes) - 0.45), ylim=(len(names) - 0.3, -0.7), xlabel="class")
    axes.grid(False)
    for edge in np.arange(1, len(classes)) - 0.5:
        axes.axvline(edge, color="0.85", linewidth=0.6, zorder=0)
    for row in range(len(names)):
        axes.axhline(row, color="0.93", linewidth=0.5, zorder=0)


def _legend(figure: Figure, stages: int, cell: float, largest: int, thing: str) -> None:
    """Colours of the stages, and dots of round numbers of samples."""
    entries = []
    if stages > 1:
        for stage in range(stages):
            colour = _COLOURS[stage % len(_COLOURS)]
            entries.append(_dot(colour, 6, f"stage {stage + 1}"))
    for samples in sorted({1, *(_leading_digit(largest / part) for part in (16, 4, 1))}):
        size = float(np.sqrt(_size(np.array([samples]), largest, cell)[0]))
        entries.append(_dot("0.4", size, f"{samples} {thing}{'s' if samples > 1 else ''}"))
    figure.legend(handles=entries, loc="outside right upper", frameon=False, fontsize=9)


def _leading_digit(value: float) -> int:
    """The value rounded down to its first digit: 100 for 184, 1 for 0.5."""
    power = int(10 ** (len(str(int(value))) - 1))
    return max(1, int(value // power) * power)


def _dot(colour: str, size: float, label: str) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        marker="o",
        linestyle="",
        color=colour,
        markersize=size,
        markeredgewidth=0,
        label=label,
    )
