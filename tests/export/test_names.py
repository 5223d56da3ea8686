"""Names for other tools: whatever a stranger calls a figure, it is no way out of a folder."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.report.export.names import by_plain_names, plain


def test_names() -> None:
    assert plain("loss.total") == "loss/total"
    assert plain("mse-units_80") == "mse-units_80"
    assert plain("../../etc/passwd") == "_/_/_2f_/_/_2f_etc_2f_passwd"
    assert plain("µ b") == "_b5__20_b"
    assert len(plain("x" * 5000)) == 200


def test_of_names_that_become_the_same_the_first_is_told() -> None:
    assert by_plain_names({"a b": 1, "a_20_b": 2}) == {"a_20_b": 1}


@given(st.text())
def test_no_name_is_a_way_out(text: str) -> None:
    name = plain(text)
    assert re.fullmatch(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*", name)
