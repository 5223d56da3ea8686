"""The way of a prototype stays as short as docs/design.md says."""

from __future__ import annotations

from benchmarks.pages import read_section
from benchmarks.prototype_way import MAKER, PAGE, SECTION, traced


def test_the_way_is_short_and_the_page_shows_it() -> None:
    trace = traced()
    assert len(trace.files) <= 16
    assert len(trace.forms) <= 7
    assert read_section(PAGE, SECTION, MAKER) == trace.table()
