"""CSV of rows that may hold a stranger's texts."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

_FORMULA = re.compile(r"[=@]|[+-].*[(|!]")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """The rows as CSV; what a spreadsheet would run as a formula is quoted, as they do it."""
    text = io.StringIO()
    csv.writer(text).writerows([[_as_text(cell) for cell in row] for row in rows])
    return text.getvalue()


def _as_text(cell: Any) -> Any:
    runs = isinstance(cell, str) and _FORMULA.match(cell)
    return "'" + cell if runs else cell
