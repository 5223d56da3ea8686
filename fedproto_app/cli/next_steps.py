"""What to try next, in a line or two on stderr at the end of a command."""

from __future__ import annotations

from rich.console import Console


def say_next(console: Console, *commands: str) -> None:
    """Print commands that go on from here. console: of stderr, so that pipes stay clean."""
    for number, command in enumerate(commands):
        title = "next: " if number == 0 else "      "
        console.print(f"[dim]{title}[/dim]{command}", soft_wrap=True, highlight=False)
