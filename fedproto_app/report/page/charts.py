"""What a chart of a report is, before anybody draws it: numbers, names, and what it says in words.

Reports of tasks make charts; `svg` draws them. Every one has a text for those who do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 600  # of a line; more would be finer than a screen


@dataclass(frozen=True)
class Axis:
    """title: with the unit. log: logarithmic, values above 0 alone, and 0 apart at its start.
    whole: ticks at whole numbers alone. times: values are seconds since 1970. percent: values are
    fractions, told in percent. limits: of the axis, where the figure is bounded."""

    title: str
    log: bool = False
    whole: bool = False
    times: bool = False
    percent: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """Values y [n] at x [n], NaN where unknown; band: [n] how far the band reaches to both sides.

    look: the number of its colour and dashes; None: drawn as what is known, in ink.
    """

    label: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    band: NDArray[np.float64] | None = None
    look: int | None = 0

    def thinned(self) -> Line:
        """With at most `MOST_POINTS` points, evenly taken, the first and the last among them."""
        if len(self.x) <= MOST_POINTS:
            return self
        kept = np.unique(np.linspace(0, len(self.x) - 1, MOST_POINTS).astype(int))
        band = None if self.band is None else self.band[kept]
        return Line(self.label, self.x[kept], self.y[kept], band, self.look)


@dataclass(frozen=True)
class Lines:
    """Lines over one axis. wide: whether it takes the whole width of the page."""

    title: str
    text: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    wide: bool = False


@dataclass(frozen=True)
class DotRow:
    """Dots at values [n] in a row of its own; names: [n] of the dots. middle: a stroke there."""

    label: str
    values: NDArray[np.float64]
    names: Sequence[str]
    middle: float | None = None


@dataclass(frozen=True)
class Dots:
    """Rows of dots over one axis of values, told apart by `kinds` where every row has the same."""

    title: str
    text: str
    x: Axis
    rows: Sequence[DotRow]
    kinds: Sequence[str] = ()
    wide: bool = False


@dataclass(frozen=True)
class Bars:
    """A bar from 0 for each name, to the left where the value is below; values: [n] fractions.

    good, bad: what bars to the left and to the right mean. most: longer bars are cut there, and the
    number beside them tells how long they would be.
    """

    title: str
    text: str
    x: Axis
    names: Sequence[str]
    values: NDArray[np.float64]
    good: str
    bad: str
    most: float = 1.0


@dataclass(frozen=True)
class Matrix:
    """Cells [R, C], NaN where unknown.

    rows: names, [R] or none; groups: [R] of the rows that stand together, or none. kinds: names of
    the values 0, 1, … where these are no amounts. columns: names [C], or none. square: whether
    rows and columns are the same clients. diverging: colours on both sides of 0.
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


Chart = Lines | Dots | Bars | Matrix


@dataclass(frozen=True)
class Section:
    """A heading, what there is to know about it in a few sentences, and charts."""

    title: str
    text: str
    charts: Sequence[Chart] = field(default_factory=tuple)
