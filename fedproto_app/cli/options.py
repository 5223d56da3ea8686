"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting over all others; repeatable."),
]
ReadingChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting on how the file is read, such as data.missing=zero; repeatable.",
    ),
]
ClientsFrom = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column that names the clients.")
]
Target = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column to forecast, where there are several.")
]
