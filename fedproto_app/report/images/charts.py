"""Make the charts of runs on images: accuracy by class and by stage, and the clients' classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import (
    Axis,
    Chart,
    DotRow,
    Dots,
    Line,
    Lines,
    Matrix,
    Section,
    is_wide,
)
from fedproto_app.report.run_files import CsvTable, read_table
from fedproto_app.report.runs import read_rounds

_NAMED_CLASSES = 40  # rows of dots. More classes are drawn as lines
_MOST_METHODS = 6
_MODELS = {"own model": "local", "averaged model": "global"}
_ACCURACY = Axis("test accuracy", percent=True, limits=(0.0, 1.0))


def sections(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Return the sections that the runs' artefacts allow. See `TaskReport.sections`."""
    possible = [
        Section(
            "Accuracy by class",
            "The share of each class's test images, over all clients, that are classified "
            "correctly. Several methods are compared by the clients' own models or, if no method "
            "has them, by the averaged models.",
            class_charts({first: runs[first], **runs}),
        ),
        Section(
            "Accuracy on what came earlier",
            f"{first}: images arrive in stages, and each stage has a line. A line that falls after "
            "its stage has ended shows forgetting.",
            stage_charts(runs[first]),
        ),
        *partition_section(runs[first]),
    ]
    return [section for section in possible if section.charts]


def pictures(run_dir: Path) -> dict[str, Sequence[Chart]]:
    """Return the charts of ``stages.png``, ``classes.png`` and ``partition.png``."""
    partition = partition_section(run_dir)
    charts: dict[str, Sequence[Chart]] = {
        "stages.png": stage_charts(run_dir),
        "classes.png": class_charts({run_dir.name: run_dir}),
        "partition.png": partition[0].charts if partition else (),
    }
    return {name: drawn for name, drawn in charts.items() if drawn}


def class_charts(runs: Mapping[str, Path]) -> list[Chart]:
    """Return charts of the accuracy by class. They compare the runs, or a single run's models."""
    tables = {
        label: read_table(folder / "classes.csv", ("class",))
        for label, folder in list(runs.items())[:_MOST_METHODS]
        if (folder / "classes.csv").exists()
    }
    if not tables:
        return []
    first = next(iter(tables.values()))
    classes, counts = first.texts["class"], first["train_samples"]
    has_counts = bool(np.isfinite(counts).all())
    order = np.arange(len(classes))
    if has_counts:  # ordered as for the thirds: by falling count, then by label
        order = np.argsort(-counts, kind="stable")
    columns = {label: (first, f"accuracy_{model}") for label, model in _MODELS.items()}
    if len(tables) > 1:
        has_own = any(table.finite("accuracy_local") for table in tables.values())
        column = "accuracy_local" if has_own else "accuracy_global"
        columns = {label: (table, column) for label, table in tables.items()}
    by_label = {}
    for label, (table, column) in columns.items():
        accuracies = dict(zip(table.texts["class"], table[column], strict=True))
        values = np.array([accuracies.get(classes[place], np.nan) for place in order])
        if np.isfinite(values).any():
            by_label[label] = values
    if not by_label:
        return []
    sorting = "by falling number of training images" if has_counts else "in the order of the labels"
    label, values = next(iter(by_label.items()))
    best, worst = int(np.nanargmax(values)), int(np.nanargmin(values))
    text = (
        f"Accuracy on each of {len(classes)} classes, {sorting}. {label}: most on "
        f"{classes[order[best]]} ({values[best]:.0%}), least on {classes[order[worst]]} "
        f"({values[worst]:.0%})."
    )
    title = f"By class, {sorting}"
    if len(classes) <= _NAMED_CLASSES:
        names = _class_labels(first)
        dots = [
            DotRow(names[place], values, [*by_label])
            for place, values in zip(order, np.array([*by_label.values()]).T, strict=True)
        ]
        return [Dots(title, text, _ACCURACY, dots, [*by_label])]
    places, x = np.arange(1.0, len(classes) + 1), Axis(f"class, {sorting}", integers=True)
    lines = [Line(label, places, values, n) for n, (label, values) in enumerate(by_label.items())]
    charts: list[Chart] = [Lines(title, text, x, _ACCURACY, lines, wide=True)]
    if has_counts:
        falling = counts[order]
        y = Axis("training images", log=is_wide(falling))
        text = f"Training images of each class: {falling[-1]:.0f} to {falling[0]:.0f}."
        line = Line("training images", places, falling)
        charts.append(Lines("Training images by class", text, x, y, [line], wide=True))
    return charts


