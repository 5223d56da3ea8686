"""Each form of file gets what docs/file-forms.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.file_forms import BAD, FORMS, MAKER, PAGE, SECTION, Form, outcome_of
from benchmarks.pages import read_section


def test_the_page_has_all_forms() -> None:
    section = "\n".join(read_section(PAGE, SECTION, MAKER))
    counts = [int(count) for count in re.findall(r"^## .* \((\d+)\)$", section, re.MULTILINE)]
    assert len(FORMS) == sum(counts) == 85
    assert "in 85 forms" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.title)
def test_a_form_gets_what_the_page_says(form: Form, tmp_path: Path) -> None:
    if form.title == "Parquet":
        pytest.importorskip("pyarrow")
    if form.title.startswith("Excel") and "days" not in form.title:
        pytest.importorskip("openpyxl")
    outcome = outcome_of(form, tmp_path)
    assert outcome.grade != BAD or not form.must
    assert outcome.line in read_section(PAGE, SECTION, MAKER)
