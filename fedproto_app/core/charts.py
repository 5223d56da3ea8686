"""Charts as values: the numbers, the names, and what the chart says in words.

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

MOST_POINTS = 600  # of a line. More would be finer than a screen
_WIDE_SPAN = 20  # from this ratio of largest to smallest on, a logarithmic axis reads better
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Axis:
    """The title, scale and ticks of an axis.

    title: with the unit. log: logarithmic, with values of 0 and below on a linear part around 0.
    integers: ticks at whole numbers only. times: values are seconds since 1970. percent: values are
    fractions, written in percent. limits: where the values are bounded. ticks: values that have a
    tick, instead of round ones. names: names of the values 0, 1, …
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
    """Values y [n] at x [n], NaN where unknown.

    look: the number of its colour and dashes, None for black. bands: by label, [n] how far a band
    reaches to both sides of y, or [2, n] how far below and above it. error: [n] half lengths of
    error bars. joined: False for points without a line through them.
    """

    label: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    look: int | None = 0
    bands: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    error: NDArray[np.float64] | None = None
    joined: bool = True

    def thinned(self) -> Line:
        """Return the line with at most `MOST_POINTS` points, evenly taken, both ends included."""
        if len(self.x) <= MOST_POINTS:
            return self
        shown = evenly_spaced(len(self.x), MOST_POINTS)
        bands = {label: width[..., shown] for label, width in self.bands.items()}
        error = None if self.error is None else self.error[shown]
        return replace(self, x=self.x[shown], y=self.y[shown], bands=bands, error=error)


@dataclass(frozen=True)
class Lines:
    """Lines over one axis. wide: takes the whole width of a page."""

    title: str
    text: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    wide: bool = False


@dataclass(frozen=True)
class DotRow:
    """Dots at values [n] in a row. names: of the dots, [n]. middle: a stroke at this value."""

    label: str
    values: NDArray[np.float64]
    names: Sequence[str]
    middle: float | None = None


@dataclass(frozen=True)
class Dots:
    """Rows of dots over one axis. kinds: the names of a row's dots, if every row has the same."""

    title: str
    text: str
    x: Axis
    rows: Sequence[DotRow]
    kinds: Sequence[str] = ()


@dataclass(frozen=True)
class Bars:
    """A bar from 0 for each name, green above 0 and orange below. Values [n] are fractions.

    A bar longer than `limit` is cut there. The number beside it gives its length."""

    title: str
    text: str
    x: Axis
    names: Sequence[str]
    values: NDArray[np.float64]
    limit: float = 1.0


@dataclass(frozen=True)
class Matrix:
    """Cells [R, C] as colours, NaN where unknown.

    meaning: what a value is. rows, columns: names [R] and [C], "" for none. groups: [R] of rows
    that stand together, or none. kinds: names of the values 0, 1, … where these are not amounts.
    square: rows and columns are the same clients. diverging: colours on both sides of 0. span: the
    values at the ends of the colours, for several matrices with one scale. log: logarithmic.
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
    """A heading, what there is to know about it in a few sentences, and charts.

    choices: names of the charts if a reader chooses one of them, or () where all are shown.
    """

    title: str
    text: str
    charts: Sequence[Chart] = ()
    choices: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Whether there is anything below the heading."""
        return bool(self.charts or self.text)


def evenly_spaced(count: int, limit: int) -> NDArray[np.intp]:
    """Return at most `limit` evenly spaced places of 0 … count − 1, both ends included."""
    return np.unique(np.linspace(0, count - 1, min(count, limit)).astype(np.intp))


def is_wide(values: AnyArray) -> bool:
    """Whether the values above 0 span so much that a logarithmic axis shows them better."""
    positive = values[values > 0]
    return bool(positive.size and positive.max() / positive.min() > _WIDE_SPAN)


def number(value: float) -> str:
    """Return the value in about three digits, a large one with a letter: 54.3k, 3.7M."""
    for size, letter in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def gain_text(value: float) -> str:
    """Return a gain, a fraction, in percent, or a loss of ten times the value as a factor."""
    if not isfinite(value):
        return "from no error"  # alone, so that no factor says how much worse it is
    return f"{100 * value:+.0f}%".replace("-", "−") if abs(value) < 10 else f"×{1 + abs(value):.0f}"
