"""The cells of a matrix as a small picture, and where names and keys stand around it."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.report.page.axes import number
from fedproto_app.report.page.charts import Matrix

_MOST_CELLS = 500  # in a direction; more would be finer than a screen
_NAMED_ROWS, _NAMED_COLUMNS = 40, 16
_LETTER, _LONGEST_NAME = 6.3, 24
_WIDTH, _RIGHT = 420.0, 16.0
_UNKNOWN = (176, 176, 176)


@dataclass(frozen=True)
class Layout:
    """picture, key: data URLs. edges: y between groups. texts: x, y, what, class."""

    picture: str
    key: str
    left: float
    top: float
    width: float
    depth: float
    height: float
    key_top: float
    edges: Sequence[float]
    texts: Sequence[tuple[float, float, str, str]]


def matrix_parts(chart: Matrix) -> Layout:
    """Where everything of a matrix lies in a drawing 420 wide."""
    rows, columns = chart.cells.shape
    starts = _starts(chart.groups)
    grouped = len(starts) > 1 or (bool(chart.groups) and bool(chart.groups[0]))
    names = _row_names(chart, starts, grouped)
    left = 16 + _LETTER * min(_LONGEST_NAME, max((len(name) for _, name in names), default=0))
    width, top = _WIDTH - _RIGHT - left, 10.0
    depth = width * rows / columns if chart.square else float(np.clip(16 * rows, 60, 380))
    texts = [(left - 8, top + place * depth / rows + 4, name, "end") for place, name in names]
    below = top + depth + 16
    texts += _column_texts(chart, left, width, below)
    if chart.columns or chart.column_title:
        below += 16
    if chart.column_title:
        texts.append((left + width, below, chart.column_title, "end title"))
        below += 12
    key = ""
    if chart.kinds:
        below -= 8
    else:
        key, low, high = _key(chart)
        texts += [
            (left, below + 22, low, ""),
            (left + width, below + 22, high, "end"),
            (left + width / 2, below + 36, chart.meaning, "middle title"),
        ]
    height = below + (44 if key else 4)
    edges = [top + start * depth / rows for start in starts[1:]] if grouped else []
    picture = _png(_coloured(chart))
    return Layout(picture, key, left, top, width, depth, height, below, edges, texts)


def kind_colours(count: int) -> list[str]:
    """A colour for each of so many kinds, as #rrggbb."""
    from fedproto_app.report.drawing import category_colours

    return [_hex(colour) for colour in category_colours(count)]


def _row_names(chart: Matrix, starts: Sequence[int], grouped: bool) -> list[tuple[float, str]]:
    """Place (in rows) and name: of the groups, else of the rows where these are few."""
    rows = len(chart.cells)
    if grouped:
        ends = [*starts[1:], rows]
        return [
            ((first + end) / 2, chart.groups[first])
            for first, end in zip(starts, ends, strict=True)
            if len(starts) <= _NAMED_ROWS
        ]
    if chart.rows and rows <= _NAMED_ROWS:
        return [(place + 0.5, name) for place, name in enumerate(chart.rows)]
    return []


def _column_texts(
    chart: Matrix, left: float, width: float, y: float
) -> list[tuple[float, float, str, str]]:
    if not chart.columns:
        return []
    columns = len(chart.columns)
    room = max(1, int(width / (_LETTER * (1 + max(map(len, chart.columns))))))
    step = -(-columns // min(room, _NAMED_COLUMNS))
    return [
        (left + (place + 0.5) * width / columns, y, chart.columns[place], "middle")
        for place in range(0, columns, step)
    ]


def _starts(groups: Sequence[str]) -> list[int]:
    return [0, *(place + 1 for place, (one, two) in enumerate(pairwise(groups)) if one != two)]


def _coloured(chart: Matrix) -> NDArray[np.uint8]:
    """[R', C', 3] at most `_MOST_CELLS` each way, evenly taken."""
    rows, columns = (
        np.unique(np.linspace(0, size - 1, min(size, _MOST_CELLS)).astype(int))
        for size in chart.cells.shape
    )
    cells = chart.cells[np.ix_(rows, columns)]
    known = np.isfinite(cells)
    colours: NDArray[np.uint8]
    if chart.kinds:
        palette = np.array([_rgb(one) for one in kind_colours(len(chart.kinds))], dtype=np.uint8)
        kinds = np.clip(np.where(known, cells, 0).astype(int), 0, len(palette) - 1)
        colours = palette[kinds]
    else:
        low, high = _span(chart)
        share = (np.where(known, cells, low) - low) / ((high - low) or 1)
        colours = _map(chart.diverging)[np.clip((255 * share).round(), 0, 255).astype(int)]
    colours[~known] = _UNKNOWN
    return colours


def _span(chart: Matrix) -> tuple[float, float]:
    known = chart.cells[np.isfinite(chart.cells)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if chart.diverging:
        high = max(abs(low), abs(high))
        low = -high
    return low, high


def _key(chart: Matrix) -> tuple[str, str, str]:
    low, high = _span(chart)
    return _png(_map(chart.diverging)[None]), number(low), number(high)


@cache
def _map(diverging: bool) -> NDArray[np.uint8]:
    """[256, 3] colours from the least to the largest."""
    from matplotlib import colormaps

    colours: Any = colormaps["RdBu" if diverging else "viridis"](np.arange(256))[:, :3]
    return np.asarray(255 * colours, dtype=np.uint8)


def _png(colours: NDArray[np.uint8]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(colours).quantize(256).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _hex(colour: Any) -> str:
    from matplotlib.colors import to_hex

    return str(to_hex(colour))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))
