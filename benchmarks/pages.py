"""Sections of the documentation that a benchmark writes: a table and a line on how it was made.

Everything outside a section's two markers is written by hand and stays.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

Lines = Sequence[Sequence[str]]  # a table: the column names, then its rows

ROOT = Path(__file__).parents[1]
RUN_NOTE = "made.json"  # in a run's folder: the day and the machine of the run
UNKNOWN = "-"
_SEEDS = "seeds"  # the last column of tables that state how many runs a row summarises


class CannotMerge(ValueError):
    """A new table does not fit the section on the page."""


def data_root() -> Path:
    """The folder of the real data: FEDPROTO_DATA, by default a sibling of the repository."""
    return Path(os.environ.get("FEDPROTO_DATA", ROOT.parent / "shared" / "data"))


def has_section(page: Path, name: str, maker: str) -> bool:
    begin, _ = _markers(name, maker)
    return begin in page.read_text(encoding="utf-8")


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


def table_texts(lines: Lines, texts: int | None = 1) -> list[str]:
    """Return the table as Markdown. texts: how many of its first columns hold texts, None: all.
    The others hold figures, on the right."""
    head, *rows = lines
    count = len(head) if texts is None else texts
    rule = ["---"] * count + ["---:"] * (len(head) - count)
    return [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]


def parse_table(texts: Sequence[str]) -> tuple[Lines, str]:
    """Return the table of a section and the paragraph below it; both may be empty.

    Raises `CannotMerge` unless the section is as a benchmark writes it: the table, a blank line,
    one paragraph.
    """
    rows = [text[2:-2].split(" | ") for text in texts if text.startswith("|")]
    lines = [*rows[:1], *rows[2:]]
    paragraph = texts[-1] if texts and not texts[-1].startswith("|") else ""
    written = [*(table_texts(lines) if lines else []), *(["", paragraph] if paragraph else [])]
    if (lines and written != list(texts)) or any(len(row) != len(rows[0]) for row in rows):
        raise CannotMerge(
            "the section on the page is not as this command writes it; --whole replaces it by the "
            "rows whose runs are here"
        )
    return lines, paragraph


def merge(page: Lines, new: Lines, keys: int = 1) -> tuple[Lines, list[str]]:
    """Put the rows of a new table into the page's table.

    A new row replaces the row of the same title, its first `keys` cells, unless it summarises
    fewer seeds or lacks a figure. Further rows follow the row that precedes them in the new
    table. Returns the table and the titles of the rows that a new row did not replace.

    Raises `CannotMerge` for other columns and for titles that are not unique.
    """
    new_rows = dict(zip(titles(new, keys), new[1:], strict=True))
    if not page:
        return new, []
    rows = dict(zip(titles(page, keys), page[1:], strict=True))
    head = list(page[0])
    if head != list(new[0]):
        raise CannotMerge(
            f"the page's table has the columns {', '.join(head)}, the new table has "
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
    """Return the first `keys` cells of each row, without bold marks.

    Raises `CannotMerge` if two rows have the same title.
    """
    result = [", ".join(line[:keys]).replace("**", "") for line in lines[1:]]
    twice = sorted({title for title in result if result.count(title) > 1})
    if twice:
        raise CannotMerge(f"several rows are called {twice[0]!r}")
    return result


def _loses(head: Sequence[str], old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the new row has fewer seeds or fewer figures in some column."""
    fewer = _seeds(head, old) > _seeds(head, new)
    return fewer or any(_figures(a) > _figures(b) for a, b in zip(old, new, strict=True))


def _seeds(head: Sequence[str], row: Sequence[str]) -> int:
    """Return how many runs the row summarises, 0 if it does not say."""
    return int(row[-1]) if head[-1] == _SEEDS and row[-1].isdecimal() else 0


def _figures(cell: str) -> int:
    """Count the figures of a cell; a mean with its standard deviation is two."""
    return 0 if cell == UNKNOWN else 2 if " ± " in cell else 1


class Provenance(NamedTuple):
    """The dates, versions and machines of a table's runs."""

    dates: frozenset[str]
    versions: frozenset[str]
    machines: frozenset[str]

    def text(self) -> str:
        days = " to ".join(sorted({min(self.dates), max(self.dates)}))
        versions, machines = ", ".join(sorted(self.versions)), " and ".join(sorted(self.machines))
        return f"Made {days} with {versions or 'unknown versions'} on {machines or 'a machine'}."

    def __or__(self, more: Provenance) -> Provenance:
        return Provenance(*(a | b for a, b in zip(self, more, strict=True)))


_PROVENANCE = re.compile(r"Made ([\d-]+)(?: to ([\d-]+))? with (.+?) on (.+)\.$")


def parse_provenance(paragraph: str) -> Provenance | None:
    """Return the provenance at the end of a paragraph, None if it states none."""
    match = _PROVENANCE.search(paragraph)
    if match is None:
        return None
    dates = frozenset(day for day in match.groups()[:2] if day)
    return Provenance(dates, frozenset(match[3].split(", ")), frozenset(match[4].split(" and ")))


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
