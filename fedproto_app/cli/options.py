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
Known = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS",
        help="Columns that are known in advance, such as a weather forecast or a price. Default: "
        "those that go on after the last value; --known '' uses none.",
    ),
]
Covariates = Annotated[
    str, typer.Option(metavar="FILE", help="A table of its own with columns known in advance.")
]
Holidays = Annotated[
    str, typer.Option(metavar="REGION", help="Whose holidays are known in advance: DE, DE-BY.")
]
Target = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column to forecast, where there are several.")
]
