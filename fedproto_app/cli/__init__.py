"""The command line; `say_next` suggests the next commands at the end of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow to import
    from rich.console import Console


def say_next(console: Console, *commands: str) -> None:
    """Print the next commands. console: of stderr, so that pipes stay clean."""
    for number, command in enumerate(commands):
        title = "next: " if number == 0 else "      "
        console.print(f"[dim]{title}[/dim]{command}", soft_wrap=True, highlight=False)
