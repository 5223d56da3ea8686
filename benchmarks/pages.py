"""Sections of the documentation that a benchmark writes: a table and a note on how it was made.

Everything outside a section's two markers is written by hand and stays. A table of results has all
its lines in a CSV file beside the page, in tables/PAGE-NAME.csv, whose last two columns say of each
line which runs it summarises, and when and where they were made. The page shows some of these.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.machine import machine_line, processors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Sequence[Sequence[str]]  # a table: the column names, then its rows

ROOT = Path(__file__).parents[1]
RUN_NOTE = "made.json"  # in a run's folder: the day and the machine of the run
UNKNOWN = "-"
SEEDS, RUNS, MADE = "seeds", "runs", "made"  # columns of files: how many runs, which, and when


class CannotMerge(ValueError):
    """A new table does not fit the file of the page."""


def data_root() -> Path:
    """The folder of the real data: FEDPROTO_DATA, by default a sibling of the repository."""
    return Path(os.environ.get("FEDPROTO_DATA", ROOT.parent / "shared" / "data"))


# --- sections -----------------------------------------------------------------------------------


def read_section(page: Path, name: str, maker: str) -> list[str]:
    """Return the lines of the page between the section's markers."""
    begin, end = _markers(name, maker)
    _, after = page.read_text(encoding="utf-8").split(begin)
    return after.split(end)[0].split("\n")[1:-1]


def write_section(page: Path, name: str, maker: str, lines: Sequence[str]) -> None:
    """Replace the part of the page between the section's markers.

    maker: the module that writes the section, named in its first marker.
    """
    begin, end = _markers(name, maker)
    before, section = page.read_text(encoding="utf-8").split(begin)
    _, after = section.split(end)
    page.write_text("\n".join([before + begin, *lines, end]) + after, encoding="utf-8")


def _markers(name: str, maker: str) -> tuple[str, str]:
    return f"<!-- {name}: written by {maker} -->", f"<!-- /{name} -->"


def print_table(lines: Lines, *notes: str, texts: int = 1) -> None:
    """Print the table as Markdown, with these notes and the machine below it."""
    print(*table_texts(lines, texts), "", *notes, f"{machine_line()}.", sep="\n")


def table_texts(lines: Lines, texts: int | None = 1) -> list[str]:
    """Return the table as Markdown. texts: how many of its first columns hold texts, None: all.
    The others hold figures, on the right."""
    head, *rows = lines
    count = len(head) if texts is None else texts
    rule = ["---"] * count + ["---:"] * (len(head) - count)
    return [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]


