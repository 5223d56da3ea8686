"""The command line, and how its commands print."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow to import
    from rich.console import Console


def results_console(*, highlight: bool = True, stderr: bool = False) -> Console:
    """Return a console for results on stdout, with room for wide tables in a file or a pipe.

    The environment variable COLUMNS overrides the width.
    """
    from rich.console import Console

    console = Console(highlight=highlight, stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200
    return console


def say_next(console: Console, *commands: str) -> None:
    """Print suggestions for the next commands, which can be pasted into a shell.

    console: a console that prints on stderr, so that pipes stay clean.
    """
    from rich.markup import escape

    from fedproto_app.core.endings import PROGRAM, program

    for number, command in enumerate(commands):
        title = "next: " if number == 0 else "      "
        if command.startswith(f"{PROGRAM} "):
            command = program() + command.removeprefix(PROGRAM)
        console.print(f"[dim]{title}[/dim]{escape(command)}", soft_wrap=True, highlight=False)
