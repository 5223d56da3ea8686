"""Tables of figures on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line

WIDTH = 130  # characters of a terminal that a benchmark's tables may use


def figure_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str,
    caption: str | None = None,
    texts: int = 1,
) -> Table:
    """Return a table. texts: how many of its first columns hold texts. Figures are on the right."""
    table = Table(title=title, caption=caption)
    for number, heading in enumerate(headings):
        is_text = number < texts
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=is_text)
    for row in rows:
        table.add_row(*row)
    return table


def print_with_machine(*parts: Table | str) -> None:
    """Print tables and lines, and below them the machine that they come from."""
    console = Console(width=WIDTH)
    for part in parts:
        console.print(part)
    console.print(machine_line(), style="dim")
