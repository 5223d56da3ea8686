"""The text of a page's section, and a newly made table put into it: a table, its footnotes.

A line is known by its title: its first cell, or the first `keys` ones, without bold marks. Lines of
the page that were not made anew stay. Each footnote is headed by the titles that it stands for,
where there are several.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Lines = Sequence[Sequence[str]]  # a table's, the columns' names first

_BETWEEN = "; "  # titles of a heading
_HEADING = re.compile(r"\*\*(?P<titles>.+?)\*\*: (?P<text>.+)", re.DOTALL)
_OTHERS = "All others"  # heads what the whole table was made with before some lines were replaced
_SEEDS = "seeds"  # the last column of tables that tell how many a line is of
_UNKNOWN = "-"


class CannotMerge(ValueError):
    """The page's section and the new table do not fit together, or one cannot be read."""


@dataclass(frozen=True)
class Section:
    """What stands between a section's markers.

    lines: empty without a table. paragraphs: below the table, each with its line breaks.
    """

    lines: Lines
    paragraphs: Sequence[str]

    def texts(self) -> list[str]:
        """Its lines of text."""
        blocks = ["\n".join(_table_texts(self.lines))] if self.lines else []
        return "\n\n".join([*blocks, *self.paragraphs]).splitlines()


def _table_texts(lines: Lines) -> list[str]:
    head, *rows = lines
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]


def parse(texts: Sequence[str]) -> Section:
    """The section with these lines of text.

    Raises `CannotMerge` unless it is as `Section.texts` writes it: a blank line between two parts,
    the table first, and as many cells in each of its lines.
    """
    blocks = "\n".join(texts).split("\n\n") if texts else []
    lines: Lines = []
    if blocks and blocks[0].startswith("|"):
        head, *rows = [text[2:-2].split(" | ") for text in blocks.pop(0).split("\n")]
        lines = [head, *rows[1:]]
    section = Section(lines, blocks)
    uneven = any(len(line) != len(lines[0]) for line in lines)
    second = any(text.startswith("|") for block in blocks for text in block.split("\n"))
    if section.texts() != list(texts) or uneven or second:
        raise CannotMerge(
            "the page's section is not as this command writes it; --whole writes it anew of the "
            "runs that are here alone"
        )
    return section


@dataclass(frozen=True)
class Merged:
    """A table with the page's lines and the new ones.

    made: titles of the new lines in it. of_more_seeds, of_more_figures: titles of the page's lines
    that stay in spite of a new one, which is of fewer seeds or has no figure where they have one.
    """

    lines: Lines
    made: frozenset[str]
    of_more_seeds: tuple[str, ...] = ()
    of_more_figures: tuple[str, ...] = ()


def merge(page: Lines, new: Lines, keys: int = 1) -> Merged:
    """The page's table with the new lines in place of those of the same title.

    Other new lines stand behind the line that precedes them in the new table. page: empty for no
    table. Of other columns than the new ones it is replaced as a whole, if that loses nothing.

    Raises `CannotMerge` if it would lose something, and for titles that are not unique.
    """
    made = dict(zip(titles(new, keys), new[1:], strict=True))
    if not page:
        return Merged(new, frozenset(made))
    there = dict(zip(titles(page, keys), page[1:], strict=True))
    head, new_head = list(page[0]), list(new[0])
    if head != new_head:
        if there.keys() <= made.keys() and not any(
            _seeds(head, old) > _seeds(new_head, made[title])
            or sum(map(_figures, old)) > sum(map(_figures, made[title]))
            for title, old in there.items()
        ):
            return Merged(new, frozenset(made))
        raise CannotMerge(
            f"the page's table has other columns ({_difference(head, new_head)}), and lines or "
            "figures that are not here; --whole writes the runs that are here alone"
        )
    both = [title for title in made if title in there]
    seeds = [title for title in both if _seeds(head, there[title]) > _seeds(head, made[title])]
    figures = [
        title
        for title in both
        if title not in seeds
        and any(_figures(o) > _figures(n) for o, n in zip(there[title], made[title], strict=True))
    ]
    put = [title for title in made if title not in seeds and title not in figures]
    order, place = list(there), 0
    for title in made:
        if title not in there:
            order.insert(place, title)
        place = order.index(title) + 1
    lines = there | {title: made[title] for title in put}
    return Merged(
        [head, *(lines[title] for title in order)], frozenset(put), tuple(seeds), tuple(figures)
    )


def titles(lines: Lines, keys: int = 1) -> list[str]:
    """Of the lines below the columns' names.

    Raises `CannotMerge` if two are the same, or one cannot stand in a footnote's heading.
    """
    found = [", ".join(line[:keys]).replace("**", "") for line in lines[1:]]
    for title, times in Counter(found).items():
        if times > 1:
            raise CannotMerge(f"{times} lines are called {title!r}")
        if _BETWEEN in title:
            raise CannotMerge(f"{title!r}: a line's title cannot hold {_BETWEEN!r}")
    return found


def _seeds(head: Sequence[str], line: Sequence[str]) -> int:
    """0 where the table or the line does not tell."""
    return int(line[-1]) if head[-1] == _SEEDS and line[-1].isdecimal() else 0


def _figures(cell: str) -> int:
    """A mean with its standard deviation is two."""
    return 0 if cell == _UNKNOWN else 2 if " ± " in cell else 1


def _difference(page: Sequence[str], new: Sequence[str]) -> str:
    sides = {
        "only there": Counter(page) - Counter(new),
        "only here": Counter(new) - Counter(page),
    }
    said = [f"{side}: {', '.join(columns)}" for side, columns in sides.items() if columns]
    return "; ".join(said) or "in another order"


def footnotes(
    page: Sequence[str], new: str, merged: Lines, made: frozenset[str], keys: int = 1
) -> list[str]:
    """The paragraphs below a merged table: those of the page that some line needs, and the new one.

    merged: the lines as they stand. made: the titles that the new paragraph is of. A paragraph of
    all lines has no heading.
    """
    there = titles(merged, keys)
    others = [title for title in there if title not in made]
    if not others:
        return [new]
    headed, rest, named = [], [], set[str]()
    for paragraph in page:
        heading = _HEADING.fullmatch(paragraph)
        if heading is None or heading["titles"] == _OTHERS:
            rest.append(heading["text"] if heading else paragraph)
            continue
        left = [title for title in heading["titles"].split(_BETWEEN) if title in others]
        named.update(left)
        if left:
            headed.append(_headed(_BETWEEN.join(left), heading["text"]))
    if named >= set(others):
        rest = []
    of_new = _BETWEEN.join(title for title in there if title in made)
    return [*headed, _headed(of_new, new), *(_headed(_OTHERS, text) for text in rest)]


def _headed(heading: str, text: str) -> str:
    return f"**{heading}**: {text}"
