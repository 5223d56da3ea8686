"""The page in a real browser: its widths, accessibility, sorting, filtering, and no requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.charts import Axis, Lines, Section
from fedproto_app.report.forecasting.report import ForecastingReport
from fedproto_app.report.page.document import write_report
from fedproto_app.report.runs import read_run
from tests.helpers.browser import Browser, installed
from tests.report.made_runs import alone, make_run, shared
from tests.report.page.test_document import HOSTILE, rename

pytestmark = pytest.mark.skipif(
    installed() is None, reason="no Chromium is installed: the report is not tried in a browser"
)
ERRORS = (0.2, 0.6, 1.2, 0.3, 10.0, 0.45, 0.9, 0.8)
ALONE = (0.4, 0.8, 1.0, 0.4, 9.0, 0.5, 1.0, 1.0)
NAMES = ["client-10", "client-9", HOSTILE, "d", "e", "f", "g", "h"]
REPORTED = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = shared(folder / "a", ERRORS), alone(folder / "b", ALONE)
    for run in runs:
        rename(run, NAMES)
    write_report([read_run(run) for run in runs], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = installed()
    assert program is not None
    with Browser(program) as started:
        yield started


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    browser.look()
    browser.told.clear()
    browser.open(report)
    return browser


def column(page: Browser, number: int) -> Any:
    """The cells of the clients' table that are shown."""
    return page.run(
        "[...document.querySelectorAll('#clients-1 tbody tr')].filter(row => !row.hidden)"
        f".map(row => row.cells[{number}].textContent.trim())"
    )


def head(number: int) -> str:
    return f"document.querySelector('#clients-1').tHead.rows[0].cells[{number}]"


def test_nothing_is_asked_for_and_nothing_goes_wrong(page: Browser, report: Path) -> None:
    urls = [
        event["params"]["request"]["url"]
        for event in page.told
        if event["method"] == "Network.requestWillBeSent"
    ]
    elsewhere = [url for url in urls if not url.startswith("data:")]
    assert elsewhere == [report.resolve().as_uri()]
    assert [event for event in page.told if event["method"] in REPORTED] == []
    strange = "main script, main iframe, main img, a[href^=http]"
    assert page.run(f"document.querySelectorAll('{strange}').length") == 0


def test_the_policy_holds_against_what_slipped_in(page: Browser) -> None:
    """An injected element can neither run code nor make requests."""
    page.run(
        "document.body.insertAdjacentHTML('beforeend', "
        '\'<img src="https://evil.example/a.png" onerror="window.evil = 1">\');'
        "const made = document.createElement('script'); made.textContent = 'window.evil = 2';"
        "document.body.append(made);"
    )
    assert page.run("new Promise(after => setTimeout(() => after(window.evil), 200))") is None
    requests = {  # the browser also reports requests that it blocks
        event["params"]["requestId"]
        for event in page.told
        if event["method"] == "Network.requestWillBeSent"
        and event["params"]["request"]["url"].startswith("http")
    }
    stopped = {
        event["params"]["requestId"]
        for event in page.told
        if event["method"] == "Network.loadingFailed"
        and event["params"].get("blockedReason") == "csp"
    }
    assert requests <= stopped


def test_a_column_sorts_by_its_numbers_and_by_its_texts(page: Browser) -> None:
    change = 2  # a gain
    page.run(f"{head(change)}.querySelector('button').click()")
    assert page.run(f"{head(change)}.getAttribute('aria-sort')") == "ascending"
    rising = column(page, change)
    expected = sorted(
        1 - error / alone_error for error, alone_error in zip(ERRORS, ALONE, strict=True)
    )
    assert rising == [f"{100 * value:+.1f}%".replace("-", "−") for value in expected]
    page.run(f"{head(change)}.querySelector('button').click()")
    assert page.run(f"{head(change)}.getAttribute('aria-sort')") == "descending"
    assert column(page, change) == rising[::-1]
    page.run(f"{head(0)}.querySelector('button').click()")
    assert page.run(f"{head(change)}.hasAttribute('aria-sort')") is False
    assert column(page, 0) == [HOSTILE, "client-9", "client-10", "d", "e", "f", "g", "h"]


