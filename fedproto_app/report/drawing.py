"""Draw the charts of `core/charts.py` with matplotlib: SVG for pages, PNG for files.

Colours come from the page's style sheet, so that charts follow light and dark mode. The page's
policy forbids styles and scripts in an SVG. An SVG has no ids either, because one page holds many
charts. matplotlib is imported only where it is needed. Only its object interface is used, because
the server app draws in a thread, where pyplot's global state is not safe.
"""

from __future__ import annotations

import io
import re
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedproto_app.core.charts import (
    Axis,
    Bars,
    Chart,
    Dots,
    Line,
    Lines,
    Matrix,
    evenly_spaced,
    gain_text,
    number,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

Vector = NDArray[np.float64]
Look = dict[Any, Any]  # matplotlib's arguments by name, of many types
# The palette of Okabe and Ito (2008), which is safe for common colour blindness. Some colours are
# darkened so that text is readable, and grey replaces a second blue. Dashes distinguish lines in
# grey print.
COLOURS = ("#0072b2", "#c14f00", "#00805c", "#b0558a", "#a87400", "#5c6670", "#6b5bb5")
DASHES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D")
_INK, _QUIET, _RULE, _PAPER = "#1b1f24", "#59636e", "#d5dae0", "#ffffff"
_GOOD, _BAD, _UNKNOWN, _EDGE = "#1d7a4f", "#b3541e", "#b0b0b0", "#fffffe"
# Colours with names in the page's style sheet, which changes them in dark mode.
_PAGE_COLOURS = {
    _INK: "ink",
    _QUIET: "quiet",
    _RULE: "rule",
    _PAPER: "paper",
    _GOOD: "good",
    _BAD: "bad",
    **{colour: f"c{place}" for place, colour in enumerate(COLOURS)},
}
STYLE: Look = {
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
_CHART_STYLE: Look = STYLE | {
    "font.size": 11.5,
    "legend.fontsize": 11,
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # names are not formulas
    "text.color": _INK,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _QUIET,
    "axes.labelsize": 11.5,
    "axes.titlesize": 11.5,
    "axes.xmargin": 0.02,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.alpha": 1,
    "grid.color": _RULE,
    "legend.labelcolor": _QUIET,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    **{f"{axis}tick.{kind}.size": 0 for axis in "xy" for kind in ("major", "minor")},
}
_HALF, _FULL, _HEIGHT = 420.0, 860.0, 245.0  # points. A page of 920 pixels does not scale them
_POINTS, _DPI = 72, 150  # per inch
_LETTER, _LEGEND_ROW = 6.6, 17.0  # points: about a letter's width, and a row's height
_LONGEST_NAME, _LONGEST_NAME_NARROW, _LONGEST_LABEL = 28, 20, 54  # letters
_NAMED_ROWS, _NAMED_BARS = 40, 12
_NAMED_KINDS = 20  # more colours cannot be told apart
_MOST_DOTS, _MOST_BARS, _MOST_CELLS = 400, 700, 400  # a screen cannot show more
_LARGEST = 1e30  # larger values are drawn at the end of the axis, so that sums stay finite
_WIDEST = 1e9  # ratio of the values on a logarithmic axis. Smaller values lie on its linear part
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_ATTRIBUTES = (
    *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray"),
    *("stroke-linejoin", "opacity", "font-size", "font-weight", "text-anchor"),
)


def look(place: int) -> Look:
    """Return colour and dashes of the line with this number. The first 28 lines all differ."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[place % len(DASHES)],
    }


def chart_svg(chart: Chart, *, narrow: bool = False) -> Markup:
    """Return the chart as SVG for a page. Every text in it is escaped.

    narrow: draw a wide chart for a phone.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with _styled():
        panel = _Panel(chart, _HALF if narrow or not is_wide_chart(chart) else _FULL)
        for patch in (panel.figure.patch, *(axes.patch for axes in panel.figure.axes)):
            patch.set(facecolor="none", edgecolor="none")
        file = io.StringIO()
        canvas: Any = FigureCanvasSVG(panel.figure)
        canvas.print_svg(file, metadata={"Date": None})  # `savefig` draws twice
    return _inline(file.getvalue(), chart.text, panel.tips)


def charts_png(charts: Sequence[Chart], title: str = "") -> bytes:
    """Return the charts as one PNG, below a title. A row holds one wide chart or two others."""
    from matplotlib.image import imsave

    rows: list[list[NDArray[np.uint8]]] = []
    room = 0.0
    with _styled():
        for chart in charts:
            panel = _Panel(chart, _FULL if is_wide_chart(chart) else _HALF, titled=True)
            if panel.width > room:
                rows.append([])
                room = _FULL
            rows[-1].append(_pixels(panel.figure))
            room -= panel.width
        if title:
            rows.insert(0, [_pixels(_heading(title))])
    heights = [max(image.shape[0] for image in row) for row in rows]
    width = max(sum(image.shape[1] for image in row) for row in rows)
    sheet = np.full((sum(heights), width, 4), 255, np.uint8)
    top = 0
    for row, height in zip(rows, heights, strict=True):
        start = 0
        for image in row:
            high, wide, _ = image.shape
            sheet[top : top + high, start : start + wide] = image
            start += wide
        top += height
    file = io.BytesIO()
    imsave(file, sheet, dpi=_DPI)
    return file.getvalue()


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _heading(title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_HALF / _POINTS, 0.4), dpi=_DPI)
    figure.text(0.02, 0.25, _short(title, _LONGEST_LABEL), fontsize=13, weight="bold")
    return figure


@contextmanager
def _styled() -> Iterator[None]:
    """Set the charts' style. Silence warnings of missing glyphs and of overflow in huge errors."""
    from matplotlib import rc_context

    with rc_context(_CHART_STYLE), np.errstate(over="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


class _Panel:
    """A chart drawn into its own figure of this width in points.

    tips: the tooltips, by the artist's id in the SVG: one for the artist, or one for each dot.
    """

    def __init__(self, chart: Chart, width: float, titled: bool = False) -> None:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        self.width = width
        is_narrowed = width < _FULL and is_wide_chart(chart)
        self._longest_name = _LONGEST_NAME_NARROW if is_narrowed else _LONGEST_NAME
        pads: Any = {"w_pad": 0.12, "h_pad": 0.1} if titled else {}  # inches
        self.figure = Figure(dpi=_DPI, layout=ConstrainedLayoutEngine(**pads))
        self.axes: Axes = self.figure.subplots()
        self.tips: dict[str, list[str]] = {}
        self._key: dict[str, Artist] = {}
        if isinstance(chart, Lines):
            height = self._lines(chart)
        elif isinstance(chart, Dots):
            height = self._dots(chart)
        elif isinstance(chart, Bars):
            height = self._bars(chart)
        else:
            height = self._matrix(chart)
        height += self._add_key(titled)
        if titled:
            self.axes.set_title(_short(chart.title, int(self.width / 7)), loc="left")
            height += 30
        self.figure.set_size_inches(self.width / _POINTS, height / _POINTS)

    def _tip(self, artist: Artist, texts: list[str]) -> None:
        identifier = f"tip-{len(self.tips)}"
        artist.set_gid(identifier)
        self.tips[identifier] = texts

    def _write_names(self, axis: str, names: Mapping[float, str], turn: float = 0) -> None:
        """Set ticks with these names. If a name is shortened, a tooltip shows its full text."""
        longest = self._longest_name if axis == "y" else _LONGEST_NAME
        texts = [_short(name, longest) for name in names.values()]
        ticks = getattr(self.axes, f"set_{axis}ticks")(list(names), texts, rotation=turn)
        for tick, name, text in zip(ticks, names.values(), texts, strict=True):
            if text != name:
                self._tip(tick.label1, [name])

    def _add_key(self, titled: bool) -> float:
        """Draw the legend if there are several entries, and return its height."""
        # A single entry needs no legend, as the title names it, unless it stands for equal lines.
        if len(self._key) < 2 and not any(" = " in label for label in self._key):
            return 0.0
        labels = [_short(label, _LONGEST_LABEL) for label in self._key]  # tooltips are not cut
        columns = int((self.width - 20) // (_LETTER * max(map(len, labels)) + 48))
        columns = min(max(1, columns), len(labels))
        # matplotlib leaves labels that start with an underscore out of a legend.
        texts = [f"\u200b{label}" if label.startswith("_") else label for label in labels]
        self.figure.legend(
            list(self._key.values()), texts, ncols=columns,
            loc="outside lower left" if titled else "outside upper left",
            columnspacing=1.2, handletextpad=0.6, borderpad=0.1, labelspacing=0.3,
        )  # fmt: skip
        return _LEGEND_ROW * ceil(len(labels) / columns)

    def _lines(self, chart: Lines) -> float:
        lines = [line.thinned() for line in chart.lines]
        bands: dict[str, Artist] = {}
        for line in lines:
            self._line(line, chart, bands)
        self._key |= bands
        reach = [
            end
            for line in lines
            for width in (np.zeros(len(line.y)), *line.bands.values())
            for end in _ends(line, width)
        ]
        self._set_axis("x", chart.x, [line.x for line in lines])
        self._set_axis("y", chart.y, reach)
        return _HEIGHT if chart.wide else 1.1 * _HEIGHT

    def _line(self, line: Line, chart: Lines, bands: dict[str, Artist]) -> None:
        ink: Look = {"color": _INK, "linewidth": 2.2}
        looks = ink if line.look is None else look(line.look)
        colour = looks["color"]
        x = (1000 * line.x).astype("datetime64[ms]") if chart.x.times else line.x
        y = _drawable(line.y)
        finite = np.isfinite(y)
        beside = np.pad(finite, 1)
        alone = finite & ~beside[:-2] & ~beside[2:]  # a line through one point is invisible
        for rank, (label, width) in enumerate(line.bands.items()):
            alpha = 0.3 / 2**rank  # the narrowest band comes first
            low, high = map(_drawable, _ends(line, width))
            bands[label] = self.axes.fill_between(
                x, low, high, color=colour, alpha=alpha, linewidth=0, clip_on=False
            )
            if alone.any():
                self._error_bars(x[alone], y[alone], (low[alone], high[alone]), colour)
        if line.error is not None:
            self._error_bars(x, y, (y - line.error, y + line.error), colour)
        if line.joined:
            [drawn] = self.axes.plot(x, y, clip_on=False, **looks)
            self._tip(drawn, [line.label])
        dots = alone if line.joined and line.error is None else finite
        if dots.any() or not line.joined:
            [marks] = self.axes.plot(
                x[dots], y[dots], MARKERS[(line.look or 0) // len(COLOURS) % len(MARKERS)],
                color=colour, markersize=5, clip_on=False,
            )  # fmt: skip
            self._tip(marks, [f"{line.label}: {_text(value, chart.y)}" for value in y[dots]])
        self._key[line.label] = drawn if line.joined else marks

    def _error_bars(
        self, x: NDArray[np.generic], y: Vector, ends: tuple[Vector, Vector], colour: str
    ) -> None:
        error = [y - ends[0], ends[1] - y]
        self.axes.errorbar(x, y, error, fmt="none", ecolor=colour, capsize=3, clip_on=False)

    def _dots(self, chart: Dots) -> float:
        rows, height = chart.rows, 20.0 if chart.kinds else 26.0
        # Kinds are drawn slightly below each other, so that equal values stay visible.
        apart = min(0.15, 0.5 / max((len(row.values) for row in rows), default=1))
        for place, row in enumerate(rows):
            values = _drawable(row.values)
            texts = [
                f"{name}: {_text(value, chart.x)}"
                for name, value in zip(row.names, row.values, strict=True)
            ]
            if chart.kinds:
                for kind, value in enumerate(values):
                    below = place + apart * (kind - (len(values) - 1) / 2)
                    colour = COLOURS[kind % len(COLOURS)]
                    dot = self._row_of_dots(values[[kind]], below, colour, 1.0)
                    self._tip(dot, texts[kind : kind + 1] if isfinite(value) else [])
                    self._key[chart.kinds[kind]] = dot
                continue
            shown = np.flatnonzero(np.isfinite(values))
            shown = shown[np.argsort(values[shown], kind="stable")]
            shown = shown[evenly_spaced(len(shown), _MOST_DOTS)]
            dots = self._row_of_dots(values[shown], place, COLOURS[0], 0.55)
            self._tip(dots, [texts[dot] for dot in shown])
            if row.middle is not None and isfinite(row.middle):
                ends = [place - 0.32, place + 0.32]
                self.axes.plot([row.middle] * 2, ends, color=_INK, linewidth=2.5, clip_on=False)
        self._set_axis("x", chart.x, [row.values for row in rows])
        self._name_rows([row.label for row in rows])
        return 46 + height * len(rows)

    def _row_of_dots(self, values: Vector, row: float, colour: str, alpha: float) -> Artist:
        [dots] = self.axes.plot(
            values, np.full(len(values), row), "o", color=colour, alpha=alpha, markersize=8,
            markeredgecolor=_PAPER, markeredgewidth=0.7, clip_on=False,
        )  # fmt: skip
        return dots

    def _name_rows(self, names: Sequence[str]) -> None:
        """Name the rows. The first row is at the top."""
        self._write_names("y", dict(enumerate(names)))
        self.axes.set_ylim(len(names) - 0.4, -0.6)
        self.axes.spines["left"].set_visible(False)

    def _bars(self, chart: Bars) -> float:
        """Draw the bars as named rows if there are few, else as thin columns."""
        count = len(chart.names)
        shown = evenly_spaced(count, _MOST_BARS)
        cut = np.clip(chart.values, -chart.limit, chart.limit)[shown]
        colours = np.where(cut > 0, _GOOD, _BAD).tolist()
        if are_rows(chart):
            bars = self.axes.barh(range(count), cut, height=0.6, color=colours)
            signed = [gain_text(value) for value in chart.values]
            self.axes.bar_label(bars, signed, padding=4, color=_INK)
            self.axes.axvline(0, color=_QUIET, linewidth=1)
            self.axes.margins(x=0.1 * _FULL / self.width)
            self._set_axis("x", chart.x, [cut])
            self._name_rows(chart.names)
        else:
            bars = self.axes.bar(range(len(cut)), cut, width=0.8, color=colours)
            self.axes.axhline(0, color=_QUIET, linewidth=1)
            self.axes.set_xticks([])
            self.axes.set_xlabel(f"{count} clients, from the one that gains most")
            self.axes.margins(x=0.005)
            self._set_axis("y", chart.x, [cut])
        for bar, place in zip(bars, shown, strict=True):
            self._tip(bar, [f"{chart.names[place]}: {gain_text(chart.values[place])}"])
        return 50 + 18.0 * count if are_rows(chart) else 0.9 * _HEIGHT

    def _matrix(self, chart: Matrix) -> float:
        from matplotlib import colormaps
        from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
        from matplotlib.patches import Patch

        height, width = chart.cells.shape
        thin = [evenly_spaced(size, _MOST_CELLS) for size in chart.cells.shape]
        low, high = chart.span or _span(chart)
        norm: Normalize = LogNorm(low, high) if chart.log else Normalize(low, high)
        palette: Colormap = colormaps["RdBu" if chart.diverging else "viridis"]
        if chart.kinds:
            colours = category_colours(len(chart.kinds))
            palette, norm = ListedColormap(colours), Normalize(-0.5, len(colours) - 0.5)
            if len(colours) <= _NAMED_KINDS:
                patches = [Patch(facecolor=colour) for colour in colours]
                self._key |= dict(zip(chart.kinds, patches, strict=True))
        image = self.axes.imshow(
            np.ma.masked_invalid(chart.cells[np.ix_(*thin)]),
            cmap=palette.with_extremes(bad=_UNKNOWN), norm=norm, interpolation="none",
            extent=(-0.5, width - 0.5, height - 0.5, -0.5), clip_on=False,
            aspect="equal" if chart.square else "auto",
        )  # fmt: skip
        self.axes.grid(False)
        self.axes.spines[:].set_visible(False)
        room = 40 + self._name_cells(chart)
        if not chart.kinds:
            self._add_colours(image, chart.meaning)
            room += 50
        return room + (0.8 * _HALF if chart.square else float(np.clip(16 * height, 60, 380)))

    def _add_colours(self, drawn: ScalarMappable, meaning: str) -> None:
        from matplotlib.colors import LogNorm
        from matplotlib.ticker import MaxNLocator

        bar: Any = self.figure.colorbar(
            drawn, ax=self.axes, location="bottom", label=meaning, aspect=40, format=_number
        )
        if not isinstance(drawn.norm, LogNorm):
            bar.locator = MaxNLocator(5)
        bar.outline.set_visible(False)
        # Without this, each colour would become a separate shape.
        bar.solids.set(rasterized=True, alpha=1)

    def _name_cells(self, chart: Matrix) -> float:
        """Name the groups (or, without groups, the rows) and as many columns as there is room for.

        Return the height that the columns' names need.
        """
        rows = len(chart.cells)
        starts = [0] + [n for n, (a, b) in enumerate(pairwise(chart.groups), 1) if a != b]
        names: dict[float, str] = {}
        if any(chart.groups):
            for start, end in zip(starts, [*starts[1:], rows], strict=True):
                names[(start + end - 1) / 2] = chart.groups[start]
                for line in (self.axes.axhline, self.axes.axvline)[: 1 + chart.square]:
                    if start:
                        line(start - 0.5, color=_EDGE, linewidth=1.5)
        else:
            names = {place: name for place, name in enumerate(chart.rows) if name}
        if len(names) > _NAMED_ROWS:
            names = {}
        self._write_names("y", names)
        columns: dict[float, str] = {n: name for n, name in enumerate(chart.columns) if name}
        longest = _LETTER * (1 + min(_LONGEST_NAME, max(map(len, columns.values()), default=0)))
        upright = len(columns) * longest > 0.7 * _HALF and longest > 3 * _LETTER
        step = max(1, ceil(len(columns) * (12 if upright else longest) / (0.7 * _HALF)))
        columns = dict(list(columns.items())[::step])
        self._write_names("x", columns, 90 if upright else 0)
        self.axes.set(xlabel=chart.column_title, ylabel=chart.row_title)
        return longest if upright else 16.0

    def _set_axis(self, name: str, axis: Axis, values: Sequence[Vector]) -> None:
        """Set scale, ticks and title of axis "x" or "y" for these values."""
        from matplotlib import dates, ticker

        flat = _drawable(np.concatenate([np.zeros(0), *values]))
        flat = flat[np.isfinite(flat)]
        side = getattr(self.axes, f"{name}axis")
        largest = float(np.abs(flat).max(initial=0))
        if axis.log and largest:
            least = max(float(np.abs(flat[flat != 0]).min()), largest / _WIDEST)
            set_scale = getattr(self.axes, f"set_{name}scale")
            if (flat < least).any():
                # Start at a power of ten. A tick at a smaller one would overlap 0.
                middle = float(np.median(np.abs(flat[flat != 0])))
                start = middle if (flat < 0).any() else 10.0 ** floor(log10(least))
                set_scale("symlog", linthresh=start)
            else:
                set_scale("log")
                if largest / least < 300:
                    side.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            side.set_minor_formatter(ticker.NullFormatter())
        if axis.times:
            locator = dates.AutoDateLocator()  # type: ignore[no-untyped-call]
            side.set_major_locator(locator)
            side.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        elif axis.percent:
            side.set_major_formatter(lambda value, _: f"{100 * value:.6g}%".replace("-", "−"))
        elif axis.log or largest >= 1e4:
            side.set_major_formatter(_number)
        if axis.integers:
            side.set_major_locator(ticker.MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True))
        if axis.names:
            side.set_ticks(range(len(axis.names)), [_short(text, 12) for text in axis.names])
        elif axis.ticks:
            side.set_ticks(axis.ticks, minor=False)
        if axis.limits:
            getattr(self.axes, f"set_{name}lim")(*axis.limits)
        side.set_label_text(axis.title)


def _ends(line: Line, width: Vector) -> tuple[Vector, ...]:
    """Return the lower and the upper end of a band around this line, [n] each."""
    below, above = np.broadcast_to(width, (2, len(line.y)))
    return line.y - below, line.y + above


def _drawable(values: Vector) -> Vector:
    """Return values that matplotlib can scale: too large ones are cut, too small ones become 0."""
    cut = np.clip(values, -_LARGEST, _LARGEST)
    return np.where(np.abs(cut) < 1 / _LARGEST, 0.0, cut)


def is_wide_chart(chart: Chart) -> bool:
    """Return whether the chart takes the full width of a page."""
    return chart.wide if isinstance(chart, Lines) else isinstance(chart, Dots | Bars)


def are_rows(chart: Bars) -> bool:
    """Return whether there are so few bars that they are drawn as rows with names."""
    return len(chart.names) <= _NAMED_BARS


def category_colours(count: int) -> list[Any]:
    """Return a colour for each kind. Beyond twenty kinds, neighbours look alike."""
    from matplotlib import colormaps

    if count <= len(COLOURS):
        return list(COLOURS[:count])
    if count <= _NAMED_KINDS:
        return [colormaps["tab20"](place) for place in (*range(0, 20, 2), *range(1, 20, 2))][:count]
    return [colormaps["turbo"](place) for place in np.linspace(0, 1, count)]


def _span(chart: Matrix) -> tuple[float, float]:
    finite = chart.cells[np.isfinite(chart.cells)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if chart.diverging:
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    return (low, high) if low < high else (low, low + 1)


def _number(value: float, _: object = None) -> str:
    return number(value)


def _text(value: float, axis: Axis) -> str:
    return f"{number(100 * value)}%" if axis.percent else number(value)


def _short(text: str, longest: int) -> str:
    """Return a text that can be drawn. Long texts lose their middle, as names often start alike."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
    if len(text) <= longest:
        return text
    return f"{text[: (longest - 1) // 2]}…{text[-(longest // 2) :]}"


def _inline(source: str, text: str, tips: Mapping[str, Sequence[str]]) -> Markup:
    """Return matplotlib's SVG as a flat element in the page's colours, without ids and styles."""
    drawing = ElementTree.fromstring(source)
    shapes = {path.get("id"): path.get("d", "") for path in drawing.iter(f"{_SVG}path")}
    root = ElementTree.Element(
        "svg", {"viewBox": drawing.get("viewBox", ""), "role": "img", "aria-label": text}
    )

    def add(element: ElementTree.Element, titles: Iterator[str]) -> None:
        tag = element.tag.removeprefix(_SVG)
        if tag in ("svg", "g"):
            texts = tips.get(element.get("id", ""))
            titles = titles if texts is None else iter(texts)
            for child in element:
                add(child, titles)
        elif tag in ("path", "use", "text", "image"):
            look = _attributes(element.get("style", ""))
            if tag == "path" and look.get("fill") == "none" and "stroke" not in look:
                return  # a background
            name, place = _shape(element, tag, shapes)
            shape = ElementTree.SubElement(root, name, place | look)
            shape.text = element.text if tag == "text" else None
            if title := next(titles, ""):
                ElementTree.SubElement(shape, "title").text = title

    add(drawing, iter(()))
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _shape(
    element: ElementTree.Element, tag: str, shapes: Mapping[str | None, str]
) -> tuple[str, dict[str, str]]:
    """Return the element's tag and position. A shared shape is written out at each use."""
    place = {name: _rounded(element.get(name, "")) for name in ("x", "y") if element.get(name)}
    if tag == "path":
        return tag, {"d": _rounded(element.get("d", ""))}
    if tag == "use":
        shape = shapes[element.get(_LINK, "")[1:]]
        if circle := re.match(r"M 0 ([\d.]+)\s*C", shape):
            return "circle", {"cx": place["x"], "cy": place["y"], "r": _rounded(circle[1])}
        moved = f"translate({place['x']} {place['y']})"
        return "path", {"d": _rounded(shape), "transform": moved}
    if (turned := element.get("transform")) and not turned.startswith("rotate(-0"):
        place["transform"] = turned if tag == "image" else _rounded(turned)
    if tag == "image":
        sizes = {name: element.get(name, "") for name in ("width", "height")}
        return tag, {**place, **sizes, "class": "cells", "href": _smaller(element.get(_LINK, ""))}
    return tag, place


def _smaller(picture: str) -> str:
    """Return the PNG of a data URL. If it is opaque, a palette makes it smaller."""
    from PIL import Image

    image = Image.open(io.BytesIO(b64decode(picture.partition(",")[2]))).convert("RGBA")
    if image.getchannel("A").getextrema() != (255, 255):
        return picture
    file = io.BytesIO()
    image.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


def _attributes(style: str) -> dict[str, str]:
    """Return a style as attributes, which the page's policy allows. The page sets the fonts."""
    pairs = (part.split(":", 1) for part in style.split(";") if ":" in part)
    styles = {name.strip(): value.strip() for name, value in pairs}
    look = {name: value for name, value in styles.items() if name in _ATTRIBUTES}
    if "font" in styles and (size := re.search(r"[\d.]+px", styles["font"])):
        look["font-size"] = size[0]  # as matplotlib before 3.10 writes it
    return {
        name: f"var(--{_PAGE_COLOURS[value]})" if value in _PAGE_COLOURS else value
        for name, value in look.items()
    }


def _rounded(text: str) -> str:
    """Round numbers to a tenth of a point, and remove line breaks."""
    text = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), text)
    return re.sub(r"\s+", " ", text).strip()
