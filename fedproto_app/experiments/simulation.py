"""Check data and settings, then run a simulation in this process and worker processes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from fedproto_app.core.endings import imports_first, removed_if_empty
from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.core.loading import load, look_here_for_users_code
from fedproto_app.core.methods import method_named
from fedproto_app.engine.pool import WorkerPool
from fedproto_app.experiments.run_settings import (
    resumed_settings,
    simulated_settings,
    unclaimed_settings,
)
from fedproto_app.maths.threads import cores
from fedproto_app.ops.guardian import Guardian
from fedproto_app.report.progress import Progress, keep_log, keep_notes
from fedproto_app.report.task_report import report_for
from fedproto_app.server.checkpoint import stored_settings
from fedproto_app.settings import Settings, flat_settings
from fedproto_app.settings.reading import flat
from fedproto_app.tasks.table import admission
from fedproto_app.trust.privacy_loss import privacy_plan

OnRound = Callable[[dict[str, object]], None]
_MAIN = "__main__:"  # the module of a script or notebook


def simulate_here(
    settings: Settings,
    nodes: int,
    workers: int | None,
    console: Console,
    verbose: bool,
    on_round: OnRound | None = None,
) -> None:
    """Run a simulation in this process and worker processes.

    workers: the number of workers, by default one per core if there is enough work. There are none
    if a setting names code of a script or notebook. on_round: called with each line of
    rounds.jsonl, with dotted keys. An exception in it ends the run. Raises `FedProtoError` if the
    run fails.
    """
    import_path = folder_of_users_code(settings)
    check_pretraining(settings)
    shown = report_for(settings.task).metrics.progress
    with (
        imports_first(),
        Progress(console, settings.all_rounds, shown) as progress,
        tempfile.TemporaryDirectory(prefix="fedproto-", ignore_cleanup_errors=True) as home,
        # It removes the folder even if this process is killed. Workers end by themselves.
        Guardian(Path(home)),
    ):
        progress.stage("checking the data")
        log = Path(home) / "run.log"

        def show(line: Mapping[str, object]) -> None:
            progress.show(line)
            if on_round is not None:
                on_round(flat(line))

        in_this_process = any(name.startswith(_MAIN) for name in users_code(settings).values())
        count = workers or most_workers(settings)
        with nullcontext() if in_this_process else WorkerPool(count, log, import_path) as pool:
            clients, notes = check_data(settings)
            folder = Path(settings.output.dir) / settings.output.name
            keep_notes(notes, folder, progress)
            if settings.kernel == "numba":
                progress.stage("preparing the kernel")
                from fedproto_app.models.kernel.cohort import prepare

                if cost := prepare():
                    progress.say(cost)
            progress.stage("starting the nodes, then the first round")
            # torch and Flower are slow to import, and the workers import them at the same time
            from fedproto_app.engine.simulation import (
                flowers_log,
                simulate,
                simulate_without_workers,
            )

            try:
                with flowers_log(log, progress.say if verbose else None):
                    if pool is None:
                        simulate_without_workers(settings, nodes, show)
                    else:
                        used = workers or min(count, useful_workers(settings, nodes, clients))
                        simulate(settings, nodes, pool, used, show)
            finally:
                keep_log(log, folder)


def complete_run(changes: Mapping[str, object], nodes: int, console: Console) -> None:
    """Make a run, or resume it if it was stopped. A finished run is left as it is.

    changes: the settings that differ from the defaults, with ``output.dir`` and ``output.name``.
    Raises `SettingsError` if the folder holds a run with other settings, or if the data's file has
    changed since.
    """
    folder = Path(str(changes["output.dir"])) / str(changes["output.name"])
    if (folder / "settings.toml").exists():
        settings = unclaimed_settings(changes, nodes)
        _require_settings(folder, flat_settings(settings))
        _require_older(Path(settings.data.path), folder)
        if (folder / "summary.json").exists():
            return
        settings, nodes = resumed_settings(str(folder), None, (), None)
    else:
        settings = simulated_settings(changes, nodes)
    with removed_if_empty(folder):
        simulate_here(settings, nodes, None, console, verbose=False)
    if settings.output.pictures:
        show_after(folder, console)


def _require_settings(folder: Path, settings: Mapping[str, object]) -> None:
    """Raise `SettingsError` unless the run in this folder has these settings."""
    stored = flat_settings(stored_settings(folder))
    for key, value in settings.items():
        if stored.get(key) != value and not key.startswith("output."):
            raise SettingsError(
                f"{folder}: holds a run with {key} = {stored.get(key)!r}, not {value!r}; choose "
                "another folder"
            )


def show_after(folder: Path, console: Console) -> None:
    """Draw the run's pictures and write its report. Called after its table was printed."""
    from fedproto_app.server_app import show

    with console.status("drawing pictures, writing the report …"):
        show(folder)


