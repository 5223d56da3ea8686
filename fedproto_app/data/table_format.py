"""Make the formats of files that hold tables.

A format has its sources, and recognises the settings that read a file or a folder.
"""

from __future__ import annotations

import csv
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
    has_empty_end,
    has_names,
    is_date,
    is_total,
    numbered,
    rows_above,
    unit_rows,
)
from fedproto_app.data.table_form import Column, form_of
from fedproto_app.data.table_source import (
    TableFormat,
    load_covariates,
    load_folder,
    load_long,
    load_wide,
)
from fedproto_app.settings import DataSettings, settings_from
from fedproto_app.settings.choice import names_in, text_of

_KEYS = (  # of all tables
    *("time_column", "time_unit", "time_zone"),
    *("missing", "missing_values", "repeated"),
)
_HOW_TO_CUT = ("header", "delimiter", "decimal", "sheet")  # answers needed to read a sample
_HINTS = {"columns": "there a column is a client: data.clients"}


@dataclass(frozen=True)
class Sample:
    """The first and last rows of a table, which show its form.

    columns: the cells of these rows. rows: how many rows the whole table has. settings: what must
    be set to read the file in the same way. notes: remarks for a person. has_times: whether the
    file says which column holds the times. is_clear: whether nothing stands above the table.
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
    sample: Callable[[Path, DataSettings], Sample] | None = None,
) -> Format:
    """Return the format of files that hold tables.

    paths: as in `Format`. sample: reads the first and last rows of a file according to the
    settings, and raises `DataError` for a damaged file. By default, this reads the whole file.
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
            keys=("columns", "client_column", "unfold", *_KEYS, *tables.keys),
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
            files = tables.files_in(candidate.files_beside)
            if any(tables.suffix.search(path.name) for path in files):
                return Fit.STRONG
            return Fit.WEAK if files and len(files) == len(candidate.files) else Fit.NONE
        if tables.suffix.search(candidate.name):
            return Fit.NAME
        is_further = tables.files_in([candidate.path]) and candidate.path.exists()
        return Fit.NAME if is_further else Fit.NONE

    def reading(candidate: Candidate, answers: Answers) -> Reading:
        read = partial(_reading_of_file, tables, sample or partial(_sample_of, tables))
        if not candidate.is_folder:
            return read(candidate.path, answers)
        first = tables.files_in(candidate.files_beside)[0]
        of_first = read(first, answers)
        has_parts = tables.has_parts or answers.get("data.client-column")
        if has_parts and of_first.form == "long":
            return of_first
        settings = _for_a_folder(of_first.settings, first, answers)
        return replace(of_first, source=f"{tables.name}-folder", settings=settings)

    return Format(sources, paths, fit, reading, partial(load_covariates, tables=tables))


def _reading_of_file(
    tables: TableFormat,
    sample: Callable[[Path, DataSettings], Sample],
    path: Path,
    answers: Answers,
) -> Reading:
    """Return the settings that read a file. If it is damaged, its reader reports the fault."""
    wide = f"wide-{tables.name}"
    if not path.is_file():
        return Reading(wide)
    cut = {key: answers[key] for name in _HOW_TO_CUT if (key := f"data.{name}") in answers}
    try:
        table = sample(path, settings_from(cut).data)
    except (DataError, OSError, csv.Error):
        return Reading(wide, is_guess=True)
    if not table.is_clear:
        return Reading(wide, table.settings, is_guess=True)
    names = [column.name for column in table.columns]
    if _are_turned(names, table.columns[0].cells) and not answers.get("data.unfold"):
        first = next(name for name in names if is_date(name))
        raise DataError(
            f"{path}: line 1 holds times, such as {names[-1]!r}, so its rows look like series; "
            f"--set data.unfold={text_of([first, names[-1]])} reads them"
        )
    lacking = names_in(str(answers.get("data.missing-values", "")))
    columns = [
        replace(c, cells=["" if cell in lacking else cell for cell in c.cells])
        for c in table.columns
    ]
    form = form_of(
        columns,
        answers,
        name=tables.name,
        rows=table.rows,
        where=str(path),
        first_column_counts="data.header" in table.settings,
    )
    if table.has_times:
        form.settings.pop("data.time-column", None)
    return replace(form, settings=table.settings | form.settings, notes=(*table.notes, *form.notes))


def _are_turned(names: list[str], below: list[str]) -> bool:
    """Return whether the names are times, and the cells below the first name are not."""
    return sum(map(is_date, names)) > max(1, len(names) // 2) and not any(map(is_date, below[:1]))


def _for_a_folder(settings: Changes, file: Path, answers: Answers) -> Changes:
    """Return the settings for a folder of such files, one per client.

    Raises `DataError` if a file has several columns of values and none is chosen.
    """
    settings = dict(settings)
    if values := settings.pop("data.clients", ""):  # columns of values among other columns
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
    header: str = "auto",
    settings: Changes | None = None,
    first_row: int = 1,
) -> Sample:
    """Return the sample of a table with these first and last rows, and with this many rows in all.

    header, first_row: as in `rows_above`. settings: the settings that were needed to cut lines into
    cells.
    """
    settings = settings or {}
    above = rows_above(rows, header, "the table", first_row)
    rows = rows[above:]
    if len({len(row) for row in rows}) > 1 or len(rows) < 2:
        return Sample([], count, settings, is_clear=False)
    names, notes, is_empty_end = rows[0], tuple[str, ...](), has_empty_end(rows)
    is_named = above or header not in ("auto", "false")
    if is_named or (header == "auto" and (_are_turned(names, rows[1]) or has_names(rows, "auto"))):
        rows = [row for row in rows[1 + unit_rows(rows) :] if row != names]
    else:
        names = numbered(len(rows[0]))
        settings = {**settings, "data.header": False}
        notes = ("line 1 is read as values; if it has names, set data.header = true",)
    last = [row for row in last if len(row) == len(names) and not any(map(is_total, row))]
    columns = [
        Column(name, [row[place] for row in rows], [row[place] for row in last])
        for place, name in enumerate(names[:-1] if is_empty_end else names)
    ]
    return Sample(columns, count, settings, notes)


def _sample_of(tables: TableFormat, path: Path, _: DataSettings) -> Sample:
    """Read a table block by block, and return its first and last rows."""
    import pandas as pd

    file = tables.open(path, DataSettings())
    names, count = file.head.names, 0
    first = last = pd.DataFrame()
    for block in file.blocks(Columns(list(range(len(names)))), "texts"):
        if not count:
            first = block.head(LOOKED_AT)
        last = block.iloc[max(0, LOOKED_AT - count) :].tail(LOOKED_AT)
        count += len(block)
    columns = [
        Column("" if name == INDEX else name, list(map(str, first[p])), list(map(str, last[p])))
        for p, name in enumerate(names)
    ]
    return Sample(columns, count, has_times=file.head.times is not None)
