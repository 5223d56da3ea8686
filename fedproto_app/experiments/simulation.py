"""``fedproto run`` with the engine in the process: the default."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from rich.console import Console

from fedproto_app.core.endings import imports_first
from fedproto_app.engine.pool import WorkerPool, cores
from fedproto_app.experiments.simulation import check_data, check_pretraining, folder_of_users_code
from fedproto_app.ops.guardian import Guardian
from fedproto_app.report.progress import Progress, keep_log
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import Settings


def simulate_here(
    settings: Settings, nodes: int, workers: int | None, console: Console, verbose: bool
) -> None:
    """Run in this process and workers beside it.

    workers: None for as many as there are cores and work for. Raises `FedProtoError` for what
    stops the run.
    """
    import_path = folder_of_users_code(settings)
    check_pretraining(settings)
    shown = report_for(settings.task).progress
    with (
        imports_first(),
        Progress(console, settings.all_rounds, shown) as progress,
        tempfile.TemporaryDirectory(prefix="fedproto-", ignore_cleanup_errors=True) as home,
        Guardian(Path(home)),  # it goes even when this process is killed; workers see to themselves
    ):
        progress.stage("checking the data")
        log = Path(home) / "run.log"
        count = workers or most_workers(settings)
        with WorkerPool(count, log, import_path) as pool:
            clients = check_data(settings, import_path)
            progress.stage("starting the nodes")
            # torch and Flower are slow to import; the workers do the same meanwhile
            from fedproto_app.engine.simulation import flowers_log, simulate

            used = workers or min(count, useful_workers(settings, nodes, clients))
            folder = Path(settings.output.dir) / settings.output.name
            try:
                with flowers_log(log, progress.say if verbose else None):
                    simulate(settings, nodes, pool, used, progress.show)
            finally:
                keep_log(log, folder)


def show_after(folder: Path, console: Console) -> None:
    """Draw the run's pictures and write its report, when its table is there already."""
    from fedproto_app.server_app import show

    with console.status("drawing pictures, writing the report …"):
        show(folder)


def most_workers(settings: Settings) -> int:
    """One for each core; where nodes compute on GPUs, one for each of these."""
    return _gpus(settings) or cores()


def useful_workers(settings: Settings, nodes: int, clients: int) -> int:
    """So many have a cohort of clients to work for; on GPUs, which hold many, a node of them."""
    if _gpus(settings) and not settings.cohort_size:
        return nodes
    return nodes * max(1, math.ceil(clients / nodes / settings.cohort_on_cpu))


def _gpus(settings: Settings) -> int:
    if settings.device == "cpu":
        return 0
    from fedproto_app.node.device import gpus

    return gpus(settings.device)