def _require_older(data: Path, folder: Path) -> None:
    """Raise `SettingsError` if the data's file was written after the run in this folder began."""
    if data.is_file() and data.stat().st_mtime > (folder / "settings.toml").stat().st_mtime:
        raise SettingsError(f"{folder}: its run is older than {data}; choose another folder")


def users_code(settings: Settings) -> dict[str, str]:
    """Return, by setting, each name ``package.module:name`` of the user's code."""
    names = {
        "method": settings.method,
        "data.source": settings.data.source,
        "model.module": settings.model.module,
    }
    return {key: name for key, name in names.items() if ":" in name}


def folder_of_users_code(settings: Settings) -> Path | None:
    """Return the current folder, where the user's code lies, or None if no setting names any."""
    return Path.cwd() if users_code(settings) else None


def require_modules(settings: Settings) -> None:
    """Raise `SettingsError` for code of a script or notebook: other processes cannot import it."""
    for key, name in users_code(settings).items():
        if name.startswith(_MAIN):
            raise SettingsError(
                f"{key} = {name!r}: other processes cannot import what a script or notebook "
                "defines; put it into a module"
            )


def check_pretraining(settings: Settings) -> None:
    """Raise `SettingsError` if a phase before the method's rounds could not start."""
    for phase in settings.first_phases:
        phase.check(settings)


def check_data(settings: Settings) -> tuple[int, Sequence[str]]:
    """Return the number of clients that can take part, and what was done to the data.

    Raises `DataError` if every node would refuse the data. Raises `SettingsError` if the method
    needs more clients or cannot provide the privacy that is set, or if the user's model cannot be
    imported.
    """
    if users_code(settings):
        look_here_for_users_code()
    if settings.model.module:  # else a fault shows only when a node is asked to train
        load(settings.model.module, f"model.module = {settings.model.module!r}")
    privacy_plan(settings)
    reasons, notes = admission(settings)
    if all(reasons.values()):
        name, reason = next(iter(reasons.items()))
        raise DataError(f"none of {len(reasons)} clients can take part; {name!r}: {reason}")
    clients = list(reasons.values()).count(None)
    if clients > settings.nodes.maximum_clients:  # the server would refuse the nodes later
        raise SettingsError(
            f"nodes.maximum-clients = {settings.nodes.maximum_clients}: the data have {clients} "
            f"clients, so allow that many: --set nodes.maximum-clients={clients}"
        )
    check_clients = method_named(settings.method).check_clients
    if check_clients is not None:
        check_clients(settings, clients)
    return clients, notes


def most_workers(settings: Settings) -> int:
    """Return the number of cores, or of GPUs if nodes compute on GPUs."""
    return _gpus(settings) or cores()


def useful_workers(settings: Settings, nodes: int, clients: int) -> int:
    """Return how many workers would have work: one per cohort, or on GPUs one per node."""
    if _gpus(settings) and not settings.cohort_size:
        return nodes
    return nodes * max(1, math.ceil(clients / nodes / settings.cohort_on_cpu))


def _gpus(settings: Settings) -> int:
    if settings.device == "cpu":
        return 0
    from fedproto_app.node.device import gpus

    return gpus(settings.device)
