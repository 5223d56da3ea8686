"""Runs in this process, also on nodes whose replies a benchmark changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import UserConfig

from benchmarks.parts import output_in
from fedproto_app.core.errors import FederationError
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.run_files import CsvTable
from fedproto_app.report.runs import read_clients
from fedproto_app.server_app import conduct
from fedproto_app.settings import Settings, settings_from

MakeGrid = Callable[[Settings, Sequence[UserConfig]], LocalGrid]


def conducted(grid: LocalGrid, settings: Settings) -> Path:
    """Run on this grid to the end, and return the run's folder."""
    with RunFolder(settings) as run:
        conduct(grid, run)
        return run.path


def clients_of(
    changes: Mapping[str, Any], nodes: int, make_grid: MakeGrid = LocalGrid
) -> CsvTable | None:
    """Return the clients' figures of a run with these settings, None if the run stops."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        settings = settings_from({**changes, **AT_ONCE, "keep": "last", **output_in(folder)})
        grid = make_grid(settings, nodes_sharing(settings.data, nodes, folder / "state"))
        try:
            return read_clients(conducted(grid, settings))
        except FederationError:
            return None
