"""Runs in this process."""

from __future__ import annotations

from pathlib import Path

from fedproto_app.engine.local import LocalGrid
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.server_app import conduct
from fedproto_app.settings import Settings


def conducted(grid: LocalGrid, settings: Settings) -> Path:
    """Run on this grid to the end, and return the run's folder."""
    with RunFolder(settings) as run:
        conduct(grid, settings, run)
        return run.path