def test_sorting_by_keyboard(page: Browser) -> None:
    """Tab reaches the button, a key presses it, and the focus is visible."""
    reached = "document.activeElement.closest('th') && document.activeElement.closest('table').id"
    for _ in range(90):
        page.press("Tab")
        if page.run(reached) == "clients-1":
            break
    assert page.run("document.activeElement.textContent") == "client"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("Enter")
    assert page.run(f"{head(0)}.getAttribute('aria-sort')") == "ascending"
    page.press(" ")
    assert page.run(f"{head(0)}.getAttribute('aria-sort')") == "descending"


def filtered(page: Browser, kind: str, value: str) -> Any:
    page.run(
        f"(field => {{ field.value = {value!r};"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })"
        f"(document.querySelector('[data-table=clients-1] [data-filter={kind}]'))"
    )
    return column(page, 0)


def test_rows_are_filtered(page: Browser) -> None:
    assert filtered(page, "text", " CLIENT-") == ["client-10", "client-9"]
    output = "document.querySelector('[data-table=clients-1] output').textContent"
    assert page.run(output) == "2 of 8 clients"
    assert filtered(page, "group", "client-9") == ["client-9"]
    assert filtered(page, "text", "") == ["client-9"]
    filtered(page, "group", "")
    assert sorted(filtered(page, "side", "does not gain")) == sorted([HOSTILE, "e"])
    assert len(filtered(page, "side", "")) == 8


@pytest.fixture(scope="module")
def many_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on 72 clients with six methods, whose forecasts can be chosen."""
    folder = tmp_path_factory.mktemp("many")
    draws = np.random.default_rng(0)
    runs = [
        shared(folder / f"m{n}", draws.uniform(0.4, 1.2, 72).tolist(), method=f"method-{n}")
        for n in range(5)
    ]
    runs.append(alone(folder / "solo", draws.uniform(0.5, 1.2, 72).tolist()))
    write_report([read_run(run) for run in runs], folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_it_fits_and_can_be_read(
    browser: Browser, many_clients: Path, width: int, dark: bool
) -> None:
    """Nothing scrolls sideways but tables, no text covers another, axe finds nothing to mend, and
    text has WCAG's contrast (AA, 4.5), in charts too."""
    browser.look(width, dark=dark)
    browser.open(many_clients)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run(OVERLAPS) == []
    assert browser.run(CUT) == []
    assert browser.run(CONTRAST) >= 4.5
    axe_core = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    browser.run(Path(axe_core.__file__).with_name("axe.min.js").read_text(encoding="utf-8"))
    assert browser.run(AXE) == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_is_the_answer(
    browser: Browser, many_clients: Path, width: int, height: int
) -> None:
    browser.look(width, height)
    browser.open(many_clients)
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
    for element in ("h1", ".lead", "header figure", ".next pre"):
        assert browser.run(bottom.format(element)) <= height, element


def test_bars_name_their_clients(browser: Browser, many_clients: Path) -> None:
    """By pointer and by keys."""
    browser.look(1280)
    browser.open(many_clients)
    chart = "document.querySelector('.names .at-wide')"
    output = "document.querySelector('.names output').textContent"
    assert browser.run(output).startswith("Point at a bar")
    browser.run(
        f"(box => {chart}.dispatchEvent(new PointerEvent('pointermove', "
        "{clientX: box.right - 2, clientY: box.top + 20})))"
        f"({chart}.querySelector('svg').getBoundingClientRect())"
    )
    assert browser.run(output).endswith("(72 of 72)")
    browser.open(many_clients)
    browser.run(f"{chart}.focus()")
    assert browser.run(output).endswith("(1 of 72)")
    browser.press("ArrowRight")
    assert browser.run(output).endswith("(2 of 72)")
    assert re.match(r"c\d+: \+\d+% ", browser.run(output))


