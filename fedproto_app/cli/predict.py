"""``fedproto predict``: classify new images or sequences with a client's kept model."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.cli.forecast import require_writable, write_output
from fedproto_app.cli.options import NodeStateFolder, TrainedRun
from fedproto_app.core.errors import FedProtoError


def predict(
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The new samples: a file, or a folder or zip archive whose files are samples.",
        ),
    ],
    run: TrainedRun = None,
    state: NodeStateFolder = None,
    client: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose model predicts. Needed if there are several."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write the table into this file instead of stdout."),
    ] = None,
) -> None:
    """Classify new images or sequences with a client's kept model.

    Images are JPEG, PNG or BMP files at any depth of a folder or archive, or
    the array x of an .npz file. They have the size of the run's images, unless
    it scales them or has a pretrained encoder. Sequences are CSV files
    with a row per step, or an .npz file with x, or with points and offsets.
    Columns of CSV files are found by the names that they had in training.
    Recordings are cut into windows, so that the last row ends a window.
    No labels and none of the training data are needed. Sequences are scaled
    as in training.

    The table has a row per sample: its file or number, the predicted class,
    and each class's probability. If the run predicts numbers, it has y_hat
    instead. Only the order of probabilities means something for Fed-REACT,
    IFCA and FLSC. Exit code: 0 written, 2 nothing written.

    [bold]Examples[/bold]

      fedproto predict runs/my-run --client north --data new-scans --out classes.csv

      fedproto predict --state /state --data sequences.npz
    """
    from fedproto_app.serving import Predictor, states_of  # torch is slow to import

    states = states_of(run, state)
    if out is not None:
        require_writable("--out", out, str(data))
    if not data.exists():
        raise FedProtoError(f"--data {data}: no such file or folder")
    predictor = Predictor(states, client)
    samples, values = predictor.read(data)
    table = predictor(values)
    best = table.argmax(axis=1)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["sample", *["class"] * predictor.has_classes, *predictor.columns])
    for name, place, row in zip(samples, best, table, strict=True):
        cells = [predictor.columns[place], *(f"{share:.6f}" for share in row)]
        rows.writerow([name, *(cells if predictor.has_classes else [f"{row[0]:.10g}"])])
    if out is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        # A file's name may be no UTF-8.
        write_output("--out", out, text.getvalue().encode(errors="surrogateescape"))
    console = Console(stderr=True, highlight=False)
    if predictor.has_classes:
        console.print(_summary(Counter(predictor.columns[place] for place in best)))
    if out is not None:
        console.print(f"written: {escape(str(out))}", soft_wrap=True)


def _summary(counts: Counter[str]) -> Table:
    """Return a table of how many samples each class was predicted for."""
    table = Table(box=None, header_style="bold")
    table.add_column("class")
    table.add_column("samples", justify="right")
    for name, count in counts.most_common():
        table.add_row(escape(name), str(count))
    return table
