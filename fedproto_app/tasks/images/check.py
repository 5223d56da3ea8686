"""The part of ``fedproto data check`` that looks at images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.cli.findings import NAMED, reasons, some, span
from fedproto_app.cli.partition_drawing import require_drawable, save_partition_picture
from fedproto_app.data.images.inspection import (
    PartitionInspection,
    PoolInspection,
    inspect_partition,
    inspect_pool,
)
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.images.sources import load_pool
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.images.report import thirds

ROWS = 20  # of the table of classes, unless all are asked for


def check_images(settings: DataSettings, every: bool, picture: Path | None) -> bool:
    """Print what the images are and what a run would deal to whom; whether a run could start.

    every: list all classes. picture: a PNG file for the partition.
    """
    if picture is not None:
        require_drawable(picture)
    pool = load_pool(settings)
    found = inspect_pool(pool)
    partition, refusal = None, ""
    try:
        partition = inspect_partition(pool, settings, Settings().seed)
    except DataError as error:
        refusal = str(error)
    console = Console()
    console.print(_class_table(pool, found, partition, len(pool.classes) if every else ROWS))
    if (hidden := len(pool.classes) - ROWS) > 0 and not every:
        console.print(f"... and {hidden} more (--all lists them)")
    console.print(_summary(pool, found, partition, settings))
    for line in _refusals(found, partition, refusal):
        console.print(f"[red]refused[/red] {escape(line)}", highlight=False)
    if picture is not None and partition is not None:
        save_partition_picture(picture, partition.train, pool.classes, "image")
        console.print(f"picture: {escape(str(picture))}", highlight=False)
    usable = partition is not None and len(partition.refused) < len(partition.train)
    return usable and not found.corrupt


def _class_table(
    pool: ImagePool, found: PoolInspection, partition: PartitionInspection | None, rows: int
) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("class")
    for title in ("train", "test", *(("dealt", "clients") if partition else ())):
        table.add_column(title, justify="right")
    columns = [found.train, found.test]
    if partition is not None:
        columns += [partition.dealt, partition.holders]
    for name, *counts in list(zip(pool.classes, *columns, strict=True))[:rows]:
        table.add_row(escape(name), *map(str, counts))
    return table


def _summary(
    pool: ImagePool,
    found: PoolInspection,
    partition: PartitionInspection | None,
    settings: DataSettings,
) -> Table:
    channels, height, width = pool.shape
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("source", escape(f"{settings.source}, for task = 'classification'"))
    table.add_row("classes", str(len(pool.classes)))
    table.add_row(
        "images",
        f"{found.train.sum()} train, {found.test.sum()} test; {width} × {height}, "
        f"{'colour' if channels == 3 else 'grey'}",
    )
    if found.clients is not None:
        table.add_row("clients", f"{len(found.clients)}: {escape(some(found.clients))}")
    if found.stages is not None:
        table.add_row("stages", str(found.stages))
    decoded = f"{found.decoded}" + (
        f" of {found.images}, drawn at random" if found.decoded < found.images else ""
    )
    table.add_row("decoded", f"{decoded}; {len(found.corrupt)} corrupt")
    table.add_row("partition", escape(_scheme(settings)))
    if found.clients is not None and settings.partition.scheme != "given":
        table.add_row("", "[yellow]--scheme given takes the source's own clients[/yellow]")
    if partition is not None:
        _add_partition(table, pool, partition)
    return table


def _scheme(settings: DataSettings) -> str:
    chosen = settings.partition
    if chosen.scheme == "given":
        return "given: clients and stages as the source has them"
    classes = f"classes a stage {chosen.classes}, " if chosen.scheme == "long-tail" else ""
    return (
        f"{chosen.scheme}: clients {chosen.clients}, stages {chosen.stages}, {classes}"
        f"imbalance factor {chosen.imbalance_factor:g}"
    )


def _add_partition(table: Table, pool: ImagePool, partition: PartitionInspection) -> None:
    for title, counts in (
        ("train", partition.train),
        ("validation", partition.validation),
        ("test", partition.test),
    ):
        images = np.concatenate([table.sum(axis=1) for table in counts.values()])
        table.add_row(f"  {title}", f"{span(images)} images a client and stage")
    distinct = partition.distinct_classes
    table.add_row("  classes", f"{span(distinct)} a client over its stages")
    dealt, holders = partition.dealt, partition.holders
    tail = [f"{pool.classes[label]}: {holders[label]}" for label in thirds(dealt)[2][::-1]]
    if tail:
        table.add_row("  tail", escape(f"clients with the rarest classes: {some(tail)}"))


def _refusals(
    found: PoolInspection, partition: PartitionInspection | None, refusal: str
) -> list[str]:
    """What a run would refuse, a line each."""
    lines = [f"image {name}: {reason}" for name, reason in list(found.corrupt.items())[:NAMED]]
    if found.corrupt:
        lines.append(
            f"{len(found.corrupt)} corrupt of {found.decoded} decoded; "
            "data.corrupt-images = 'skip' leaves them out"
        )
    if partition is None:
        lines.append(refusal)
        return lines
    return lines + [f"{clients}: {reason}" for clients, reason in reasons(partition.refused)]
