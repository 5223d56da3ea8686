"""The renderer: everything is inside, nothing is invented, strangers' words stay words."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from fedproto_app.core.charts import (
    MOST_POINTS,
    Axis,
    Bars,
    Chart,
    DotRow,
    Dots,
    Line,
    Lines,
    Matrix,
)
from fedproto_app.report.drawing import chart_svg, charts_png, look

HOSTILE = "</script><img src=x onerror=alert(1)> $x_{"
PERCENT = Axis("x", percent=True)


def svg(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart_svg(chart)))


def texts(chart: Chart) -> list[str]:
    return [element.text or "" for element in svg(chart).iter("text")]


def tips(chart: Chart) -> list[str]:
    return [element.text or "" for element in svg(chart).iter("title")]


def numbers_of(path: str) -> list[float]:
    return [float(text) for text in re.findall(r"-?[\d.]+", path)]


def lines(y: list[float], band: list[float] | None = None, **axes: bool) -> Lines:
    bands = {} if band is None else {HOSTILE: np.array(band)}
    line = Line("a line", np.arange(len(y), dtype=np.float64), np.array(y), 0, bands)
    return Lines(HOSTILE, HOSTILE, Axis("x"), Axis("y", **axes), [line])


def drawn_line(chart: Chart) -> list[ElementTree.Element]:
    return [element for element in svg(chart).iter("path") if element.findtext("title") == "a line"]


EXAMPLES: dict[str, Chart] = {
    "lines": lines([1, 2, np.nan, 3], [1] * 4),
    "times": Lines("t", HOSTILE, Axis(times=True), Axis("y", log=True), [
        Line(HOSTILE, np.array([0.0, 864e5]), np.array([1.0, 1e5])),
        Line("_hidden", np.array([0.0, 864e5]), np.array([0.0, 3.0]), None, joined=False),
    ]),
    "errors": Lines("t", HOSTILE, Axis(names=["a", HOSTILE]), Axis("y", log=True), [
        Line("l", np.array([0.0, 1.0]), np.array([-1.0, 1e5]), error=np.ones(2)),
    ]),
    "dots": Dots("t", HOSTILE, PERCENT, [DotRow(HOSTILE, np.ones(1), [HOSTILE], 1.0)]),
    "kinds": Dots("t", HOSTILE, PERCENT, [DotRow("r", np.ones(2), ["a", "b"])], ["a", HOSTILE]),
    "bars": Bars("t", HOSTILE, PERCENT, [HOSTILE], np.ones(1)),
    "columns": Bars("t", HOSTILE, PERCENT, [HOSTILE] * 50, np.ones(50)),
    "matrix": Matrix("t", HOSTILE, np.eye(2), HOSTILE, [HOSTILE] * 2, columns=[HOSTILE] * 2),
    "groups": Matrix("t", HOSTILE, np.eye(2), HOSTILE, groups=[HOSTILE, "b"], square=True),
    "matrix of kinds": Matrix("t", HOSTILE, np.eye(2), "", kinds=["a", HOSTILE]),
    "logarithms": Matrix("t", HOSTILE, 1 + 99 * np.eye(2), HOSTILE, log=True),
    "unknown": Matrix("t", HOSTILE, np.full((2, 2), np.nan), HOSTILE, diverging=True),
}  # fmt: skip


@pytest.mark.parametrize("chart", EXAMPLES.values(), ids=EXAMPLES)
def test_what_strangers_wrote_is_text_and_the_policy_allows_all(chart: Chart) -> None:
    root = svg(chart)
    assert root.get("aria-label") == HOSTILE
    assert root.get("role") == "img"
    assert "<img" not in str(chart_svg(chart))
    tags = {element.tag for element in root.iter()}
    assert tags <= {"svg", "text", "path", "circle", "image", "title"}
    assert not {name for element in root.iter() for name in element.attrib} & {
        "style",
        "id",
        "clip-path",
    }
    for image in root.iter("image"):
        assert image.get("href", "").startswith("data:image/png")


def test_pngs_hold_all_charts_and_leave_matplotlib_as_it_was() -> None:
    before = dict(mpl.rcParams)
    image = imread(io.BytesIO(charts_png([*EXAMPLES.values()], HOSTILE)))
    assert dict(mpl.rcParams) == before
    assert image.shape[1] == round(860 / 72 * 150) - 1
    assert image.shape[0] > 4000
    half = imread(io.BytesIO(charts_png([EXAMPLES["lines"]])))
    assert half.shape[1] == round(420 / 72 * 150)


def test_names_that_are_no_text_or_of_other_scripts_are_drawn() -> None:
    names = ["\ud800", "a\x00\n", "客户端", "🙂"]
    drawn = str(chart_svg(Bars("t", "", PERCENT, names, np.ones(4))))
    for text in (">\ufffd<", ">a\ufffd\ufffd<", ">客户端<", ">🙂<"):
        assert text in drawn


def test_colours_are_the_pages() -> None:
    root = svg(lines([1, 2], [1, 1]))
    colours = {element.get(name, "none") for element in root.iter() for name in ("fill", "stroke")}
    assert {"var(--c0)", "var(--quiet)", "var(--rule)"} <= colours
    assert not [colour for colour in colours if colour.startswith("#")]


def test_a_key_tells_apart_and_names_lines_that_are_equal() -> None:
    x = np.arange(2.0)
    for labels, key in ((["a"], set()), (["a", "_b"], {"a", "\u200b_b"}), (["a = b"], {"a = b"})):
        drawn = [Line(label, x, x) for label in labels]
        assert set(texts(Lines("", "", Axis(ticks=[0]), Axis(ticks=[0]), drawn))) == key | {"0"}


def test_a_line_breaks_where_a_value_is_unknown() -> None:
    [path] = drawn_line(lines([1, 2, np.nan, 3, np.nan, 4, 5]))
    assert path.get("d", "").count("M") == 3
    assert "a line: 3" in tips(lines([1, 2, np.nan, 3, np.nan, 4, 5]))  # alone, it is a dot


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    chart = lines(np.sin(np.arange(5000.0)).tolist())
    [path] = drawn_line(chart)
    assert MOST_POINTS <= len(numbers_of(path.get("d", ""))) <= 2 * MOST_POINTS
    thinned = chart.lines[0].thinned()
    assert (thinned.x[0], thinned.x[-1]) == (0, 4999)


def test_bars_are_cut_but_tell_the_truth() -> None:
    chart = Bars("t", "", PERCENT, ["a", "b"], np.array([0.25, -30.0]))
    assert {"+25%", "×31", "a", "b"} <= set(texts(chart))
    assert tips(chart) == ["a: +25%", "b: ×31"]
    bars = [element for element in svg(chart).iter("path") if element.findtext("title")]
    assert [element.get("fill") for element in bars] == ["var(--good)", "var(--bad)"]
    widths = [np.ptp(numbers_of(element.get("d", ""))[::2]) for element in bars]
    assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)  # cut at 100%


@pytest.mark.parametrize(
    ("count", "names_drawn", "bars"), [(12, 12, 12), (13, 0, 13), (5000, 0, 700)]
)
def test_many_bars_are_thin_and_few_have_names(count: int, names_drawn: int, bars: int) -> None:
    names = [f"client-{n}" for n in range(count)]
    chart = Bars("t", "", PERCENT, names, np.linspace(-0.5, 0.5, count))
    assert sum(text.startswith("client-") for text in texts(chart)) == names_drawn
    assert len(tips(chart)) == bars


def test_crowded_dots_are_thinned_and_the_extremes_stay() -> None:
    row = DotRow("r", np.arange(3000.0), [f"c{n}" for n in range(3000)], 1499.5)
    shown = tips(Dots("t", "", Axis("x"), [row]))
    assert len(shown) == 400
    assert (shown[0], shown[-1]) == ("c0: 0", "c2999: 3k")


def test_equal_dots_of_two_kinds_are_both_seen() -> None:
    row = DotRow("class", np.array([0.5, 0.5]), ["a", "b"])
    chart = Dots(
        "", "", PERCENT, [row, DotRow("other", np.array([np.nan, 1]), ["a", "b"])], ["a", "b"]
    )
    dots = [element for element in svg(chart).iter("circle") if element.findtext("title")]
    assert [element.findtext("title") for element in dots] == ["a: 50%", "b: 50%", "b: 100%"]
    assert dots[0].get("cx") == dots[1].get("cx")
    assert float(dots[1].get("cy", "")) > float(dots[0].get("cy", ""))
    assert {"a", "b"} <= set(texts(chart))  # the key


def test_lines_beyond_the_colours_have_dashes() -> None:
    assert len({tuple(look(place).items()) for place in range(28)}) == 28


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.floats(allow_infinity=False), min_size=1, max_size=20),
    log=st.booleans(),
    percent=st.booleans(),
)
@example(values=[-5e-324], log=True, percent=False)
def test_nothing_is_drawn_outside(values: list[float], log: bool, percent: bool) -> None:
    chart = lines(values, [abs(value) / 3 for value in values], log=log, percent=percent)
    _, _, width, height = map(float, svg(chart).get("viewBox", "").split())
    for path in drawn_line(chart):
        places = numbers_of(path.get("d", ""))
        assert all(-0.1 <= x <= width + 0.1 for x in places[::2])
        assert all(-0.1 <= y <= height + 0.1 for y in places[1::2])


def test_a_matrix_is_a_small_picture_with_names_of_groups() -> None:
    chart = Matrix("t", "", np.eye(5), "what", groups=["a"] * 3 + ["b"] * 2, square=True)
    assert {"a", "b", "what"} <= set(texts(chart))
    edges = [element for element in svg(chart).iter("path") if element.get("stroke") == "#fffffe"]
    assert len(edges) == 2  # between the groups, across and down
    huge = Matrix("t", "", np.random.default_rng(0).random((2000, 2000)), "what")
    assert len(str(chart_svg(huge))) < 500_000


def test_long_names_that_begin_alike_can_be_told_apart() -> None:
    """Their middle goes, and a pointer shows all of it."""
    names = [f"kindred features=100 penalty=0.5 sharing={how}" for how in ("common", "random")]
    rows = [DotRow(name, np.array([1.0]), ["a"]) for name in names]
    labels = [
        element
        for element in svg(Dots("", "", Axis("x"), rows)).iter("text")
        if "…" in str(element.text)
    ]
    assert [element.text for element in labels] == [
        "kindred featu…sharing=common",
        "kindred featu…sharing=random",
    ]
    assert [element.findtext("title") for element in labels] == names


@pytest.mark.parametrize(
    ("axis", "values", "expected"),
    [
        (Axis(percent=True), [0, 1], {"0%", "20%", "100%"}),
        (Axis(percent=True), [-0.5, 0.1], {"−40%", "0%"}),
        (Axis(integers=True), [1, 3], {"1", "2", "3"}),  # rounds: never 1.5
        (Axis(log=True), [0.01, 100], {"0.01", "0.1", "1", "10", "100"}),
        (Axis(log=True), [0.9, 20], {"1", "2", "5", "10", "20"}),
        (Axis(log=True), [0, 1e4, 1e8], {"0", "10k", "1M", "100M"}),
        (Axis(), [0, 5e6], {"0", "1M", "5M"}),
        (Axis(ticks=[3, 7]), [0, 10], {"3", "7"}),
        (Axis(names=["a", "b"]), [0, 1], {"a", "b"}),
        (Axis(times=True), [1388534400, 1388880000], {"12:00", "Jan-02", "Jan-03"}),
    ],
)
def test_ticks_have_round_values(axis: Axis, values: list[float], expected: set[str]) -> None:
    x = np.array(values, dtype=np.float64)
    chart = Lines("", "", axis, Axis(ticks=[0.5]), [Line("l", x, np.zeros(len(x)))])
    assert expected <= set(texts(chart))
