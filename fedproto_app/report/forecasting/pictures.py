"""The pictures of a forecasting run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedproto_app.report.drawing import client_figures, draw_clients, draw_rounds
from fedproto_app.report.forecasting.divergence_picture import draw_divergence
from fedproto_app.report.forecasting.report import ForecastingReport
from fedproto_app.report.forecasting.state_pictures import state_pictures
from fedproto_app.report.runs import read_rounds

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
    columns = {"kept model": "mse", "last model": "last_mse"}
    errors = {label: client_figures(run_dir, column) for label, column in columns.items()}
    return draw_clients(errors, ForecastingReport.measure, run_dir.name)


def _draw_rounds(run_dir: Path) -> Figure:
    rounds = read_rounds(run_dir)
    lines = ForecastingReport().curves(rounds)
    return draw_rounds(rounds, lines, "MSE (standardised)", run_dir.name)
