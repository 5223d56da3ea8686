"""What a page shows of runs on images: accuracy by class and by stage, who holds which images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedproto_app.report.images.pictures import read_partition, read_table, stage_of
from fedproto_app.report.page.charts import Axis, DotRow, Dots, Line, Lines, Matrix, Section
from fedproto_app.report.runs import read_rounds

_NAMED_CLASSES = 40  # more rows than that are lines
_MOST_METHODS = 6
_PERCENT = "test accuracy"
_WHOLE = (0.0, 1.0)


def classification_sections(runs: Mapping[str, Path], first: str) -> list[Section]:
    """Each where its artefacts are there. Own models are told, or where no run has any, averaged
    ones."""
    return [*_classes(runs, first), *_stages(first, runs[first]), *partition_section(runs[first])]


def _classes(runs: Mapping[str, Path], first: str) -> list[Section]:
    ordered = {first: runs[first], **runs}
    tables = {
        label: read_table(at / "classes.csv")
        for label, at in list(ordered.items())[:_MOST_METHODS]
        if (at / "classes.csv").exists()
    }
    if not tables:
        return []
    own = any(row["accuracy_local"] for rows in tables.values() for row in rows)
    column = "accuracy_local" if own else "accuracy_global"
    values = {
        label: {row["class"]: float(row[column] or "nan") for row in rows}
        for label, rows in tables.items()
    }
    rows = next(iter(tables.values()))
    known = all(row["train_samples"] for row in rows)
    rows = sorted(rows, key=lambda row: -int(row["train_samples"])) if known else rows
    classes = [row["class"] for row in rows]
    by_label = {
        label: np.array([its.get(name, np.nan) for name in classes])
        for label, its in values.items()
        if np.isfinite(list(its.values())).any()
    }
    if not by_label:
        return []
    order = "by falling number of training images" if known else "in the order of the labels"
    label, accuracies = next(iter(by_label.items()))
    best, worst = int(np.nanargmax(accuracies)), int(np.nanargmin(accuracies))
    text = (
        f"Accuracy on each of {len(classes)} classes, {order}. {label}: most on "
        f"{classes[best]} ({accuracies[best]:.0%}), least on {classes[worst]} "
        f"({accuracies[worst]:.0%})."
    )
    about = (
        f"{'Own' if own else 'Averaged'} models: right answers of all clients by their test images "
        f"of a class, {order}."
    )
    if len(classes) > _NAMED_CLASSES:
        places = np.arange(1.0, len(classes) + 1)
        lines = [Line(one, places, its, look=n) for n, (one, its) in enumerate(by_label.items())]
        x = Axis(f"class, {order}", whole=True)
        y = Axis(_PERCENT, percent=True, limits=_WHOLE)
        return [Section("Accuracy by class", about, [Lines("By class", text, x, y, lines, True)])]
    dots = [
        DotRow(_class_label(row), np.array([its[n] for its in by_label.values()]), list(by_label))
        for n, row in enumerate(rows)
    ]
    x = Axis(_PERCENT, percent=True, limits=_WHOLE)
    return [
        Section("Accuracy by class", about, [Dots("By class", text, x, dots, list(by_label), True)])
    ]


def _class_label(row: Mapping[str, str]) -> str:
    return f"{row['class']} ({row['train_samples']})" if row["train_samples"] else row["class"]


def _stages(label: str, folder: Path) -> list[Section]:
    """How well a run still knows each stage's images, one line a stage."""
    rounds = read_rounds(folder) if (folder / "rounds.jsonl").exists() else []
    models = ("local", "global")
    model = next((one for one in models if any(line[f"stages_{one}"] for line in rounds)), None)
    count = max((len(line[f"stages_{model}"] or []) for line in rounds), default=0) if model else 0
    if count < 2:
        return []
    numbers = np.array([float(line["round"]) for line in rounds])
    lines = []
    for stage in range(count):
        values = [stage_of(line[f"stages_{model}"], stage) for line in rounds]
        y = np.array([np.nan if value is None else value for value in values])
        lines.append(Line(f"stage {stage + 1}", numbers, y, look=stage))
    last = [float(line.y[-1]) for line in lines]
    text = (
        f"Line chart of the accuracy on each of {count} stages' test images. At the end: "
        + ", ".join(f"stage {n}: {value:.0%}" for n, value in enumerate(last, start=1))
    )
    x = Axis("round", whole=True)
    chart = Lines(label, text, x, Axis(_PERCENT, percent=True), lines, wide=True)
    about = "Images come in stages. A line that falls after its stage is over shows forgetting."
    return [Section("Accuracy on what came earlier", about, [chart])]


def partition_section(folder: Path) -> list[Section]:
    """Clients × classes, of a run that tells who holds what; all stages together."""
    if not (folder / "partition.csv").exists():
        return []
    counts, classes = read_partition(folder)
    cells = np.array([table.sum(axis=0) for table in counts.values()], dtype=np.float64)
    if all(name.isdigit() for name in classes):
        order = np.argsort([int(name) for name in classes])
        classes, cells = [classes[place] for place in order], cells[:, order]
    held = (cells > 0).sum(axis=1)
    text = (
        f"Heat map of the training samples of {len(cells)} clients by {len(classes)} classes. A "
        f"client holds between {held.min()} and {held.max()} classes, and "
        f"{cells.sum(axis=1).min():.0f} to {cells.sum(axis=1).max():.0f} samples."
    )
    cells[cells == 0] = np.nan
    chart = Matrix(
        f"{len(cells)} clients", text, cells, "training samples (grey: none)",
        rows=list(counts), columns=classes, column_title="class",
    )  # fmt: skip
    about = "Each row is a client: the more unlike the rows, the harder it is to share one model."
    return [Section("Who holds what", about, [chart])]
