"""Write CSV from rows that may hold text from untrusted sources."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

_FORMULA = re.compile(r"[=@]|[+-].*[(|!]")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as CSV; a cell that a spreadsheet would run as a formula starts with '."""
    text = io.StringIO()
    csv.writer(text).writerows([[_as_text(cell) for cell in row] for row in rows])
    return text.getvalue()


def _as_text(cell: Any) -> Any:
    runs = isinstance(cell, str) and _FORMULA.match(cell)
    return "'" + cell if runs else cell
