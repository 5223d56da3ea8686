"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedproto_app.experiments.run_settings import changed_settings

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
]
ReadingChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change how the file is read, such as data.missing=zero; may be repeated.",
    ),
]
Horizon = Annotated[int | None, typer.Option(help="Steps ahead to forecast. Default: one period.")]
Period = Annotated[
    int | None,
    typer.Option(
        help="Steps per period. Default, if the file has times: a day, but a week for daily data "
        "and a year for weekly data. Otherwise it is estimated from the series."
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(help="Divide the images or sequences over this number of simulated clients."),
]
Source = Annotated[
    str,
    typer.Option(
        help="How to read the file, such as long-csv, or your own function as "
        "package.module:factory. Default: recognised from the file."
    ),
]
ClientsFrom = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column that names the clients.")
]
KnownColumns = Annotated[
    str | None,
    typer.Option(
        "--known",
        metavar="COLUMNS",
        help="Columns that are known in advance, such as a weather forecast or a price. Default: "
        "those that continue after the last value; --known '' uses none.",
    ),
]
Covariates = Annotated[
    str, typer.Option(metavar="FILE", help="A separate table of columns known in advance.")
]
Holidays = Annotated[
    str, typer.Option(metavar="REGION", help="Use the holidays of this region: DE or DE-BY.")
]
Target = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column to forecast, if there are several.")
]

TrainedRun = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]", help="The folder of a simulation, with the state of all its nodes."
    ),
]
NodeStateFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The folder of one node's state, instead of a run: runs/NAME/state/NODE after a "
        "simulation, STATE-DIR/RUN-TOKEN/NODE at a deployed node. A folder above it will do "
        "if it has no other node.",
    ),
]


def reading_changes(
    changes: Sequence[str] | None,
    source: str,
    known_columns: str | None,
    covariates: str,
    holidays: str,
) -> dict[str, object]:
    """Return the settings of ``--set`` and of the reading options below, with dotted keys."""
    options = {"source": source, "covariates": covariates, "holidays": holidays}
    chosen = {f"data.{key}": value for key, value in options.items() if value}
    if known_columns is not None:
        chosen["data.known"] = known_columns
    return changed_settings(None, changes or ()) | chosen
