"""pyproject.toml and docs/settings.md show the settings as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from fedproto_app.core.methods import METHODS
from fedproto_app.settings import Section, Settings, flat_settings, setting
from fedproto_app.settings.faults import fields
from fedproto_app.settings.method_tables import works_on
from fedproto_app.settings.tables import DOCUMENTS, allowed, docs_tables, main

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
    assert DOCUMENTS["docs/settings.md"](page.replace("- `seed=0`:", "- `sed=0`:")) == page
    assert main([]) == 0


def test_a_new_method_changes_no_document_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of FedProx has a row on both pages of methods, which stays as it is."""
    monkeypatch.setitem(METHODS._modules, "copied", "fedproto_compared.fedprox")
    pages = ("docs/methods.md", "docs/protection.md")
    rendered = {name: DOCUMENTS[name]((ROOT / name).read_text(encoding="utf-8")) for name in pages}
    row = "| `copied` | all | model | | FedProx (Li et al., MLSys 2020) |"
    assert row in rendered["docs/methods.md"].splitlines()
    [summed] = [n for n in rendered["docs/protection.md"].splitlines() if "`copied`" in n]
    assert summed.endswith(" | yes: totals of model | yes | yes |")
    repeated = {name: DOCUMENTS[name](text) for name, text in rendered.items()}
    assert repeated == rendered


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("solo", "all"),
        ("fuels", "series"),
        ("cnfgnn", "series, in a simulation"),
        ("analytic", "series, images, sequences of classes"),
        ("fed-react", "sequences"),
    ],
)
def test_what_a_method_works_on_follows_from_its_record(name: str, expected: str) -> None:
    assert works_on(METHODS[name]) == expected


def test_every_key_has_one_row_with_its_default_and_meaning() -> None:
    rows = re.findall(r"^- `([^`=]+)=([^`]*)`.*?: (.+)$", docs_tables(), re.MULTILINE)
    keys = {"method-settings"}
    for method in METHODS:
        keys |= flat_settings(Settings(method=method)).keys()
    assert sorted(key for key, _, _ in rows) == sorted(keys)
    assert ("data.calendar", "none") in [row[:2] for row in rows]


class Kinds(Section):
    above: Annotated[int, Field(ge=1)] = setting(1, "")
    open: Annotated[float, Field(gt=0, lt=1)] = setting(0.5, "")
    half_open: Annotated[float, Field(ge=0, lt=1)] = setting(0.5, "")
    multiple: Annotated[int, Field(ge=4, multiple_of=4)] = setting(4, "")
    choice: Literal["a", "b", "c"] = setting("a", "")
    switch: bool = setting(True, "")
    text: str = setting("", "", "a path")


@pytest.mark.parametrize(
    ("key", "expected"),
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
def test_what_is_allowed_follows_from_the_type(key: str, expected: str) -> None:
    assert allowed(fields(Kinds)[key]) == expected
