"""Charts as SVG: everything is inside, nothing is invented, strangers' words stay words."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from fedproto_app.report.page.charts import (
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
from fedproto_app.report.page.svg import draw
from hypothesis import given, settings
from hypothesis import strategies as st

HOSTILE = "</script><img src=x onerror=alert(1)>"


def svg(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(str(draw(chart)))


def classes(chart: Chart) -> list[str]:
    return [one.get("class", "") for one in svg(chart).iter()]


def numbers_of(path: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?[\d.]+", path)]


def lines(y: list[float], band: list[float] | None = None, **axes: bool) -> Lines:
    x = np.arange(len(y), dtype=np.float64)
    width = None if band is None else np.array(band)
    line = Line(HOSTILE, x, np.array(y), width)
    return Lines("title", HOSTILE, Axis("x"), Axis("y", **axes), [line])


def test_a_line_breaks_where_a_value_is_unknown() -> None:
    chart = lines([1, 2, np.nan, 3, np.nan, 4, 5], [1] * 7)
    found = {
        kind: [one for one in svg(chart) if (one.get("class") or "").startswith(kind)]
        for kind in ("line ", "band", "dot")
    }
    [path] = found["line "]
    assert path.get("d", "").count("M") == 3
    assert len(found["band"]) == 3  # each stretch has its own
    assert len(found["dot"]) == 1  # a stretch of one value is invisible as a line


def test_what_strangers_wrote_is_text() -> None:
    charts: list[Chart] = [
        lines([1, 2]),
        Dots("t", HOSTILE, Axis("x"), [DotRow(HOSTILE, np.ones(1), [HOSTILE], 1.0)]),
        Bars("t", HOSTILE, Axis("x"), [HOSTILE], np.ones(1), "g", "b"),
        Matrix("t", HOSTILE, np.eye(2), HOSTILE, rows=[HOSTILE] * 2, columns=[HOSTILE] * 2),
        Matrix("t", HOSTILE, np.eye(2), HOSTILE, groups=[HOSTILE, "b"], square=True),
    ]
    for chart in charts:
        root = svg(chart)
        assert root.get("aria-label") == HOSTILE
        assert root.get("role") == "img"
        assert "<img" not in str(draw(chart))
        tags = {one.tag for one in root.iter()}
        assert tags <= {"svg", "line", "text", "path", "circle", "rect", "image", "title"}


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    chart = lines(np.linspace(0, 1, 5000).tolist())
    [path] = [one for one in svg(chart) if (one.get("class") or "").startswith("line ")]
    places = numbers_of(path.get("d", ""))
    assert len(places) <= 2 * MOST_POINTS
    thinned = chart.lines[0].thinned()
    assert (thinned.y[0], thinned.y[-1]) == (0, 1)


def test_bars_are_cut_but_tell_the_truth() -> None:
    chart = Bars("t", "", Axis("x", percent=True), ["a", "b"], np.array([-0.25, 30.0]), "g", "b")
    texts = [one.text for one in svg(chart) if one.tag == "text"]
    assert "−25%" in texts
    assert "×31" in texts
    rects = [one for one in svg(chart) if one.tag == "rect"]
    assert [one.get("class") for one in rects] == ["good", "bad"]
    widths = [float(one.get("width", 0)) for one in rects]
    assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)  # cut at 100%


def test_many_bars_are_thin_and_few_have_names() -> None:
    def texts(count: int) -> int:
        names, values = [f"client-{n}" for n in range(count)], np.linspace(-0.5, 0.5, count)
        chart = Bars("t", "", Axis("x", percent=True), names, values, "g", "b")
        return sum(
            (one.text or "").startswith("client-") for one in svg(chart) if one.tag == "text"
        )

    assert (texts(40), texts(41), texts(5000)) == (40, 0, 0)


def test_crowded_dots_are_thinned_and_the_extremes_stay() -> None:
    values = np.arange(3000.0)
    row = DotRow("r", values, [f"c{n}" for n in range(3000)], 1499.5)
    told = [one.text for one in svg(Dots("t", "", Axis("x"), [row])).iter("title")]
    assert len(told) == 400
    assert "c0: 0" in told
    assert any((one or "").startswith("c2999:") for one in told)


def test_lines_beyond_the_colours_have_dashes() -> None:
    x = np.arange(2.0)
    many = [Line(f"l{n}", x, x + n, look=n) for n in range(28)]
    chart = Lines("t", "", Axis("x"), Axis("y"), many)
    looks = [one for one in classes(chart) if one.startswith("line ")]
    assert len(set(looks)) == 28


@settings(max_examples=40)
@given(
    values=st.lists(st.floats(allow_infinity=False), min_size=1, max_size=20),
    log=st.booleans(),
    percent=st.booleans(),
)
def test_nothing_is_drawn_outside(values: list[float], log: bool, percent: bool) -> None:
    y = [abs(value) for value in values] if log else values
    root = svg(lines(y, [abs(value) / 3 for value in y], log=log, percent=percent))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for one in root.iter("path"):
        if (one.get("class") or "").startswith("line "):
            places = numbers_of(one.get("d", ""))
            assert all(-0.1 <= x <= width + 0.1 for x in places[::2])
            assert all(-0.1 <= y <= height + 0.1 for y in places[1::2])


def test_a_matrix_is_a_small_picture_with_names_of_groups() -> None:
    groups = ["a"] * 3 + ["b"] * 2
    chart = Matrix("t", "", np.eye(5), "what", groups=groups, square=True)
    root = svg(chart)
    texts = [one.text for one in root.iter("text")]
    assert {"a", "b", "what", "0", "1"} <= set(texts)
    edges = [one for one in root.iter("line") if one.get("class") == "edge"]
    assert len(edges) == 2  # between the groups, across and down
    assert all(one.get("href", "").startswith("data:image/png") for one in root.iter("image"))
    huge = Matrix("t", "", np.random.default_rng(0).random((2000, 2000)), "what")
    assert len(str(draw(huge))) < 500_000


def test_long_names_that_begin_alike_can_be_told_apart() -> None:
    """Their middle goes, and a pointer is told all of it."""
    names = [f"kindred features=100 penalty=0.5 sharing={how}" for how in ("common", "random")]
    rows = [DotRow(name, np.array([1.0]), ["a"]) for name in names]
    drawn = svg(Dots("", "", Axis("x"), rows, wide=True))
    shown = [one for one in drawn.iter("text") if "…" in (one.text or "")]
    assert [one.text for one in shown] == [
        "kindred features=…0.5 sharing=common",
        "kindred features=…0.5 sharing=random",
    ]
    assert [one[0].text for one in shown] == names


def test_equal_dots_of_two_kinds_are_both_seen() -> None:
    rows = [DotRow("class", np.array([0.5, 0.5]), ["a", "b"])]
    first, second = svg(Dots("", "", Axis("x"), rows, kinds=["a", "b"])).iter("circle")
    assert first.get("cx") == second.get("cx")
    assert float(second.get("cy", "")) - float(first.get("cy", "")) == pytest.approx(3)
