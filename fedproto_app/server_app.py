"""The ServerApp: settings → roster → strategy → artefacts. It contains no algorithm."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from safetensors import SafetensorError

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.events import tell
from fedproto_app.core.methods import method_named
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.maths.threads import torch_threads
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.listeners import MetricsFile, RoundLine, RoundsFile
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.federation import Federation
from fedproto_app.server.listeners import PRIVACY, Costs, Health, Listener, Patience
from fedproto_app.server.polling_grid import without_waiting
from fedproto_app.server.rounds import Checkpoints, Persistence, Progress, run_rounds
from fedproto_app.settings import settings_from
from fedproto_app.settings.paths import within_root
from fedproto_app.strategies.common.flower_strategy import make_strategy
from fedproto_app.trust.privacy_loss import privacy_plan

app = ServerApp()

_LOG_WIDTH = 80  # width of the table. Flower writes a level before each line


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run configuration describes."""
    with reporting_errors() as started:
        settings = within_root(settings_from(context.run_config))
        privacy_plan(settings)  # refuses unsupported settings before a folder is created
        folder = started.folder = RunFolder(settings)
        tell("artefacts", folder=str(folder.path))
        conduct(without_waiting(grid), folder)
        if settings.output.pictures:
            show(folder.path)
        log_table(folder.path)


@dataclass
class _StartedRun:
    """The folder of a run, None until it exists."""

    folder: RunFolder | None = None


@contextmanager
def reporting_errors() -> Iterator[_StartedRun]:
    """Write an error that stops the run to the log, and to ``error.txt`` if the folder exists.

    After the block, other processes can write to the folder.
    """
    started = _StartedRun()
    try:
        yield started
    except (FedProtoError, OSError, SafetensorError) as error:
        ours = isinstance(error, FedProtoError)  # another error may be a full disk, for example
        reason = str(error) if ours else f"the server cannot write its artefacts: {error}"
        tell("stopped", ERROR, reason=reason)
        if started.folder is not None:
            with suppress(OSError):
                started.folder.write_error(reason)
        raise
    finally:
        if started.folder is not None:
            started.folder.close()


def conduct(
    grid: Grid,
    folder: RunFolder,
    persistence: Persistence | None = None,
    watching: Sequence[Listener] = (),
) -> None:
    """Wait for the nodes, train, and write the results. Resume a checkpoint if this is set.

    watching: further listeners to each round.
    """
    settings = folder.settings
    checkpoint = folder.resume() if settings.output.resume else None
    token = checkpoint.token if checkpoint else secrets.token_hex(4)
    federation = Federation(settings, folder.name, token, privacy_plan(settings), grid)
    if checkpoint:
        federation.recall(checkpoint.federation)
    federation.members.await_nodes(grid)
    folder.write_partition(federation)
    strategy = make_strategy(settings, federation)
    progress = Progress(array_record(strategy.initial_arrays()))
    costs = Costs()
    # The order matters. The round's line is made first, and ε is added before others write the
    # line. If patience and privacy both stop the run, patience is given as the reason.
    listeners = [
        RoundLine(settings.task),
        *federation.early_ends,
        Health(),
        RoundsFile(folder),
        MetricsFile(folder.name, method_named(settings.method).name, read_rounds(folder.path)),
        *watching,
        costs,
        Patience(settings),
    ]
    persistence = persistence or Persistence()
    checkpoints = Checkpoints(
        folder.write_checkpoint, strategy.state, federation, listeners, persistence
    )
    with ExitStack() as stack, torch_threads(settings.threads):
        for listener in listeners:
            stack.callback(listener.close)
        if checkpoint:
            strategy.restore(checkpoint.strategy)
            progress = Progress(array_record(checkpoint.model), checkpoint.server_round)
            for listener in listeners:
                listener.recall(checkpoint.listeners)
        try:
            stopped = run_rounds(strategy, federation, grid, progress, [*listeners, checkpoints])
        finally:  # a run that fails keeps the results that it has so far
            folder.write_clients(federation)
            folder.write_findings(strategy.findings())
        if stopped == PRIVACY:
            limit = settings.privacy.max_epsilon
            tell("privacy-spent", WARNING, round=progress.rounds, limit=limit)
        folder.write_model(numpy_arrays(progress.model))
        folder.write_summary(federation, costs.sums, progress.rounds, stopped)


def show(folder: Path) -> None:
    """Draw the run's pictures and write its report.

    They are a convenience, so a finished run must not fail if they cannot be made.
    """
    from fedproto_app.report.charts import draw
    from fedproto_app.report.page.document import report_of

    for name, make in (("pictures", draw), ("report", report_of)):
        try:
            make(folder)
        except Exception as error:
            log(WARNING, "no %s: %r", name, error)


def log_table(folder: Path) -> None:
    """Write the run's table to the log, because ``flwr run`` shows nothing but the log."""
    from rich.console import Console

    from fedproto_app.report.page import REPORT
    from fedproto_app.report.runs import read_run
    from fedproto_app.report.table import run_table

    text = io.StringIO()
    Console(file=text, width=_LOG_WIDTH).print(run_table(read_run(folder)))
    for line in text.getvalue().splitlines():
        log(INFO, "%s", line)
    report = folder / REPORT
    tell("finished", folder=str(folder), report=str(report) if report.exists() else None)
