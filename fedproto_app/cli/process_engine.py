"""``fedproto run`` with the engine in the process: the default."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from fedproto_app.cli.run_checks import check_data, check_encoder, users_modules
from fedproto_app.engine.pool import WorkerPool, cores
from fedproto_app.report.progress import Progress
from fedproto_app.report.reports import report_for
from fedproto_app.settings import Settings


def simulate_here(
    settings: Settings, nodes: int, workers: int | None, console: Console, verbose: bool
) -> Path:
    """Run in this process and workers beside it; returns the run's folder.

    workers: None for as many as there are cores and work for. Raises `FedProtoError` for what
    stops the run.
    """
    import_path = users_modules(settings)
    check_encoder(settings)
    shown = report_for(settings.task).progress
    with (
        Progress(console, settings.all_rounds, shown) as progress,
        tempfile.TemporaryDirectory(prefix="fedproto-", ignore_cleanup_errors=True) as home,
    ):
        progress.stage("checking the data")
        log = Path(home) / "run.log"
        count = workers or _most_workers(settings)
        with WorkerPool(count, log, import_path) as pool:
            clients = check_data(settings, import_path)
            progress.stage("starting the nodes")
            # torch and Flower are slow to import; the workers do the same meanwhile
            from fedproto_app.engine.simulation import flowers_log, simulate

            used = workers or min(count, _useful_workers(settings, nodes, clients))
            folder = Path(settings.output.dir) / settings.output.name
            try:
                with flowers_log(log, progress.say if verbose else None):
                    simulate(settings, nodes, pool, used, progress.show)
            finally:
                keep_log(log, folder)
    return folder


def draw_after(folder: Path, console: Console) -> None:
    """Draw the run's pictures, when its table is there already."""
    from fedproto_app.server_app import draw_pictures

    with console.status("drawing pictures …"):
        draw_pictures(folder)


def keep_log(log: Path, artefacts: Path) -> None:
    """Add the log to that of the run, which may have one of before it was resumed."""
    if log.exists() and artefacts.exists():
        with log.open("rb") as source, (artefacts / "flower.log").open("ab") as kept:
            shutil.copyfileobj(source, kept)


def _most_workers(settings: Settings) -> int:
    """One for each core; where nodes compute on GPUs, one for each of these."""
    if settings.device != "cpu":
        from fedproto_app.node.trainer import torch_device

        if torch_device(settings.device).type != "cpu":
            import torch

            return torch.cuda.device_count()
    return cores()


def _useful_workers(settings: Settings, nodes: int, clients: int) -> int:
    """So many have a cohort of clients to work for."""
    return nodes * max(1, math.ceil(clients / nodes / settings.cohort_size))
