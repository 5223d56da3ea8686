"""The pictures of a run on labelled sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedproto_app.report.drawing import client_figures, draw_clients, draw_rounds
from fedproto_app.report.runs import read_rounds
from fedproto_app.report.sequences.cluster_pictures import cluster_pictures
from fedproto_app.report.sequences.embedding_picture import embedding_picture
from fedproto_app.report.sequences.report import SequenceReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODELS = {"kept model": "_kept", "model of the last round": "", "client's own head": "_local"}


def sequence_pictures(run_dir: Path, report: SequenceReport) -> dict[str, Figure]:
    """clients-accuracy.png or clients-rmse.png, rounds.png, `cluster_pictures`, embeddings.png."""
    figures: dict[str, Figure] = {}
    if (run_dir / "clients.csv").exists():
        figures[f"clients-{report.metric}.png"] = _draw_clients(run_dir, report)
    if (run_dir / "rounds.jsonl").exists():
        figures["rounds.png"] = _draw_rounds(run_dir, report)
    return figures | cluster_pictures(run_dir) | embedding_picture(run_dir)


def _draw_clients(run_dir: Path, report: SequenceReport) -> Figure:
    values = {
        label: client_figures(run_dir, report.metric + model, report.measure.scale)
        for label, model in _MODELS.items()
    }
    return draw_clients(values, report.measure, run_dir.name)


def _draw_rounds(run_dir: Path, report: SequenceReport) -> Figure:
    rounds = read_rounds(run_dir)
    axis = report.measure.axis.removeprefix("test ")
    return draw_rounds(rounds, report.curves(rounds), axis, run_dir.name, report.measure.scale)
