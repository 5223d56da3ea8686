"""Read numbers as people write them: 1100.5, 1,100.5 or 1.100,5.

The decimal sign is decided for a whole table. A cell such as 1,100 can be read in two ways, so
other cells or the setting ``data.decimal`` must show what it means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError

if TYPE_CHECKING:
    from pandas import Series

# How the numbers of a table are written. "plain": a decimal point, and nothing between thousands.
Style = Literal["plain", "point", "comma"]

_SPACES = " \u00a0\u202f'\u2019"  # and apostrophes, which also stand between thousands
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_PLAIN = re.compile(rf"[+-]?(?:\d+\.?\d*|\.\d+){_EXPONENT}")
_MINUS_LAST = r"^(\d.*)-$"  # 12,5-, as SAP writes it
_WRITTEN = {
    "point": (rf"[,{_SPACES}]", r"\."),
    "comma": (rf"[.{_SPACES}]", ","),
}


def _pattern(style: Literal["point", "comma"]) -> re.Pattern[str]:
    thousands, decimal = _WRITTEN[style]
    grouped = rf"[1-9]\d{{0,2}}(?P<sign>{thousands})\d{{3}}(?:(?P=sign)\d{{3}})*"
    return re.compile(rf"[+-]?(?:(?:{grouped}|\d+)(?:{decimal}\d*)?|{decimal}\d+){_EXPONENT}")


_PATTERNS = {"point": _pattern("point"), "comma": _pattern("comma")}


def value_of(cell: str, style: Style = "plain") -> float | None:
    """Return the number that a cell holds, or None if it holds no number in this style."""
    cell = re.sub(_MINUS_LAST, r"-\1", cell)
    pattern = _PLAIN if style == "plain" else _PATTERNS[style]
    if not pattern.fullmatch(cell):
        return None
    if style != "plain":
        thousands, _ = _WRITTEN[style]
        cell = re.sub(thousands, "", cell).replace(",", ".")
    return float(cell)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number in any style."""
    cell = re.sub(_MINUS_LAST, r"-\1", cell)
    return any(pattern.fullmatch(cell) for pattern in _PATTERNS.values())


def _texts(column: Series) -> Series:
    """Return a column as texts without blanks around them. Each minus is put before its number."""
    texts = column.astype(str).str.strip()
    has_last = texts.str.endswith("-").any()
    return texts.str.replace(_MINUS_LAST, r"-\1", regex=True) if has_last else texts


def numbers_in(column: Series, style: Style) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers of a column [T], NaN where missing, and which cells hold no number [T].

    column: numbers, texts or both, NaN where missing. Infinite numbers are accepted.
    """
    import pandas as pd

    if column.dtype.kind in "iuf":
        numbers = column.to_numpy(dtype=np.float64)
        return numbers, np.zeros(len(numbers), dtype=np.bool_)
    texts = _texts(column)
    if style == "plain":
        plain = texts
    else:
        is_written_so = texts.str.fullmatch(_PATTERNS[style].pattern).to_numpy(dtype=bool)
        thousands, _ = _WRITTEN[style]
        plain = texts.str.replace(thousands, "", regex=True).str.replace(",", ".", regex=False)
        has_sign = texts.str.contains(rf"[.,{_SPACES}]", regex=True).to_numpy(dtype=bool)
        plain = plain.where(is_written_so | ~has_sign, "").mask(_have_type(column), texts)
    numbers = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64)
    wrong: NDArray[np.bool_] = np.isnan(numbers) & column.notna().to_numpy()
    return numbers, wrong


def _have_type(column: Series) -> NDArray[np.bool_]:
    """Return which cells of a column [T] are stored as numbers. A text is not, whatever it says."""
    if column.dtype != object:
        return np.zeros(len(column), dtype=np.bool_)
    kinds = [isinstance(cell, Real | Decimal) and not isinstance(cell, bool) for cell in column]
    return np.array(kinds, dtype=np.bool_)


@dataclass
class Evidence:
    """What the cells of a table show about their decimal sign.

    cells: the first cell of each kind, with the name of its row in messages. Cells of the kinds
    "point" and "comma" can be read only with that decimal sign, cells of the kind "both" with
    either, but not as the same number. Cells of the kind "thousands" have commas between thousands
    if the decimal sign is the point.
    """

    cells: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, column: Series, row_of: Callable[[int], str]) -> None:
        """Look at a column. row_of: returns a row's name in messages from its index."""
        if column.dtype.kind in "iuf":
            return  # the file stores it as a number, not as text
        texts = _texts(column[~_have_type(column)].dropna())
        texts = texts[texts.str.contains(rf"[.,{_SPACES}]", regex=True).to_numpy(dtype=bool)]
        fits = {
            style: texts.str.fullmatch(pattern.pattern).to_numpy(dtype=bool)
            for style, pattern in _PATTERNS.items()
        }
        has_comma = texts.str.contains(",", regex=False).to_numpy(dtype=bool)
        for kind, places in (
            ("point", fits["point"] & ~fits["comma"]),
            ("comma", fits["comma"] & ~fits["point"]),
            ("both", fits["point"] & fits["comma"] & has_comma),
            ("thousands", fits["point"] & has_comma),
        ):
            if kind not in self.cells and places.any():
                first = int(places.argmax())
                self.cells[kind] = (str(texts.iloc[first]), row_of(int(texts.index[first])))

    @property
    def is_clear(self) -> bool:
        """Whether some cell can be read in only one way, and no other cell contradicts it."""
        return ("point" in self.cells) != ("comma" in self.cells)

    def style(self, where: str) -> tuple[Style, str]:
        """Return how the numbers are written, and a note about it.

        Raises `DataError` if cells contradict each other, or if all can be read in both ways.
        """
        if {"point", "comma"} <= set(self.cells):
            (first, row), (second, second_row) = self.cells["point"], self.cells["comma"]
            raise DataError(
                f"{where}: {first!r} in {row} has a decimal point, {second!r} in {second_row} a "
                "decimal comma; write all numbers alike"
            )
        if "comma" in self.cells:
            return "comma", _note(*self.cells["comma"], "comma")
        if "both" in self.cells and "point" not in self.cells:
            cell, row = self.cells["both"]
            raise DataError(
                f"{where}: {cell!r} in {row} may be {value_of(cell, 'point'):g} or "
                f"{value_of(cell, 'comma'):g}, and no other number tells which; set data.decimal "
                "to point or comma"
            )
        grouped = self.cells.get("thousands")
        return "point", _note(*grouped, "point") if grouped else ""


def _note(cell: str, row: str, style: Style) -> str:
    return f"{cell!r} in {row} is read as {value_of(cell, style):.15g}, and other numbers likewise"


def style_of(
    columns: Iterable[Series], row_of: Callable[[int], str], where: str
) -> tuple[Style, str]:
    """Return how the numbers in these columns of texts are written, and a note about it."""
    evidence = Evidence()
    for column in columns:
        evidence.add(column, row_of)
    return evidence.style(where)
