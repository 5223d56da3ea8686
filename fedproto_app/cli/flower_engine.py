"""``fedproto run --engine flower``: simulate with Ray on a separate SuperLink."""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

import typer
from rich.console import Console

from fedproto_app.core.errors import SettingsError
from fedproto_app.experiments.simulation import check_data, check_pretraining, folder_of_users_code
from fedproto_app.ops.flower_app import write_app
from fedproto_app.ops.ray_cluster import Machine, RayCluster
from fedproto_app.ops.superlink import RunStatus, SuperLink, tail
from fedproto_app.report.progress import GrowingFile, NewRounds, Progress, keep_log
from fedproto_app.report.task_report import report_for
from fedproto_app.settings import Settings, flower_config

_LOOK_EVERY = 0.3  # seconds between two looks at the run's files


def simulate_in_flower(
    app: Path | None,
    settings: Settings,
    nodes: int,
    cpus: int,
    gpus: float | None,
    cluster: RayCluster | None,
    console: Console,
    verbose: bool,
) -> None:
    """Run on simulated SuperNodes. Exits with 1 if the run failed.

    app: the folder of a Flower app, None for an app without code. cpus, gpus: of each node; gpus =
    None: all GPUs in equal shares if the device uses GPUs. cluster: where the nodes run, None for
    this machine.
    """
    import_path = folder_of_users_code(settings)
    gpus = gpus_of_a_node(settings.device, nodes, cpus, cluster) if gpus is None else gpus
    check_pretraining(settings)
    check_data(settings, import_path)
    artefacts = Path(settings.output.dir) / settings.output.name
    ray_address = cluster.address if cluster else None
    with (
        Progress(console, settings.all_rounds, report_for(settings.task).progress) as progress,
        tempfile.TemporaryDirectory(prefix="fedproto-", ignore_cleanup_errors=True) as home,
        SuperLink(Path(home), import_path, ray_address=ray_address) as superlink,
    ):
        progress.stage("starting Flower")
        submitted = app or write_app(Path(home) / "app")
        run_id = superlink.simulate(submitted, flower_config(settings), nodes, cpus, gpus)
        log = Path(home) / "flower.log"
        try:
            status = _watch(superlink, run_id, log, artefacts, progress, verbose)
        finally:
            if log.exists():  # also if the server never started the run
                artefacts.mkdir(parents=True, exist_ok=True)
            keep_log(log, artefacts)
    if not status.completed:
        _explain_failure(status, artefacts)
        raise typer.Exit(1)


def require_cpus(cpus: int) -> None:
    """Raise `SettingsError` if a node needs more CPUs than the machine has."""
    available = os.cpu_count() or 1
    if cpus > available:
        raise SettingsError(f"--cpus-per-node {cpus}: this machine has {available}")


def gpus_of_a_node(device: str, nodes: int, cpus: int, cluster: RayCluster | None = None) -> float:
    """Return the GPUs for each node, given how many nodes the CPUs allow to run at once.

    Flower's simulation hides GPUs from a node that requests none.
    """
    if device == "cpu":
        return 0.0
    if cluster is None:
        machines = _machine_with_gpus(device)
    else:
        machines = [machine for machine in cluster.machines if machine.gpus]
        if not machines and device != "auto":
            raise SettingsError(f"device = {device!r}: no machine of the Ray cluster has a GPU")
    shares = [gpus / min(nodes, max(1, all_cpus // cpus)) for all_cpus, gpus in machines]
    share = min(shares, default=0.0)
    # Flower accepts shares below one, or whole GPUs; rounded down so that all nodes fit.
    return float(math.floor(share)) if share >= 1 else math.floor(share * 1000) / 1000


def _machine_with_gpus(device: str) -> list[Machine]:
    """Return this machine if the device is a GPU; raises `SettingsError` if it has no such GPU."""
    from fedproto_app.node.device import torch_device

    if torch_device(device).type == "cpu":  # "auto" without a GPU
        return []
    import torch  # imported already

    return [Machine(os.cpu_count() or 1, torch.cuda.device_count())]


def _watch(
    superlink: SuperLink,
    run_id: str,
    log: Path,
    artefacts: Path,
    progress: Progress,
    verbose: bool,
) -> RunStatus:
    """Show the run's rounds, and its log if verbose, until Flower says that it has finished."""
    rounds, log_lines = NewRounds(artefacts / "rounds.jsonl"), GrowingFile(log)
    follower = superlink.follow(run_id, log)
    while True:
        superlink.check()
        ended = follower.poll() is not None  # checked first, so that all lines before it are read
        for record in rounds.new():
            progress.show(record)
        for line in log_lines.new_lines():
            if verbose:
                progress.say(line)
        if ended:
            status = superlink.status(run_id)
            if status.finished:
                return status
            follower = superlink.follow(run_id, log)  # the stream broke, but the run continues
            log_lines = GrowingFile(log)
        time.sleep(_LOOK_EVERY)


def _explain_failure(status: RunStatus, artefacts: Path) -> None:
    """Print on stderr why the run failed: the server's message, or the end of Flower's log."""
    error_file, log = artefacts / "error.txt", artefacts / "flower.log"
    if error_file.exists():
        typer.echo(f"error: {error_file.read_text(encoding='utf-8').strip()}", err=True)
    else:
        typer.echo(tail(log), err=True)
        typer.echo(f"error: the run ended as {status.status}: {status.details}", err=True)
    typer.echo(f"full log: {log}", err=True)