@contextmanager
def picture(file: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of this size in inches, and write it as an SVG in the style of reports.

    The same figures give the same bytes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from fedproto_app.report.drawing import STYLE

    with rc_context(STYLE | {"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(file, metadata={"Date": None})


# --- files of tables ----------------------------------------------------------------------------


class Shown(NamedTuple):
    """What a section shows of tables.

    rows: by title, in this order, by default all. columns: by name, by default all, and with none
    only the note. keys: how many of the first cells make a row's title. means: without standard
    deviations.
    """

    rows: Sequence[str] = ()
    columns: Sequence[str] | None = None
    keys: int = 1
    means: bool = False


def table_file(page: Path, name: str) -> Path:
    return page.parent / "tables" / f"{page.stem}-{name}.csv"


def read_table(file: Path) -> Lines:
    """Return the table of a file, empty if there is none."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.reader(opened))


def write_table(file: Path, lines: Lines) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows(lines)


def with_origin(lines: Lines, runs: str, date_and_machine: str) -> Lines:
    """Return the table with the last two columns of a file. Every line has this origin."""
    head, *rows = lines
    return [[*head, RUNS, MADE], *([*row, runs, date_and_machine] for row in rows)]


def publish(page: Path, name: str, maker: str, lines: Lines, shown: Shown) -> Lines:
    """Put a benchmark's lines into the table's file, and show a part of it on the page.

    lines: as `with_origin` returns them. Lines of the file with other titles stay. Returns all.
    """
    file = table_file(page, name)
    merged, _ = merge(read_table(file), lines, shown.keys)
    write_table(file, merged)
    write_section(page, name, maker, section_of({name: file}, shown))
    return merged


def section_of(files: Mapping[str, Path], shown: Shown) -> list[str]:
    """Return a section: the chosen rows and columns of these files, and a note on their origin.

    files: by heading. The columns of several files stand side by side, each with its heading, and
    a row is unknown where a file lacks it. Rows that no file has are left out. Raises `ValueError`
    for an unknown column.
    """
    tables = {heading: read_table(file) for heading, file in files.items()}
    rows_of = {h: dict(zip(titles(t, shown.keys), t[1:], strict=True)) for h, t in tables.items()}
    first, *_ = tables.values()
    columns = first[0][shown.keys : -2] if shown.columns is None else shown.columns
    rows = shown.rows or titles(first, shown.keys)
    rows = [title for title in rows if any(title in of_file for of_file in rows_of.values())]
    head = list(first[0][: shown.keys])
    lines = [title.rsplit(", ", shown.keys - 1) for title in rows]
    for heading, table in tables.items():
        for column in columns:
            place = table[0].index(column)
            parts = [heading] * (len(tables) > 1) + [column] * (
                len(columns) > 1 or len(tables) == 1
            )
            head.append(", ".join(parts))
            for line, title in zip(lines, rows, strict=True):
                cell = rows_of[heading][title][place] if title in rows_of[heading] else UNKNOWN
                line.append(cell.partition(" ± ")[0] if shown.means else cell)
    texts = [*table_texts([head, *lines], shown.keys), ""] if columns else []
    return [*texts, _note(files, tables)]


def _note(files: Mapping[str, Path], tables: Mapping[str, Lines]) -> str:
    """Return a paragraph that links the files and says on which days their runs were made.

    If all rows of a single file have the same origin, it is named too.
    """
    runs = {row[-2] for table in tables.values() for row in table[1:]}
    if len(tables) > 1:
        links = (f"[{heading}](tables/{file.name})" for heading, file in files.items())
        note = f"All rows and their commands: {', '.join(links)}."
    else:
        [file], [table] = files.values(), tables.values()
        note = f"[All {len(table) - 1} rows](tables/{file.name})"
        note += f": {runs.pop()}." if len(runs) == 1 else " and their commands."
    made = Provenance(frozenset(), frozenset(), frozenset())
    for text in {row[-1] for table in tables.values() for row in table[1:]}:
        made |= Provenance.parsed(text)
    return f"{note} Made {made.days}." if made.dates else note


def merge(present: Lines, new: Lines, keys: int = 1) -> tuple[Lines, list[str]]:
    """Put the rows of a new table into the present table.

    A new row replaces the row of the same title, its first `keys` cells, unless it summarises
    fewer seeds or lacks a figure. Further rows follow the row that precedes them in the new
    table. Returns the table and the titles of the rows that a new row did not replace.

    Raises `CannotMerge` for other columns and for titles that are not unique.
    """
    new_rows = dict(zip(titles(new, keys), new[1:], strict=True))
    if not present:
        return new, []
    rows = dict(zip(titles(present, keys), present[1:], strict=True))
    head = list(present[0])
    if head != list(new[0]):
        raise CannotMerge(
            f"the file has the columns {', '.join(head)}, the new table has "
            f"{', '.join(new[0])}; --whole replaces it by the rows whose runs are here"
        )
    stay, order, place = [], list(rows), 0
    for title, row in new_rows.items():
        if title not in rows:
            order.insert(place, title)
        place = order.index(title) + 1
        if title in rows and _loses(head, rows[title], row):
            stay.append(title)
        else:
            rows[title] = row
    return [head, *(rows[title] for title in order)], stay


def titles(lines: Lines, keys: int = 1) -> list[str]:
    """Return the first `keys` cells of each row, as one text.

    Raises `CannotMerge` if two rows have the same title.
    """
    result = [", ".join(line[:keys]) for line in lines[1:]]
    twice = sorted({title for title in result if result.count(title) > 1})
    if twice:
        raise CannotMerge(f"several rows are called {twice[0]!r}")
    return result


def _loses(head: Sequence[str], old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the new row has fewer seeds or fewer figures in some column."""
    if SEEDS in head and _seeds(head, old) > _seeds(head, new):
        return True
    cells = zip(head, old, new, strict=True)
    return any(_figures(a) > _figures(b) for name, a, b in cells if name not in (RUNS, MADE))


def _seeds(head: Sequence[str], row: Sequence[str]) -> int:
    """Return how many runs the row summarises, 0 if it does not say."""
    cell = row[head.index(SEEDS)]
    return int(cell) if cell.isdecimal() else 0


def _figures(cell: str) -> int:
    """Count the figures of a cell. A mean with its standard deviation is two."""
    return 0 if cell == UNKNOWN else 2 if " ± " in cell else 1


class Provenance(NamedTuple):
    """The dates, versions and machines of a table's runs."""

    dates: frozenset[str]
    versions: frozenset[str]
    machines: frozenset[str]

    @property
    def days(self) -> str:
        return " to ".join(sorted({min(self.dates), max(self.dates)}))

    def text(self) -> str:
        versions = f" with {', '.join(sorted(self.versions))}" if self.versions else ""
        return f"{self.days}{versions} on {' and '.join(sorted(self.machines)) or 'a machine'}"

    @staticmethod
    def parsed(text: str) -> Provenance:
        """Return the provenance that a text states, an empty one if it states none."""
        match = _PROVENANCE.fullmatch(text)
        first, last, versions, machines = match.groups("") if match else [""] * 4
        parts = ([first, last], versions.split(", "), machines.split(" and "))
        return Provenance(*(frozenset(filter(None, part)) for part in parts))

    def __or__(self, more: Provenance) -> Provenance:
        return Provenance(*(a | b for a, b in zip(self, more, strict=True)))


_PROVENANCE = re.compile(r"([\d-]+)(?: to ([\d-]+))?(?: with (.+?))? on (.+)")


def made_today() -> str:
    """Return the provenance of figures that this process made."""
    return f"{date.today().isoformat()} on {processors()}"


def provenance(folders: Iterable[Path], versions: Iterable[str] = ()) -> Provenance:
    """Return when and where runs were made, from `made.json` or the day of their summary."""
    dates, machines = set(), set()
    for folder in folders:
        if (folder / RUN_NOTE).exists():
            note = json.loads((folder / RUN_NOTE).read_text(encoding="utf-8"))
            dates.add(note["date"])
            machines.add(note["machine"])
        else:
            modified = (folder / "summary.json").stat().st_mtime
            dates.add(date.fromtimestamp(modified).isoformat())
    return Provenance(frozenset(dates), frozenset(versions), frozenset(machines))