def _class_labels(table: CsvTable) -> list[str]:
    """Return a label for each class: its name, its number of training images, and its third."""
    return [
        name if isnan(count) else f"{name} ({count:.0f}{', ' * bool(third)}{third})"
        for name, count, third in zip(
            table.texts["class"], table["train_samples"], table.texts["third"], strict=True
        )
    ]


def stage_charts(run_dir: Path) -> list[Lines]:
    """Return a chart for each kind of model: its accuracy on each stage's images, by round."""
    rounds = read_rounds(run_dir)
    numbers = np.array([float(record["round"]) for record in rounds])
    charts = []
    for title, model in _MODELS.items():
        stages: list[list[float | None]] = [record[f"stages_{model}"] or [] for record in rounds]
        count = max(map(len, stages), default=0)
        table = np.full((len(rounds), count), np.nan)
        for row, accuracies in zip(table, stages, strict=True):
            row[: len(accuracies)] = [np.nan if value is None else value for value in accuracies]
        if count < 2:
            continue
        lines = [
            Line(f"stage {stage}", numbers, values, stage - 1)
            for stage, values in enumerate(table.T, start=1)
        ]
        ends = (f"stage {stage}: {value:.0%}" for stage, value in enumerate(table[-1], start=1))
        text = f"Line chart of the accuracy on each of {count} stages' test images. At the end: "
        x = Axis("round", integers=True)
        charts.append(Lines(title, text + ", ".join(ends), x, _ACCURACY, lines))
    return charts


def partition_section(run_dir: Path) -> list[Section]:
    """Return the section on the clients' classes, if there is a ``partition.csv``."""
    if not (run_dir / "partition.csv").exists():
        return []
    about = "Each row is a client. The more the rows differ, the harder it is to share one model."
    return [
        Section(
            "Training samples by client and class",
            about,
            partition_charts(*read_partition(run_dir)),
        )
    ]


def partition_charts(
    counts: Mapping[str, NDArray[np.int64]], classes: Sequence[str]
) -> list[Matrix]:
    """Return a matrix of clients × classes for each stage, all on one scale.

    counts: each client's train samples [M, C], with its own number of stages M. classes: [C].
    """
    order = list(range(len(classes)))
    if all(name.isdigit() for name in classes):
        order.sort(key=lambda place: int(classes[place]))
    stages = max(len(table) for table in counts.values())
    cells = np.zeros((stages, len(counts), len(classes)))
    for row, table in enumerate(counts.values()):
        cells[: len(table), row] = table[:, order]
    totals = cells.sum(axis=0)
    classes_held = (totals > 0).sum(axis=1)
    text = (
        f"Heat map of the training samples of {len(counts)} clients by {len(classes)} classes. A "
        f"client holds between {classes_held.min()} and {classes_held.max()} classes, and "
        f"{totals.sum(axis=1).min():.0f} to {totals.sum(axis=1).max():.0f} samples."
    )
    log = is_wide(cells)
    cells[cells == 0] = np.nan
    return [
        Matrix(
            f"{len(counts)} clients" + (f", stage {stage}" if stages > 1 else ""), text, table,
            "training samples (grey: none)", rows=list(counts),
            columns=[classes[place] for place in order], column_title="class", log=log,
            span=(float(np.nanmin(cells)), float(np.nanmax(cells))),
        )
        for stage, table in enumerate(cells, start=1)
    ]  # fmt: skip


def read_partition(run_dir: Path) -> tuple[dict[str, NDArray[np.int64]], list[str]]:
    """Return each client's train samples [M, C] by stage and class, and the C classes.

    Both are read from ``partition.csv``. If there is a ``classes.csv``, its classes are returned,
    in its order.
    """
    table = read_table(run_dir / "partition.csv", ("client", "class"))
    classes = list(dict.fromkeys(table.texts["class"]))
    if (run_dir / "classes.csv").exists():  # all classes, in the order of the labels
        classes = read_table(run_dir / "classes.csv", ("class",)).texts["class"]
    samples = [n.astype(np.int64).tolist() for n in (table["stage"], table["train_samples"])]
    rows = list(zip(table.clients, table.texts["class"], *samples, strict=True))
    stages: dict[str, int] = {}
    for client, _, stage, _ in rows:
        stages[client] = max(stages.get(client, 0), stage)
    counts = {
        client: np.zeros((number, len(classes)), dtype=np.int64)
        for client, number in stages.items()
    }
    column = {name: number for number, name in enumerate(classes)}
    for client, name, stage, count in rows:
        counts[client][stage - 1, column[name]] = count
    return counts, classes
