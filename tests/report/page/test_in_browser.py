"""The page in a real browser: sorting, filtering, keyboard use, and no network requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.report.page.document import write_report
from fedproto_app.report.runs import read_run
from tests.browser import Browser, installed
from tests.report.made_runs import alone, shared
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
    change = 2
    page.run(f"{head(change)}.querySelector('button').click()")
    assert page.run(f"{head(change)}.getAttribute('aria-sort')") == "ascending"
    rising = column(page, change)
    expected = sorted(
        error / alone_error - 1 for error, alone_error in zip(ERRORS, ALONE, strict=True)
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
    for _ in range(60):
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


@pytest.mark.parametrize("width", [400, 760, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_can_be_read(page: Browser, width: int, dark: bool) -> None:
    """Nothing scrolls sideways but tables and charts, and text has WCAG's contrast (AA, 4.5)."""
    page.look(width, dark=dark)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    worst = page.run(CONTRAST)
    assert worst >= 4.5


def test_it_prints_without_what_needs_a_screen(page: Browser, tmp_path: Path) -> None:
    page.look(media="print", dark=True)
    assert page.run("getComputedStyle(document.querySelector('.filters')).display") == "none"
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.paper(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


# The least contrast of any text with the first background behind it that is not transparent.
CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).slice(0, 3).map((one) => {
      const share = one / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = 21;
  for (const element of document.querySelectorAll("body *:not(script):not(style)")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length || element.tagName === "title") continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const pair = [light(colour), light(behind(element))].sort((a, b) => b - a);
    worst = Math.min(worst, (pair[0] + 0.05) / (pair[1] + 0.05));
  }
  return worst;
})()
"""
