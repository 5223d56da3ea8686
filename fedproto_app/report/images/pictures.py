"""The pictures of a classification run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.report.drawing import (
    client_figures,
    draw_clients,
    draw_rounds,
    is_wide,
    look,
    mark_whole,
    plot_known,
)
from fedproto_app.report.images.report import THIRDS, ClassificationReport
from fedproto_app.report.runs import read_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODELS = {"own model": "local", "averaged model": "global"}
_PERCENT = "test accuracy (%)"
_SCALE = 0.01  # of percent
_NAMED_CLASSES = 40  # more names than that cannot be read
_LEGEND_STAGES = 12  # more lines than that are told by their colours' order alone


def classification_pictures(run_dir: Path) -> dict[str, Figure]:
    """clients-accuracy.png, rounds.png, stages.png, classes.png, partition.png."""
    figures: dict[str, Figure] = {}
    if (run_dir / "clients.csv").exists():
        figures["clients-accuracy.png"] = _draw_clients(run_dir)
    if (run_dir / "rounds.jsonl").exists():
        rounds = read_rounds(run_dir)
        figures["rounds.png"] = _draw_rounds(rounds, run_dir.name)
        if any(len(stages) > 1 for stages in known_stages(rounds, "local")):
            figures["stages.png"] = _draw_stages(rounds, run_dir.name)
    if (run_dir / "classes.csv").exists():
        rows = read_table(run_dir / "classes.csv")
        if any(row["accuracy_local"] for row in rows):
            figures["classes.png"] = _draw_classes(rows, run_dir.name)
    if (run_dir / "partition.csv").exists():
        figures["partition.png"] = _draw_partition(run_dir)
    return figures


def _draw_clients(run_dir: Path) -> Figure:
    columns = {**_MODELS, "kept model": "kept"}
    values = {
        label: client_figures(run_dir, f"accuracy_{model}", _SCALE)
        for label, model in columns.items()
    }
    return draw_clients(values, ClassificationReport.measure, run_dir.name)


def _draw_rounds(rounds: list[dict[str, Any]], name: str) -> Figure:
    lines = ClassificationReport().curves(rounds)
    return draw_rounds(rounds, lines, "accuracy (%)", name, _SCALE)


def known_stages(rounds: list[dict[str, Any]], model: str) -> list[list[float | None]]:
    """[M] accuracies of each round that has some."""
    return [record[f"stages_{model}"] for record in rounds if record[f"stages_{model}"]]


def _draw_stages(rounds: list[dict[str, Any]], name: str) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    models = {title: model for title, model in _MODELS.items() if known_stages(rounds, model)}
    figure = Figure(figsize=(1.5 + 4.8 * len(models), 4.2), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
    count = max(len(stages) for model in models.values() for stages in known_stages(rounds, model))
    colours = colormaps["viridis"](np.linspace(0, 0.9, count))  # stages have an order
    numbers = [record["round"] for record in rounds]
    for axes, (title, model) in zip(panels, models.items(), strict=True):
        for stage in range(count):
            values = [stage_of(record[f"stages_{model}"], stage) for record in rounds]
            looks = {**look(stage), "color": colours[stage], "label": f"stage {stage + 1}"}
            plot_known(axes, numbers, values, _SCALE, **looks)
        axes.set(xlabel="round", title=title)
        mark_whole(axes)
    panels[0].set_ylabel(_PERCENT)
    if count <= _LEGEND_STAGES:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(f"{name}: accuracy on each stage's test images", fontsize=12)
    return figure


def stage_of(stages: list[float | None] | None, stage: int) -> float | None:
    return stages[stage] if stages and stage < len(stages) else None


def _draw_classes(rows: list[dict[str, str]], name: str) -> Figure:
    from matplotlib.figure import Figure

    known = all(row["train_samples"] for row in rows)
    if known:  # as the thirds are made: by falling count, then by label
        rows = sorted(rows, key=lambda row: -int(row["train_samples"]))
    places = np.arange(len(rows))
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots()
    if known:
        _plot_train_counts(axes, np.array([int(row["train_samples"]) for row in rows]))
        _mark_thirds(axes, [row["third"] for row in rows])
    few = len(rows) <= _NAMED_CLASSES
    for number, (label, model) in enumerate(_MODELS.items()):
        cells = [row[f"accuracy_{model}"] for row in rows]
        values = [float(cell) / _SCALE if cell else np.nan for cell in cells]
        if not np.isnan(values).all():
            marker = "os"[number] if few else None
            axes.plot(places, values, label=label, marker=marker, **look(number))
    if few:
        long = max(len(row["class"]) for row in rows) > 4
        axes.set_xticks(places, [row["class"] for row in rows], rotation=45 if long else 0)
    axes.set(ylabel=_PERCENT, ylim=(0, 105), xlim=(-0.7, len(rows) - 0.3))
    axes.set_xlabel("class, by falling number of training samples" if known else "class")
    figure.legend(loc="outside lower center", ncols=3)
    axes.set_title(f"{name}: accuracy by class", pad=22)
    return figure


def _plot_train_counts(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Bars behind the accuracies, on an axis of their own at the right."""
    behind = axes.twinx()
    behind.bar(np.arange(len(counts)), counts, color="0.85", width=0.9, label="training samples")
    behind.set_ylabel("training samples, all clients and stages")
    behind.grid(False)
    behind.spines["right"].set_visible(True)
    if is_wide(counts):
        behind.set_yscale("log")
    axes.set_zorder(behind.get_zorder() + 1)
    axes.patch.set_visible(False)  # else the bars would be behind its background


def _mark_thirds(axes: Axes, names: list[str]) -> None:
    """Borders between classes of many, medium and few training samples."""
    start = 0
    for third in THIRDS:
        end = start + names.count(third)
        if end > start:
            place, above = (start + end - 1) / 2, axes.get_xaxis_transform()
            axes.text(place, 1.02, third, transform=above, ha="center", va="bottom")
        if 0 < start < end:
            axes.axvline(start - 0.5, color="0.4", linewidth=1)
        start = end


def _draw_partition(run_dir: Path) -> Figure:
    from fedproto_app.report.check.partition_picture import draw_partition_picture

    return draw_partition_picture(*read_partition(run_dir))


def read_partition(run_dir: Path) -> tuple[dict[str, NDArray[np.int64]], list[str]]:
    """Of ``partition.csv`` each client's train samples [M, C] by stage and class, and the C
    classes."""
    rows = read_table(run_dir / "partition.csv")
    classes = list(dict.fromkeys(row["class"] for row in rows))
    if (run_dir / "classes.csv").exists():  # all of them, in the order of the labels
        classes = [row["class"] for row in read_table(run_dir / "classes.csv")]
    stages: dict[str, int] = {}
    for row in rows:
        stages[row["client"]] = max(stages.get(row["client"], 0), int(row["stage"]))
    counts = {
        client: np.zeros((number, len(classes)), dtype=np.int64)
        for client, number in stages.items()
    }
    column = {name: number for number, name in enumerate(classes)}
    for row in rows:
        counts[row["client"]][int(row["stage"]) - 1, column[row["class"]]] = row["train_samples"]
    return counts, classes


def read_table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
