"""Print the findings of a data check, and format names and numbers. All tasks use this module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedproto_app.core.charts import Chart
from fedproto_app.settings import DataSettings

ROWS = 20  # rows of the table that are shown without --all
MOST_LISTED = 5  # clients, classes or files named in one line
# Errors are squared in float32, whose largest number is 3e38.
LARGEST_VALUE = 1e15

Cell = str | Text  # a `Text` keeps its colour and is aligned to the left


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    could_start: whether a run could start. proposed: settings that suit the data, with dotted keys.
    charts: the charts of the clients' classes, or None for data without classes.
    """

    could_start: bool
    proposed: Mapping[str, object] = field(default_factory=dict)
    charts: Sequence[Chart] | None = ()


def with_own_clients(data: DataSettings, table: str, has_clients: bool) -> DataSettings:
    """Return settings that use the source's own clients, unless the user asked for others.

    A user asks for others by setting anything in `table`, which is "partition" or "clusters".
    """
    dealing = getattr(data, table)
    if not has_clients or dealing.model_fields_set:
        return data
    return data.model_copy(update={table: dealing.model_copy(update={"scheme": "given"})})


@dataclass
class Findings:
    """The findings of a check, in the order of printing.

    rows: the rows of a table, its titles first. facts: pairs of title and text. refused: lines
    about data that a run refuses. warnings: lines about data that a run accepts but may not handle
    well.
    """

    rows: list[Sequence[Cell]]
    facts: list[tuple[str, Cell]]
    refused: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def print(self, all_rows: bool) -> None:
        """Print the findings. Without `all_rows`, a long table shows only its first rows."""
        console = Console()
        if len(self.rows) > 1:
            console.print(_table(self.rows if all_rows else self.rows[: ROWS + 1]))
        if (hidden := len(self.rows) - ROWS - 1) > 0 and not all_rows:
            console.print(f"... and {hidden} more (--all lists them)")
        facts = Table(box=None, show_header=False)
        facts.add_column(style="bold")
        facts.add_column()
        for title, text in self.facts:
            facts.add_row(title, _cell(text))
        console.print(facts)
        for colour, verdict, lines in (
            ("yellow", "warning", self.warnings),
            ("red", "refused", self.refused),
        ):
            for line in lines:
                console.print(f"[{colour}]{verdict}[/{colour}] {escape(line)}", highlight=False)


def _table(rows: Sequence[Sequence[Cell]]) -> Table:
    table = Table(box=None, header_style="bold")
    first = rows[1]
    for number, title in enumerate(rows[0]):
        is_text = number == 0 or isinstance(first[number], Text)
        # Numbers keep their width. Long names and notes are wrapped.
        table.add_column(
            _cell(title), justify="left" if is_text else "right", no_wrap=not is_text,
            overflow="fold",
        )  # fmt: skip
    for row in rows[1:]:
        table.add_row(*map(_cell, row))
    return table


def _cell(text: Cell) -> Cell:
    return text if isinstance(text, Text) else escape(text)


def hint(text: str) -> tuple[str, Text]:
    """Return a fact that suggests another option."""
    return "", Text(text, "yellow")


def listed(names: Sequence[str]) -> str:
    """Return a text with the first names, and the number of the others."""
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def span(values: NDArray[np.generic]) -> str:
    """Return the lowest and the highest of these numbers, or the only number."""
    low, high = (
        str(value) if values.dtype.kind == "i" else f"{value:.4g}"
        for value in (values.min(), values.max())
    )
    return low if low == high else f"{low} … {high}"


def refusals(refused: Mapping[str, str | None]) -> list[str]:
    """Return a line for each reason. refused: the reason by client, None for a usable client."""
    by_reason: dict[str, list[str]] = {}
    for client, reason in refused.items():
        if reason is not None:
            by_reason.setdefault(reason, []).append(client)
    return [f"{listed(clients)}: {reason}" for reason, clients in by_reason.items()]


def most_affected(
    sizes: Mapping[str, float], text: str, strength: Callable[[float], float] = abs
) -> list[str]:
    """Return a line about these clients, the most affected first, or [] without clients.

    text: the line's text, with a placeholder for the size of the most affected client.
    """
    names = sorted(sizes, key=lambda name: -strength(sizes[name]))
    return [f"{listed(names)}: {text.format(sizes[names[0]])}"] if names else []


def too_large(largest: Iterable[tuple[str, float]]) -> list[str]:
    """Return a warning if a value is too large to train on. largest: pairs of name and size."""
    beyond = {name: size for name, size in largest if size > LARGEST_VALUE}
    if not beyond:
        return []
    return [
        f"{listed(list(beyond))}: values up to {max(beyond.values()):.4g} in size; models may not "
        f"learn from values beyond {LARGEST_VALUE:g}"
    ]
