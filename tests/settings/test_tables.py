"""pyproject.toml and docs/settings.md show the settings as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from fedproto_app.core.methods import METHODS
from pydantic import Field

from fedproto_app.settings import Section, Settings, flat_settings, setting
from fedproto_app.settings.faults import fields
from fedproto_app.settings.tables import DOCUMENTS, allowed, docs_table, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documents_are_what_the_settings_say(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert DOCUMENTS[name](text) == text, "run: python -m fedproto_app.settings.tables --write"


def test_a_document_that_is_out_of_date_is_mended() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stale = pyproject.replace("rounds = 40 ", "rounds = 41 ")
    assert stale != pyproject
    assert DOCUMENTS["pyproject.toml"](stale) == pyproject
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert DOCUMENTS["docs/settings.md"](page.replace("| `seed` |", "| `sed` |")) == page
    assert main([]) == 0


def test_every_key_has_a_row_with_its_meaning() -> None:
    rows = [line.split(" | ") for line in docs_table().splitlines()[2:]]
    keys = {"method-settings"}
    for method in METHODS:
        keys |= flat_settings(Settings(method=method)).keys()
    assert {row[0].removeprefix("| ") for row in rows} == {f"`{key}`" for key in keys}
    for row in rows:
        assert len(row) == 4, row
        assert len(row[3].removesuffix(" |")) > 0, row


def test_a_wide_bar_in_a_cell_is_escaped() -> None:
    assert r"\|M_t\|" in docs_table()


class Kinds(Section):
    above: Annotated[int, Field(ge=1)] = setting(1, "")
    open: Annotated[float, Field(gt=0, lt=1)] = setting(0.5, "")
    half_open: Annotated[float, Field(ge=0, lt=1)] = setting(0.5, "")
    multiple: Annotated[int, Field(ge=4, multiple_of=4)] = setting(4, "")
    choice: Literal["a", "b", "c"] = setting("a", "")
    switch: bool = setting(True, "")
    text: str = setting("", "", "a path")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("above", "≥ 1"),
        ("open", "(0, 1)"),
        ("half-open", "[0, 1)"),
        ("multiple", "≥ 4, a multiple of 4"),
        ("choice", "`a b c`"),
        ("switch", "true false"),
        ("text", "a path"),
    ],
)
def test_what_is_allowed_follows_from_the_type(key: str, said: str) -> None:
    assert allowed(fields(Kinds)[key]) == said