def test_a_client_is_chosen(browser: Browser, tmp_path: Path) -> None:
    """The page shows one of three charts."""
    chart = Lines("a", "A chart in words.", Axis("x"), Axis("y"), [], wide=True)
    section = Section("Forecasts", "About.", [chart] * 3, ["one", "two", "three"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForecastingReport, "sections", lambda *_: [section])
        write_report([read_run(make_run(tmp_path / "a"))], tmp_path / "report.html")
    browser.look(1280)
    browser.open(tmp_path / "report.html")
    shown = "[...document.querySelectorAll('figure.choice')].map(figure => !figure.hidden)"
    assert browser.run(shown) == [True, False, False]
    browser.run(
        "(select => { select.selectedIndex = 2;"
        " select.dispatchEvent(new Event('input', {bubbles: true})); })"
        "(document.querySelector('.chooser select'))"
    )
    assert browser.run(shown) == [False, False, True]


def test_printing_unfolds_the_commands(page: Browser) -> None:
    folded = "document.querySelectorAll('details:not([open])').length"
    assert page.run(folded) == 2
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(folded) == 0
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(folded) == 2


def test_it_prints_without_what_needs_a_screen(page: Browser, tmp_path: Path) -> None:
    page.look(media="print", dark=True)
    assert page.run("getComputedStyle(document.querySelector('.filters')).display") == "none"
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.paper(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


AXE = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map((rule) =>
  `${rule.id}: ${rule.nodes.slice(0, 3).map((node) => node.html.slice(0, 120)).join(" | ")}`))
"""

# Pairs of texts that cover each other. A text counts as far as the boxes around it show it, and a
# row's sticky name may cover what scrolls below it.
OVERLAPS = """
(() => {
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    const text = node.data.trim().slice(0, 40);
    if (!text || !parent.checkVisibility()) continue;
    if (parent.closest("script, style, .unseen, .skip, title, option")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
      for (let box = parent; box; box = box.parentElement) {
        const style = getComputedStyle(box);
        if (style.overflowX === "visible" || box instanceof SVGElement) continue;
        const edge = box.getBoundingClientRect();
        [left, top] = [Math.max(left, edge.left), Math.max(top, edge.top)];
        [right, bottom] = [Math.min(right, edge.right), Math.min(bottom, edge.bottom)];
      }
      if (right - left > 3 && bottom - top > 3)
        boxes.push([left + 1, top + 3, right - 1, bottom - 3, text, parent]);
    }
  }
  boxes.sort((a, b) => a[1] - b[1]);
  const found = [];
  boxes.forEach((a, n) => {
    for (let m = n + 1; m < boxes.length && boxes[m][1] < a[3]; m++) {
      const b = boxes[m];
      if (a[5] !== b[5] && a[0] < b[2] && b[0] < a[2]) found.push(`${a[4]} / ${b[4]}`);
    }
  });
  return found.slice(0, 5);
})()
"""

# Texts of a chart that lie outside of it, and boxes beyond the window that do not scroll.
CUT = """
(() => {
  const found = [];
  for (const text of document.querySelectorAll("svg text")) {
    const box = text.getBoundingClientRect(), chart = text.closest("svg").getBoundingClientRect();
    const isCut = box.left < chart.left - 2 || box.right > chart.right + 2;
    if (box.width && isCut) found.push(text.textContent);
  }
  for (const element of document.querySelectorAll("main *:not(.unseen)")) {
    if (element.closest(".scroll *, pre, svg, .skip")) continue;
    const box = element.getBoundingClientRect();
    if (box.right > innerWidth + 1) found.push(element.outerHTML.slice(0, 80));
  }
  return found.slice(0, 5);
})()
"""

# The least contrast of any text with the first background behind it that is not transparent.
CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let box = element; box; box = box.parentElement) {
      const colour = getComputedStyle(box).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = 21;
  for (const element of document.querySelectorAll("body *:not(script):not(style)")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !element.getClientRects().length || element.tagName === "title") continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const pair = [light(colour), light(behind(element))].sort((a, b) => b - a);
    worst = Math.min(worst, (pair[0] + 0.05) / (pair[1] + 0.05));
  }
  return worst;
})()
"""
