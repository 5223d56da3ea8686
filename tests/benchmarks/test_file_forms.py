"""Each form of file gets what docs/file-forms.csv says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.file_forms import BAD, FILE, FORMS, Form, outcome_of
from benchmarks.pages import read_table

_, *ROWS = read_table(FILE)


def test_the_file_has_all_forms() -> None:
    assert len(FORMS) == len(ROWS) == 93
    assert "93 forms" in (FILE.parent / "your-data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.title)
def test_a_form_gets_what_the_file_says(form: Form, tmp_path: Path) -> None:
    if form.title == "Parquet":
        pytest.importorskip("pyarrow")
    if form.title.startswith("Excel") and "days" not in form.title:
        pytest.importorskip("openpyxl")
    outcome = outcome_of(form, tmp_path)
    assert outcome.grade != BAD or not form.must
    assert outcome.row in ROWS
