"""Read a sequence from a CSV file: a header with the dimensions' names, then one row per step.

The format is the same as for tables (text_table.py), with numbers only. The time column, named in
the settings or a first column with a usual name, is left out: rows are steps, at any distance.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.choice import require_available
from fedproto_app.data.table import Columns, Head, require_named
from fedproto_app.data.text_table import parse_text_table
from fedproto_app.settings import Choice, DataSettings


def parse_steps(
    content: bytes, where: str, settings: DataSettings, choice: Choice | None = None
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the names of the dimensions [d] and the values [T, d], all finite, T ≥ 1.

    where: the file's name in messages. choice: the columns to read, in this order; None: as in the
    settings. Raises `DataError` naming the line and the column.
    """
    select_columns = partial(_steps_columns, choice=choice or settings.choice)
    table = parse_text_table(content, where, settings, select_columns)
    names, values = tuple(table.names), table.numbers()
    if not (finite := np.isfinite(values)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        fault = "no value" if np.isnan(values[row, column]) else "no finite number"
        raise DataError(f"{where}: column {names[column]!r}, {table.row_of(row)}: {fault}")
    return names, values


def _steps_columns(head: Head, choice: Choice) -> Columns:
    """Return the columns of the dimensions."""
    times = head.place(choice.time_column, "time-column") if choice.time_column else head.times
    if times is not None and head.names[times] == "":
        times = None  # rows are steps, so a column without a name is not taken for times
    places = [place for place in range(len(head.names)) if place != times]
    if choice.columns:
        available = [head.names[place] for place in places]
        require_available(choice.columns, available, "columns", "column", head.where)
        places = [place for name in choice.columns for place in places if head.names[place] == name]
    if not places:
        raise DataError(f"{head.where}: no column of values in the header")
    require_named((head.names[place] for place in places), head.where)
    return Columns(places)
