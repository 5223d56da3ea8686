"""A table for a terminal that never breaks a cell: columns that do not fit are stacked.

If a table is too wide, rich squeezes its columns until words break. Here every column is as wide as
its cells. Columns that do not fit beside the others follow below them, beside the rows' names
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

_LEAST_NAME = 12  # letters of a row's name that stay in a line


@dataclass(frozen=True)
class FittingTable:
    """Rows of texts below titles.

    texts: the number of columns, counted from the left, that hold no numbers. They are repeated in
    each stacked part. heading, caption: the lines above and below. marked: the places of the rows
    in bold.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    heading: str = ""
    caption: str = ""
    marked: Sequence[int] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading:
            yield Text(self.heading, "italic", overflow="fold")
        yield Text()
        names, blocks = self._blocks(options.max_width)
        for block in blocks:
            table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
            for place, width in (*names, *block):
                justify: JustifyMethod = "left" if place < self.texts else "right"
                table.add_column(
                    Text(self.columns[place]), justify=justify, width=width, overflow="fold"
                )
            for number, row in enumerate(self.rows):
                cells = [Text(row[place]) for place, _ in (*names, *block)]
                table.add_row(*cells, style="bold" if number in self.marked else None)
            yield table
            yield Text()
        if self.caption:
            yield Text(self.caption, "dim", overflow="fold")

    def _blocks(self, width: int) -> tuple[list[tuple[int, int]], list[list[tuple[int, int]]]]:
        """Return the repeated columns, and the others by block, as pairs of place and width."""
        numbers = [(place, self._width(place)) for place in range(self.texts, len(self.columns))]
        widest = max((size for _, size in numbers), default=0)
        room = width - (widest + 1 if numbers else 0) - (self.texts - 1)
        names: list[tuple[int, int]] = []
        for place in range(self.texts):
            full = max(cell_len(text) for text in (self.columns[place], *self._cells(place)))
            later = (self.texts - place - 1) * _LEAST_NAME
            names.append((place, max(1, min(full, room - later))))
            room -= names[-1][1]
        names_width = sum(size + 1 for _, size in names) - 1
        blocks: list[list[tuple[int, int]]] = [[]]
        used = names_width
        for place, size in numbers:
            if blocks[-1] and used + 1 + size > width:
                blocks.append([])
                used = names_width
            blocks[-1].append((place, size))
            used += 1 + size
        return names, [self._widened(block, width - names_width) for block in blocks]

    def _widened(self, block: Sequence[tuple[int, int]], room: int) -> list[tuple[int, int]]:
        """Return the columns, widened where this makes room for a whole title in one line."""
        room -= sum(size + 1 for _, size in block)
        widened = []
        for place, size in block:
            more = cell_len(self.columns[place]) - size
            if 0 < more <= room:
                size, room = size + more, room - more
            widened.append((place, size))
        return widened

    def _cells(self, place: int) -> list[str]:
        return [row[place] for row in self.rows]

    def _width(self, place: int) -> int:
        """Return the width of the widest cell, or of the title's longest word if that is wider."""
        words = self.columns[place].split() or [""]
        return max(cell_len(text) for text in (*words, *self._cells(place)))
