from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.errors import DataError
from fedproto_app.data.number_styles import numbers_in, style_of, value_of


@pytest.mark.parametrize(
    ("cell", "point", "comma"),
    [
        ("1,100.5", 1100.5, None),
        ("1.100,5", None, 1100.5),
        ("1,100", 1100, 1.1),
        ("1.100", 1.1, 1100),
        ("-12,345,678", -12345678, None),
        ("1 100,5", None, 1100.5),
        ("1\u202f100", 1100, 1100),
        ("1'100.50", 1100.5, None),
        ("0,100", None, 0.1),  # no thousands begin with 0
        ("12,34", None, 12.34),
        ("1,1000", None, 1.1),
        ("1,100'200", None, None),
        (".5", 0.5, None),
        ("1e3", 1000, 1000),
        ("1.100,5-", None, -1100.5),  # as SAP writes it
        ("-5-", None, None),
        ("1,2,3", None, None),
        ("kW", None, None),
        ("", None, None),
    ],
)
def test_a_cell_in_both_styles(cell: str, point: float | None, comma: float | None) -> None:
    assert value_of(cell, "point") == point
    assert value_of(cell, "comma") == comma
    numbers, wrong = numbers_in(pd.Series([cell, "7"]), "comma")
    assert wrong.tolist() == [comma is None, False]
    assert numbers[1] == 7
    if comma is not None:
        assert numbers[0] == comma


@given(st.integers(-(10**9), 10**9), st.integers(0, 99))
def test_numbers_are_read_as_they_are_written(units: int, cents: int) -> None:
    english = f"{units:,}.{cents:02d}"
    german = english.translate(str.maketrans(",.", ".,"))
    expected = float(f"{units}.{cents:02d}")
    assert value_of(english, "point") == value_of(german, "comma") == expected


@pytest.mark.parametrize(
    ("cells", "style", "note"),
    [
        (["1,100", "1,100.5"], "point", "'1,100' in row 0 is read as 1100, and"),
        (["1.100", "1.100,5"], "comma", "'1.100,5' in row 1 is read as 1100.5, and"),
        (["1,100", "2,5"], "comma", "'2,5' in row 1 is read as 2.5, and"),
        (["1.100", "1.100.200", "5"], "comma", "'1.100.200' in row 1 is read as 1100200, and"),
        (["1.100", "x"], "point", ""),  # points alone are decimal points
    ],
)
def test_the_whole_table_tells_the_style(cells: list[str], style: str, note: str) -> None:
    columns = [pd.Series(cells[:1]), pd.Series(cells)]
    style_found, note_on_it = style_of(columns, lambda n: f"row {n}", "a.csv")
    assert style_found == style
    assert note_on_it.startswith(note)
    assert bool(note_on_it) == bool(note)


def test_typed_numbers_among_texts_have_no_style() -> None:
    column = pd.Series([1.234, "1,5", 2, None, Decimal("0.25"), True], dtype=object)
    assert style_of([column[:5]], str, "a.xlsx")[0] == "comma"
    numbers, wrong = numbers_in(column, "comma")
    np.testing.assert_array_equal(numbers, [1.234, 1.5, 2, np.nan, 0.25, np.nan])
    assert np.flatnonzero(wrong).tolist() == [5]


def test_what_may_be_two_numbers_is_refused_with_both() -> None:
    with pytest.raises(DataError, match=r"'2,500' in row 1 may be 2500 or 2\.5, .*data\.decimal"):
        style_of([pd.Series(["7", "2,500"])], lambda n: f"row {n}", "a.csv")
