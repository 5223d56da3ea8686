"""One sequence in a CSV file: a header with the dimensions' names, then one row a step.

Text as of any table (text_table.py), numbers only. A first column named like a time, or the one
that the settings name, is left out: the rows are the steps, whatever the time between them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.choice import require_there
from fedproto_app.data.table import Columns, Head, require_named
from fedproto_app.data.text_table import parse_text_table
from fedproto_app.settings import Choice, DataSettings


def parse_steps(
    content: bytes, where: str, settings: DataSettings, choice: Choice | None = None
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The names of the dimensions [d] and the values [T, d], all finite, T ≥ 1.

    where: the file's name in messages. choice: of its columns, in this order; None: the settings'.
    Raises `DataError` naming the line and the column.
    """
    wanted = partial(_steps_columns, choice=choice or settings.choice)
    table = parse_text_table(content, where, settings, wanted)
    names, values = tuple(table.names), table.numbers()
    if not (finite := np.isfinite(values)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        what = "no value" if np.isnan(values[row, column]) else "no finite number"
        raise DataError(f"{where}: column {names[column]!r}, {table.row_of(row)}: {what}")
    return names, values


def _steps_columns(head: Head, choice: Choice) -> Columns:
    """The columns of the dimensions."""
    times = head.place(choice.time_column, "time-column") if choice.time_column else head.times
    if times is not None and head.names[times] == "":
        times = None  # rows are steps here, so no column needs to be one of times
    places = [place for place in range(len(head.names)) if place != times]
    if choice.columns:
        there = [head.names[place] for place in places]
        require_there(choice.columns, there, "columns", "column", head.where)
        places = [place for name in choice.columns for place in places if head.names[place] == name]
    if not places:
        raise DataError(f"{head.where}: no column of values in the header")
    require_named((head.names[place] for place in places), head.where)
    return Columns(places)
