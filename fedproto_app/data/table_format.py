"""Make the format of files with tables: its sources, and how it recognises the settings that read a
file or a folder.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import Answers, Candidate, Changes, Fit, Format, Reading, Source
from fedproto_app.data.table import (
    INDEX,
    LOOKED_AT,
    Columns,
    has_names,
    has_units,
    header_line,
    is_date,
    is_total,
    numbered,
)
from fedproto_app.data.table_form import Column, form_of
from fedproto_app.data.table_source import (
    TableFormat,
    load_covariates,
    load_folder,
    load_long,
    load_wide,
)
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import names_in, text_of

_KEYS = ("time_column", "time_unit", "time_zone", "missing")  # of all tables
_HINTS = {"columns": "there a column is a client: data.clients"}


@dataclass(frozen=True)
class Sample:
    """The ends of a table, from which its form is recognised.

    columns: their cells. rows: of the whole table. settings: those without which the file cannot be
    read like this. notes: remarks for a person. has_times: whether the file says which column holds
    the times. is_clear: whether the rows are a table without anything above it.
    """

    columns: list[Column]
    rows: int
    settings: Changes = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    has_times: bool = False
    is_clear: bool = True


def table_format(
    tables: TableFormat,
    paths: str,
    sample: Callable[[Path], Sample] | None = None,
    further: re.Pattern[str] | None = None,
) -> Format:
    """Return the format of files that hold tables.

    paths: as in `Format`. sample: reads the ends of a file, and raises `DataError` for a damaged
    one; None: the whole file is read for them. further: names of files that exist which are taken
    for tables of this format too.
    """
    file: partial[Source] = partial(Source, holds="series")
    sources = (
        file(
            f"wide-{tables.name}",
            load=partial(load_wide, tables=tables),
            keys=(*_KEYS, *tables.keys),
            hints=_HINTS,
            form="wide",
        ),
        file(
            f"long-{tables.name}",
            load=partial(load_long, tables=tables),
            path="a file or a folder",
            keys=("columns", "client_column", *_KEYS, *tables.keys),
            form="long",
        ),
        file(
            f"{tables.name}-folder",
            load=partial(load_folder, tables=tables),
            path="a folder",
            keys=("columns", *_KEYS, *tables.keys),
            form="folder",
        ),
    )

    def fit(candidate: Candidate) -> Fit:
        if candidate.is_folder:
            is_beside = any(tables.suffix.search(path.name) for path in candidate.files_beside)
            return Fit.STRONG if is_beside else Fit.NONE
        if tables.suffix.search(candidate.name):
            return Fit.NAME
        is_further = further is not None and further.search(candidate.name)
        return Fit.NAME if is_further and candidate.path.exists() else Fit.NONE

    def reading(candidate: Candidate, answers: Answers) -> Reading:
        read = partial(_reading_of_file, tables, sample or partial(_sample_of, tables))
        if not candidate.is_folder:
            return read(candidate.path, answers)
        first = next(p for p in candidate.files_beside if tables.suffix.search(p.name))
        of_first = read(first, answers)
        has_parts = tables.has_parts or answers.get("data.client-column")
        if has_parts and of_first.form == "long":
            return of_first
        settings = _for_a_folder(of_first.settings, first, answers)
        return replace(of_first, source=f"{tables.name}-folder", settings=settings)

    return Format(sources, paths, fit, reading, partial(load_covariates, tables=tables))


def _reading_of_file(
    tables: TableFormat, sample: Callable[[Path], Sample], path: Path, answers: Answers
) -> Reading:
    """Return the settings that read a file; if it is damaged, its reader reports the fault."""
    wide = f"wide-{tables.name}"
    if not path.is_file():
        return Reading(wide)
    try:
        table = sample(path)
    except (DataError, OSError, csv.Error):
        return Reading(wide, is_guess=True)
    if not table.is_clear:
        return Reading(wide, table.settings, is_guess=True)
    names = [column.name for column in table.columns]
    if _are_turned(names, table.columns[0].cells):
        raise DataError(
            f"{path}: line 1 holds times, such as {names[-1]!r}, so its rows look like series; "
            "turn the table, so that every row is a time and every series a column (pandas: "
            "frame.T)"
        )
    form = form_of(
        table.columns,
        answers,
        rows=table.rows,
        where=str(path),
        first_column_counts="data.header" in table.settings,
    )
    if table.has_times:
        form.settings.pop("data.time-column", None)
    return Reading(
        f"{form.kind}-{tables.name}",
        table.settings | form.settings,
        (*table.notes, *form.notes),
        form.left_out,
        target=form.target,
        beside=form.beside,
    )


def _are_turned(names: list[str], below: list[str]) -> bool:
    """Return whether the names are times, and what stands below the first of them is none."""
    return sum(map(is_date, names)) > max(1, len(names) // 2) and not any(map(is_date, below[:1]))


def _for_a_folder(settings: Changes, file: Path, answers: Answers) -> Changes:
    """Return the settings for a folder of such files, one per client.

    Raises `DataError` if a file has several columns of values and none is chosen.
    """
    settings = dict(settings)
    if values := settings.pop("data.clients", ""):  # columns of values beside others
        names = names_in(str(values))
        if len(names) > 1 and not answers.get("data.columns"):
            raise DataError(
                f"{file}: which column is to be forecast: {', '.join(names)}? name it with "
                "--target COLUMN or --set data.columns=COLUMN"
            )
        settings["data.columns"] = text_of(names[:1])
    return {key: value for key, value in settings.items() if key != "data.client-column"}


def sample_of_rows(
    rows: list[list[str]],
    last: list[list[str]],
    count: int,
    settings: Changes | None = None,
) -> Sample:
    """Return the sample of a table with these first and last rows, of so many rows.

    settings: those that were needed to cut lines into cells.
    """
    settings = settings or {}
    if len({len(row) for row in rows}) > 1 or len(rows) < 2 or header_line(rows):
        return Sample([], count, settings, is_clear=False)
    names, notes = rows[0], tuple[str, ...]()
    if _are_turned(names, rows[1]) or has_names(rows, "auto"):
        rows = rows[2 if has_units(rows) else 1 :]
    else:
        names = numbered(len(rows[0]))
        settings = {**settings, "data.header": False}
        notes = ("line 1 is read as values; if it has names, set data.header = true",)
    last = [row for row in last if len(row) == len(names) and not any(map(is_total, row))]
    columns = [
        Column(name, [row[place] for row in rows], [row[place] for row in last])
        for place, name in enumerate(names)
    ]
    return Sample(columns, count, settings, notes)


def _sample_of(tables: TableFormat, path: Path) -> Sample:
    """Return the ends of a table, for which all of its rows are read."""
    file = tables.open(path, DataSettings())
    head = file.head
    blocks = list(file.blocks(Columns(list(range(len(head.names)))), "texts"))
    rows = sum(map(len, blocks))
    columns = []
    for place, name in enumerate(head.names):
        cells = [str(cell) for block in blocks for cell in block[place]]
        last = cells[LOOKED_AT:][-LOOKED_AT:]
        columns.append(Column("" if name == INDEX else name, cells[:LOOKED_AT], last))
    return Sample(columns, rows, has_times=head.times is not None)
