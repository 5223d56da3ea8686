"""The pictures of a forecasting run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedproto_app.report.divergence_picture import draw_divergence
from fedproto_app.report.drawing import (
    PARAMETERS,
    client_figures,
    look,
    plot_distribution,
    plot_known,
    sent_so_far,
)
from fedproto_app.report.forecasting import ForecastingReport
from fedproto_app.report.runs import read_rounds
from fedproto_app.report.state_pictures import state_pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def forecasting_pictures(run_dir: Path) -> dict[str, Figure]:
    """clients-mse.png, rounds.png, divergence.png (FUELS), and `state_pictures`."""
    figures: dict[str, Figure] = {}
    if (run_dir / "clients.csv").exists():
        figures["clients-mse.png"] = _draw_clients(run_dir)
    if (run_dir / "rounds.jsonl").exists():
        figures["rounds.png"] = _draw_rounds(run_dir)
    if (run_dir / "divergence.npz").exists():
        figures["divergence.png"] = draw_divergence(run_dir)
    return figures | state_pictures(run_dir)


def _draw_clients(run_dir: Path) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    kept, last = client_figures(run_dir, "mse"), client_figures(run_dir, "last_mse")
    errors = {"kept model": kept, "last model": last}
    looks = {label: look(i) for i, label in enumerate(errors)}
    plot_distribution(axes, errors, looks, ForecastingReport.measure)
    axes.set_title(f"{run_dir.name}\n{len(kept)} clients")
    return figure


def _draw_rounds(run_dir: Path) -> Figure:
    from matplotlib.figure import Figure

    rounds = read_rounds(run_dir)
    numbers, sent = [record["round"] for record in rounds], sent_so_far(rounds)
    lines = {
        "training": [record["loss"].get("prediction") for record in rounds],
        "validation": [record["validation_mse"] for record in rounds],
        "test": [record["test_mse"] for record in rounds],
    }
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, places in ((left, numbers), (right, sent)):
        for number, (label, values) in enumerate(lines.items()):
            plot_known(axes, places, values, label=label, **look(number))
    left.set(xlabel="round", ylabel="MSE (standardised)")
    right.set(xlabel=PARAMETERS)
    if left.lines:
        left.legend()
    figure.suptitle(run_dir.name, fontsize=12)
    return figure
