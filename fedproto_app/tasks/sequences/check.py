"""The part of ``fedproto data check`` that looks at labelled sequences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.cli.findings import reasons, some, span
from fedproto_app.cli.partition_drawing import require_drawable, save_partition_picture
from fedproto_app.data.sequences.inspection import (
    Dealing,
    DealtClient,
    class_counts,
    constant_sequences,
    inspect_dealing,
)
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.errors import DataError, SettingsError
from fedproto_app.settings import DataSettings, Settings

ROWS = 20  # of the table of classes or clients, unless all are asked for
MOST_GROUPS = 8  # columns of the table of classes


def check_sequences(settings: DataSettings, every: bool, picture: Path | None) -> bool:
    """Print what the sequences are and what a run would deal to whom; whether a run could start.

    every: list all classes, or clients where targets are real numbers. picture: a PNG file for the
    mix of classes.
    """
    if picture is not None:
        require_drawable(picture)
    pool = load_sequences(settings)
    if picture is not None and not pool.classes:
        raise SettingsError(f"--picture {picture}: targets are real numbers; there are no classes")
    dealing, refusal = None, ""
    try:
        dealing = inspect_dealing(pool, settings, Settings().seed)
    except DataError as error:
        refusal = str(error)
    console = Console()
    rows = _class_rows(pool, dealing) if pool.classes else _client_rows(dealing)
    if len(rows) > 1:
        console.print(_table(rows if every else rows[: ROWS + 1]))
    if (hidden := len(rows) - ROWS - 1) > 0 and not every:
        console.print(f"... and {hidden} more (--all lists them)")
    console.print(_summary(pool, dealing, settings))
    lines = [f"{who}: {why}" for who, why in reasons(dealing.refused)] if dealing else [refusal]
    for line in lines:
        console.print(f"[red]refused[/red] {escape(line)}", highlight=False)
    if picture is not None and dealing is not None:
        _draw(dealing, pool, picture)
        console.print(f"picture: {escape(str(picture))}", highlight=False)
    return dealing is not None and len(dealing.refused) < len(dealing.clients)


def _table(rows: list[list[str]]) -> Table:
    """The first row has the titles; the first column is text, the others are numbers."""
    table = Table(box=None, header_style="bold")
    for number, title in enumerate(rows[0]):
        table.add_column(escape(title), justify="right" if number else "left")
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    return table


def _class_rows(pool: SequencePool, dealing: Dealing | None) -> list[list[str]]:
    """Each class: its sequences, and if dealt its clients and its share of each true cluster."""
    labels = pool.targets.astype(np.int64)
    classes = len(pool.classes)
    columns = [["class", *pool.classes]]
    columns.append(["sequences", *map(str, np.bincount(labels, minlength=classes))])
    if dealing is not None:
        holders = (class_counts(dealing.clients, classes) > 0).sum(axis=0)
        columns.append(["clients", *map(str, holders)])
        if len(dealing.groups) <= MOST_GROUPS:
            for name, members in dealing.groups.items():
                held = class_counts(members, classes).sum(axis=0)
                columns.append([name, *(f"{share:.0%}" for share in held / max(held.sum(), 1))])
    return [list(row) for row in zip(*columns, strict=True)]


def _client_rows(dealing: Dealing | None) -> list[list[str]]:
    rows = [["client", "group", "train", "validation", "test", "target"]]
    for one in dealing.clients if dealing else ():
        sizes = (str(len(part)) for part in (one.train, one.validation, one.test))
        target = span(one.targets) if len(one.targets) else "-"
        rows.append([one.name, one.group or "-", *sizes, target])
    return rows


def _summary(pool: SequencePool, dealing: Dealing | None, settings: DataSettings) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for title, text in _pool_lines(pool, settings):
        table.add_row(title, escape(text))
    for hint in _hints(pool, settings):
        table.add_row("", f"[yellow]{escape(hint)}[/yellow]")
    for title, text in _dealing_lines(pool, dealing, settings) if dealing else ():
        table.add_row(f"  {title}", escape(text))
    return table


def _pool_lines(pool: SequencePool, settings: DataSettings) -> list[tuple[str, str]]:
    """What the source holds, and how it is to be dealt."""
    task = "sequence-classification" if pool.classes else "sequence-regression"
    lengths = np.array([len(steps) for steps in pool.sequences])
    own = f", {pool.is_test.sum()} of them test" if pool.is_test is not None else ""
    lines = [
        ("source", f"{settings.source}, for task = {task!r}"),
        ("sequences", f"{len(lengths)}{own}"),
        ("dimensions", f"{len(pool.dimensions)}: {some(pool.dimensions)}"),
        (
            "length",
            f"{lengths.min()} shortest, {np.median(lengths):g} median, {lengths.max()} longest, "
            "in steps",
        ),
    ]
    if constant := constant_sequences(pool):
        zeros = "; scaling sequence makes zeros of them" * (
            settings.sequences.scaling == "sequence"
        )
        lines.append(("constant", f"{constant}: all steps alike, or only one{zeros}"))
    if pool.classes:
        lines.append(("classes", f"{len(pool.classes)}: {some(pool.classes)}"))
    else:
        middle = np.median(pool.targets)
        lines.append(("target", f"{span(pool.targets)}, median {middle:.4g}: real numbers"))
    if pool.clients is not None:
        names = np.unique(pool.clients).tolist()
        lines.append(("clients", f"{len(names)}: {some(names)}"))
    if groups := sorted({group for group in pool.groups.values() if group}):
        lines.append(("groups", f"{len(groups)}: {some(groups)}"))
    lines.append(("dealing", _scheme(settings)))
    return lines


def _scheme(settings: DataSettings) -> str:
    chosen = settings.clusters
    if chosen.scheme == "given":
        return "given: clients as the source has them"
    return f"dirichlet: clients {chosen.clients}, clusters {chosen.clusters}, beta {chosen.beta:g}"


def _hints(pool: SequencePool, settings: DataSettings) -> list[str]:
    """What the chosen scheme leaves unused of the source."""
    if settings.clusters.scheme == "given":
        return [] if pool.clients is not None else ["the source names no clients: one has them all"]
    unused = [
        title
        for title, there in (("clients", pool.clients), ("test part", pool.is_test))
        if there is not None
    ]
    return [f"--scheme given takes the source's own {' and '.join(unused)}"] if unused else []


def _dealing_lines(
    pool: SequencePool, dealing: Dealing, settings: DataSettings
) -> list[tuple[str, str]]:
    """Who would hold what, and what models would see of it."""
    clients = dealing.clients
    lines = [("clients", f"{len(clients)}, of them {len(clients) - len(dealing.refused)} usable")]
    if groups := dealing.groups:
        sizes = [f"{name} {len(members)}" for name, members in groups.items()]
        lines.append(("groups", f"clients in {some(sizes)}"))
    for title in ("train", "validation", "test"):
        held = np.array([len(getattr(one, title)) for one in clients])
        lines.append((title, f"{span(held)} sequence{'s' * int(held.max() != 1)} a client"))
    if pool.classes:
        distinct = (class_counts(clients, len(pool.classes)) > 0).sum(axis=1)
        lines.append(("classes", f"{span(distinct)} a client"))
    if dealing.value_range is not None:
        low, high = dealing.value_range
        lines.append(("values", f"{low:.4g} … {high:.4g}, scaling {settings.sequences.scaling}"))
    if most := settings.sequences.steps:
        longer = sum(len(steps) > most for steps in pool.sequences)
        lines.append(("steps", f"{longer} sequences resampled to {most}"))
    return lines


def _draw(dealing: Dealing, pool: SequencePool, picture: Path) -> None:
    """The train part of every client, true clusters together."""
    counts = {
        f"{one.name} ({one.group})" if one.group else one.name: np.bincount(
            one.train.astype(np.int64), minlength=len(pool.classes)
        )[None]
        for one in sorted(dealing.clients, key=_group_and_name)
    }
    save_partition_picture(picture, counts, pool.classes, "sequence")


def _group_and_name(client: DealtClient) -> tuple[str, str]:
    return client.group, client.name
