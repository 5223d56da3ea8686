"""Charts as plain values: the numbers, the names, and a text that says what the chart shows.

Tasks and reports make charts, and `report/drawing.py` draws them for a page and for PNG files.
Every chart has a text for readers who cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.stored import AnyArray

MOST_POINTS = 600  # largest number of points of a line. More would be finer than a screen
_WIDE_SPAN = 20  # if largest / smallest is above this, a logarithmic axis is easier to read
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Axis:
    """The title, scale and ticks of an axis.

    title: includes the unit. log: logarithmic, with a linear part around 0 for values of 0 and
    below. integers: ticks at whole numbers only. times: values are seconds since 1970. percent:
    values are fractions, written in percent. limits: the lowest and the highest possible value.
    ticks: the values at which to put ticks, instead of round values. names: names of the values 0,
    1, …
    """

    title: str = ""
    log: bool = False
    integers: bool = False
    times: bool = False
    percent: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] = ()
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Line:
    """A line through the values y [n] at x [n]. Unknown values are NaN.

    look: the number of the line's colour and dashes, None for black. bands: for each label, how far
    a band reaches on both sides of y [n], or how far below and above y [2, n]. error: half the
    lengths of error bars [n]. joined: False for points without a line through them.
    """

    label: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    look: int | None = 0
    bands: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    error: NDArray[np.float64] | None = None
    joined: bool = True

    def thinned(self) -> Line:
        """Return the line with at most `MOST_POINTS` evenly spaced points, with both ends."""
        if len(self.x) <= MOST_POINTS:
            return self
        shown = evenly_spaced(len(self.x), MOST_POINTS)
        bands = {label: width[..., shown] for label, width in self.bands.items()}
        error = None if self.error is None else self.error[shown]
        return replace(self, x=self.x[shown], y=self.y[shown], bands=bands, error=error)


@dataclass(frozen=True)
class Lines:
    """Several lines over one x axis. wide: whether the chart takes the whole width of a page."""

    title: str
    text: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    wide: bool = False


@dataclass(frozen=True)
class DotRow:
    """A row of dots at values [n]. names: the dots' names [n]. middle: where to draw a stroke."""

    label: str
    values: NDArray[np.float64]
    names: Sequence[str]
    middle: float | None = None


@dataclass(frozen=True)
class Dots:
    """Rows of dots over one axis. kinds: the dots' names, if they are the same in every row."""

    title: str
    text: str
    x: Axis
    rows: Sequence[DotRow]
    kinds: Sequence[str] = ()


@dataclass(frozen=True)
class Bars:
    """A bar from 0 for each name, green above 0 and orange below. Values [n] are fractions.

    A bar longer than `limit` is cut there. The number beside the bar gives its full length."""

    title: str
    text: str
    x: Axis
    names: Sequence[str]
    values: NDArray[np.float64]
    limit: float = 1.0


@dataclass(frozen=True)
class Matrix:
    """A matrix of cells [R, C] shown as colours. Unknown values are NaN.

    meaning: what a value is. rows, columns: the names [R] and [C], "" for none. groups: for each
    row, the group of rows that stand together, or (). kinds: names of the values 0, 1, … if these
    are not amounts. square: whether rows and columns are the same clients. diverging: whether the
    colours diverge from 0. span: the values at the ends of the colour scale, so that several
    matrices can share one. log: whether the scale is logarithmic.
    """

    title: str
    text: str
    cells: NDArray[np.float64]
    meaning: str
    rows: Sequence[str] = ()
    groups: Sequence[str] = ()
    columns: Sequence[str] = ()
    row_title: str = ""
    column_title: str = ""
    kinds: Sequence[str] = ()
    square: bool = False
    diverging: bool = False
    span: tuple[float, float] | None = None
    log: bool = False


Chart = Lines | Dots | Bars | Matrix


@dataclass(frozen=True)
class Section:
    """A heading, a few sentences on its subject, and charts.

    choices: names of the charts if the reader chooses which one to see, or () if all are shown.
    """

    title: str
    text: str
    charts: Sequence[Chart] = ()
    choices: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Whether there is anything below the heading."""
        return bool(self.charts or self.text)


def evenly_spaced(count: int, limit: int) -> NDArray[np.intp]:
    """Return at most `limit` evenly spaced numbers from 0 … count − 1, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, limit)).astype(np.intp))


def is_wide(values: AnyArray) -> bool:
    """Whether the positive values span so wide a range that a logarithmic axis suits them."""
    positive = values[values > 0]
    return bool(positive.size and positive.max() / positive.min() > _WIDE_SPAN)


def number(value: float) -> str:
    """Return the value with about three digits. Large values get a letter: 54.3k, 3.7M."""
    for size, letter in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def gain_text(value: float) -> str:
    """Return a gain, given as a fraction, in percent. From ±1000% on, return a factor instead."""
    if not isfinite(value):
        return "from no error"  # the reference has no error, so there is no factor
    return f"{100 * value:+.0f}%".replace("-", "−") if abs(value) < 10 else f"×{1 + abs(value):.0f}"
