"""Each of the 24 forms gets what docs/your-data.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.file_forms import FORMS, MAKER, PAGE, SECTION, Form, lines_of, outcome_of
from benchmarks.pages import read_section

EXTRAS = {"Parquet": "pyarrow", "Excel": "openpyxl"}


def test_the_page_has_all_forms() -> None:
    assert len(FORMS) == len(read_section(PAGE, SECTION, MAKER)) - 2 == 24


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.title)
def test_a_form_gets_what_the_page_says(form: Form, tmp_path: Path) -> None:
    if form.title in EXTRAS:
        pytest.importorskip(EXTRAS[form.title])
    outcome = outcome_of(form, tmp_path)
    assert outcome.as_expected
    assert lines_of([outcome])[-1] in read_section(PAGE, SECTION, MAKER)
