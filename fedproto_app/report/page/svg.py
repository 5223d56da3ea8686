"""Charts as inline SVG. Colours and type come from the page's style; every text is escaped.

A chart of half the page's width is drawn 420 wide, so that its letters are legible where the page
is narrow and charts stand one below the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedproto_app.report.page.axes import Scale, number, scale_of, ticks
from fedproto_app.report.page.charts import Axis, Bars, Chart, Dots, Line, Lines, Matrix
from fedproto_app.report.page.matrix import matrix_parts

LOOKS, DASHES = 7, 4  # colours and dashes of the style: 28 lines are told apart
HALF, WHOLE = 420.0, 860.0
_HEIGHT, _WIDE_HEIGHT = 270.0, 250.0
_LETTER = 6.3  # width of one, about
_LONGEST_NAME = 24
_LONGEST_OF_WIDE = 36  # in a chart of the whole width
_ROW = 20.0
_MOST_ROWS = 40  # with a name each
_MOST_DOTS = 400  # of a row
_TICK_WIDTH = 62.0  # a tick of an axis of values needs so much room
_TOP, _RIGHT = 14.0, 16.0


class Drawing:
    """An SVG that grows. All numbers are in its own units, and rounded to a tenth."""

    def __init__(self, width: float, height: float, text: str) -> None:
        box = f"0 0 {width:.0f} {height:.0f}"
        self.width, self.height = width, height
        self.root = ElementTree.Element("svg", {"viewBox": box, "role": "img", "aria-label": text})

    def add(self, tag: str, look: str, title: str = "", **place: float | str) -> None:
        """An element with a class, and attributes; `title` is told when a pointer rests on it."""
        made = ElementTree.SubElement(self.root, tag, {"class": look} if look else {})
        for name, value in place.items():
            told = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
            made.set(name.replace("_", "-"), told)
        if title:
            ElementTree.SubElement(made, "title").text = title

    def write(self, x: float, y: float, text: str, look: str = "", longest: int = 0) -> None:
        """A text at a place; a longer one lacks its middle, since the names of methods and clients
        often begin alike, and is told whole to a pointer."""
        made = ElementTree.SubElement(
            self.root,
            "text",
            {"x": f"{x:.1f}", "y": f"{y:.1f}", **({"class": look} if look else {})},
        )
        made.text = text
        if longest and len(text) > longest:
            made.text = f"{text[: (longest - 1) // 2]}…{text[-(longest // 2) :]}"
            ElementTree.SubElement(made, "title").text = text

    def markup(self) -> Markup:
        """For a page; ElementTree escaped what strangers wrote."""
        return Markup(ElementTree.tostring(self.root, encoding="unicode"))


def draw(chart: Chart) -> Markup:
    """The chart as SVG."""
    with np.errstate(over="ignore"):  # of models that ran away; scales end somewhere
        if isinstance(chart, Lines):
            return _lines(chart)
        if isinstance(chart, Dots):
            return _dots(chart)
        if isinstance(chart, Bars):
            return _bars(chart)
        return _matrix(chart)


def look_of(line: Line) -> str:
    """The classes of a line: ink, or a colour, and dashes beyond the last colour."""
    if line.look is None:
        return "ink"
    return f"c{line.look % LOOKS} d{line.look % DASHES}"


def _lines(chart: Lines) -> Markup:
    width, height = (WHOLE, _WIDE_HEIGHT) if chart.wide else (HALF, _HEIGHT)
    drawing = Drawing(width, height, chart.text)
    lines = [line.thinned() for line in chart.lines]
    xs = [x for line in lines for x in line.x.tolist() if isfinite(x)]
    ys = [y for line in lines for y in _reach(line) if isfinite(y)]
    bottom = height - 40
    vertical = scale_of(chart.y, ys, bottom, _TOP)
    marks = ticks(chart.y, vertical, 5)
    left = 14 + _LETTER * max((len(text) for _, text in marks), default=0) + 6
    horizontal = scale_of(_tight(chart.x, xs), xs, left, width - _RIGHT)
    for value, text in marks:
        y = vertical.at(value)
        drawing.add("line", "grid", x1=left, x2=width - _RIGHT, y1=y, y2=y)
        drawing.write(left - 6, y + 4, text, "end")
    _mark_below(drawing, chart.x, horizontal, bottom)
    drawing.write(width - _RIGHT, height - 6, chart.x.title, "end title")
    for line in lines:
        _line(drawing, line, horizontal, vertical)
    return drawing.markup()


def _reach(line: Line) -> list[float]:
    """The values that the axis must have room for."""
    if line.band is None:
        return list(line.y.tolist())
    return [*(line.y - line.band).tolist(), *(line.y + line.band).tolist(), *line.y.tolist()]


def _tight(axis: Axis, values: Sequence[float]) -> Axis:
    """Lines go from edge to edge."""
    if axis.log or axis.limits or len(set(values)) < 2:
        return axis
    ends = min(values), max(values)
    return Axis(axis.title, whole=axis.whole, times=axis.times, percent=axis.percent, limits=ends)


def _mark_below(drawing: Drawing, axis: Axis, scale: Scale, bottom: float) -> None:
    most = max(2, int((scale.end - scale.start) / _TICK_WIDTH))
    drawing.add("line", "axis", x1=min(scale.start, scale.end), x2=scale.end, y1=bottom, y2=bottom)
    for value, text in ticks(axis, scale, most):
        x, half = scale.at(value), _LETTER * len(text) / 2
        drawing.add("line", "axis", x1=x, x2=x, y1=bottom, y2=bottom + 4)
        inside = min(max(x, half), drawing.width - half)
        drawing.write(inside, bottom + 17, text, "middle")


def _line(drawing: Drawing, line: Line, horizontal: Scale, vertical: Scale) -> None:
    look = look_of(line)
    places = [
        (horizontal.at(x), vertical.at(y)) if isfinite(x) and isfinite(y) else None
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
    ]
    if line.band is not None:
        low, high = line.y - line.band, line.y + line.band
        for run in _unbroken(places):
            above, below = (
                [
                    f"{horizontal.at(x):.1f} {vertical.at(y):.1f}"
                    for x, y in _pairs(line.x, edge, run)
                ]
                for edge in (high, low)
            )
            drawing.add("path", f"band {look}", d=f"M{'L'.join([*above, *reversed(below)])}Z")
    path = []
    for run in _unbroken(places):
        points = [f"{place[0]:.1f} {place[1]:.1f}" for i in run if (place := places[i])]
        path.append("M" + "L".join(points))
        if len(run) == 1:
            x, y = places[run[0]] or (0.0, 0.0)
            drawing.add("circle", f"dot {look}", line.label, cx=x, cy=y, r=3.5)
    drawing.add("path", f"line {look}", line.label, d="".join(path))


def _pairs(
    x: NDArray[np.float64], y: NDArray[np.float64], run: Sequence[int]
) -> list[tuple[float, float]]:
    return list(zip(x[list(run)].tolist(), y[list(run)].tolist(), strict=True))


def _unbroken(places: Sequence[object | None]) -> list[list[int]]:
    """The stretches of known places."""
    runs: list[list[int]] = []
    for number_, place in enumerate(places):
        if place is None:
            continue
        if number_ and places[number_ - 1] is not None:
            runs[-1].append(number_)
        else:
            runs.append([number_])
    return runs


def _dots(chart: Dots) -> Markup:
    """Rows of dots; in rows of one dot a kind, each kind has its own colour."""
    width = WHOLE if chart.wide else HALF
    rows = list(chart.rows)
    row_height = _ROW if chart.kinds else 1.3 * _ROW
    bottom = _TOP + row_height * len(rows) + 4
    drawing = Drawing(width, bottom + 40, chart.text)
    longest = _LONGEST_OF_WIDE if chart.wide else _LONGEST_NAME
    left = 22 + _LETTER * min(longest, max((len(row.label) for row in rows), default=0))
    values = [v for row in rows for v in row.values.tolist() if isfinite(v)]
    scale = scale_of(chart.x, values, left, width - _RIGHT)
    most = max(2, int((scale.end - scale.start) / _TICK_WIDTH))
    for value, _ in ticks(chart.x, scale, most):
        drawing.add("line", "grid", x1=scale.at(value), x2=scale.at(value), y1=_TOP - 6, y2=bottom)
    _mark_below(drawing, chart.x, scale, bottom)
    drawing.write(width - _RIGHT, bottom + 36, chart.x.title, "end title")
    # Kinds stand a little below each other, so that equal ones do not hide each other.
    spread = min(3.0, 0.5 * _ROW / max((len(row.values) for row in rows), default=1))
    for place, row in enumerate(rows):
        y = _TOP + row_height * (place + 0.5)
        drawing.write(left - 10, y + 4, row.label, "end", longest)
        drawing.add("line", "grid", x1=left, x2=width - _RIGHT, y1=y, y2=y)
        kept = np.arange(len(row.values))
        if len(kept) > _MOST_DOTS:
            order = np.argsort(row.values, kind="stable")
            kept = order[np.linspace(0, len(kept) - 1, _MOST_DOTS).astype(int)]
        for number_ in kept.tolist():
            value = float(row.values[number_])
            if isfinite(value):
                look = f"dot c{number_ % LOOKS}" if chart.kinds else "dot many c0"
                told = f"{row.names[number_]}: {number(value * (100 if chart.x.percent else 1))}"
                told += "%" if chart.x.percent else ""
                apart = spread * (number_ - (len(row.values) - 1) / 2) if chart.kinds else 0.0
                drawing.add("circle", look, told, cx=scale.at(value), cy=y + apart, r=4.5)
        if row.middle is not None and isfinite(row.middle):
            x = scale.at(row.middle)
            drawing.add("line", "middle-stroke", x1=x, x2=x, y1=y - 8, y2=y + 8)
    return drawing.markup()


def _bars(chart: Bars) -> Markup:
    """Rows with names where there is room for them, else thin columns, told to a pointer."""
    cut = np.clip(chart.values, -chart.most, chart.most)
    return _named_bars(chart, cut) if len(cut) <= _MOST_ROWS else _thin_bars(chart, cut)


def _named_bars(chart: Bars, cut: NDArray[np.float64]) -> Markup:
    bottom = _TOP + _ROW * len(cut) + 4
    drawing = Drawing(WHOLE, bottom + 40, chart.text)
    left = 16 + _LETTER * min(_LONGEST_NAME, max((len(name) for name in chart.names), default=0))
    scale = scale_of(chart.x, [0.0, *cut.tolist()], left + 50, WHOLE - 70)
    for value, _ in ticks(chart.x, scale, 8):
        drawing.add("line", "grid", x1=scale.at(value), x2=scale.at(value), y1=_TOP - 6, y2=bottom)
    _mark_below(drawing, chart.x, scale, bottom)
    drawing.write(WHOLE - _RIGHT, bottom + 36, chart.x.title, "end title")
    rows = zip(chart.names, cut.tolist(), chart.values.tolist(), strict=True)
    for place, (name, value, whole) in enumerate(rows):
        y = _TOP + _ROW * (place + 0.5)
        drawing.write(left - 4, y + 4, name, "end", _LONGEST_NAME)
        ends = sorted((scale.at(0), scale.at(value)))
        look = "good" if value < 0 else "bad"
        drawing.add(
            "rect", look, f"{name}: {_signed(whole)}", x=ends[0], y=y - 6, height=12,
            width=max(1.0, ends[1] - ends[0]),
        )  # fmt: skip
        at, side = (ends[0] - 5, "end") if value < 0 else (ends[1] + 5, "")
        drawing.write(at, y + 4, _signed(whole), f"{side} small".strip())
    drawing.add("line", "axis", x1=scale.at(0), x2=scale.at(0), y1=_TOP - 6, y2=bottom)
    return drawing.markup()


def _thin_bars(chart: Bars, cut: NDArray[np.float64]) -> Markup:
    drawing = Drawing(WHOLE, _WIDE_HEIGHT + 30, chart.text)
    left, bottom = 62.0, _WIDE_HEIGHT
    scale = scale_of(chart.x, [0.0, *cut.tolist()], bottom, _TOP)
    for value, text in ticks(chart.x, scale, 6):
        y = scale.at(value)
        drawing.add("line", "grid", x1=left, x2=WHOLE - _RIGHT, y1=y, y2=y)
        drawing.write(left - 6, y + 4, text, "end")
    step = (WHOLE - _RIGHT - left) / len(cut)
    shown = range(0, len(cut), ceil(len(cut) / 700))
    for place in shown:
        value, ends = float(cut[place]), sorted((scale.at(0), scale.at(float(cut[place]))))
        drawing.add(
            "rect", "good" if value < 0 else "bad",
            f"{chart.names[place]}: {_signed(float(chart.values[place]))}",
            x=left + place * step, y=ends[0], height=max(0.6, ends[1] - ends[0]),
            width=max(0.8, step * shown.step - min(1.0, step / 4)),
        )  # fmt: skip
    drawing.add("line", "axis", x1=left, x2=WHOLE - _RIGHT, y1=scale.at(0), y2=scale.at(0))
    title = f"{len(cut)} clients, from the one that gains most; {chart.x.title} upwards"
    drawing.write(WHOLE - _RIGHT, bottom + 22, title, "end title")
    return drawing.markup()


def _signed(value: float) -> str:
    if not isfinite(value):
        return "beyond measure"
    return f"{100 * value:+.0f}%".replace("-", "−") if abs(value) < 10 else f"×{value + 1:.0f}"


def _matrix(chart: Matrix) -> Markup:
    layout = matrix_parts(chart)
    drawing = Drawing(HALF, layout.height, chart.text)
    drawing.add(
        "image", "cells", href=layout.picture, x=layout.left, y=layout.top,
        width=layout.width, height=layout.depth, preserveAspectRatio="none",
    )  # fmt: skip
    for y in layout.edges:
        right = layout.left + layout.width
        drawing.add("line", "edge", x1=layout.left, x2=right, y1=y, y2=y)
        if chart.square:
            x = layout.left + (y - layout.top) * layout.width / layout.depth
            drawing.add("line", "edge", x1=x, x2=x, y1=layout.top, y2=layout.top + layout.depth)
    for x, y, text, look in layout.texts:
        drawing.write(x, y, text, look, _LONGEST_NAME if look == "end" else 0)
    if layout.key:
        drawing.add(
            "image", "cells", href=layout.key, x=layout.left, y=layout.key_top,
            width=layout.width, height=8, preserveAspectRatio="none",
        )  # fmt: skip
    return drawing.markup()
