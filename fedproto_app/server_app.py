"""The ServerApp: settings → roster → strategy → artefacts. No algorithm."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from logging import ERROR, WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from safetensors import SafetensorError

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.events import tell
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.listeners import Checkpoints, Persistence, folder_listeners
from fedproto_app.server.federation import Federation
from fedproto_app.server.listeners import Costs, Health, Listener, Patience
from fedproto_app.server.rounds import Progress, run_rounds
from fedproto_app.settings import Settings, settings_from
from fedproto_app.settings.paths import within_root
from fedproto_app.strategies.common.halves import make_strategy
from fedproto_app.trust.privacy_plan import privacy_plan

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run configuration describes."""
    with telling_of_errors() as known:
        settings = within_root(settings_from(context.run_config))
        privacy_plan(settings)  # refuses what cannot be protected before a folder is made
        folder = known.folder = RunFolder(settings)
        tell("artefacts", folder=str(folder.path))
        conduct(grid, settings, folder)
        if settings.output.pictures:
            show(folder.path)


@dataclass
class _Known:
    """The folder of a run, once there is one."""

    folder: RunFolder | None = None


@contextmanager
def telling_of_errors() -> Iterator[_Known]:
    """What stops the run is written to the log and, once there is a folder, to its ``error.txt``.

    The folder is open to other writers after the block.
    """
    known = _Known()
    try:
        yield known
    except (FedProtoError, OSError, SafetensorError) as error:
        ours = isinstance(error, FedProtoError)  # the others: a full disk, say
        reason = str(error) if ours else f"the server cannot write its artefacts: {error}"
        tell("stopped", ERROR, reason=reason)
        if known.folder is not None:
            with suppress(OSError):
                known.folder.write_error(reason)
        raise
    finally:
        if known.folder is not None:
            known.folder.close()


def conduct(
    grid: Grid,
    settings: Settings,
    folder: RunFolder,
    persistence: Persistence | None = None,
    watching: Sequence[Listener] = (),
) -> None:
    """Gather the nodes, train, write what came of it; go on from a checkpoint if so set.

    watching: who else hears of each round.
    """
    checkpoint = folder.resume() if settings.output.resume else None
    token = checkpoint.token if checkpoint else secrets.token_hex(4)
    federation = Federation(settings, folder.name, token, privacy_plan(settings))
    if checkpoint:
        federation.recall(checkpoint.federation)
    federation.members.await_nodes(grid)
    folder.write_partition(federation)
    strategy = make_strategy(settings, federation)
    progress = Progress(array_record(strategy.initial_arrays()))
    costs = Costs()
    # In this order: ε is part of the line that the others write, and where both would stop the run,
    # patience is the reason.
    listeners = [
        federation.spending,
        Health(),
        *folder_listeners(settings, folder, checkpoint.server_round if checkpoint else 0),
        *watching,
        costs,
        Patience(settings),
    ]
    persistence = persistence or Persistence()
    checkpoints = Checkpoints(folder, strategy, federation, listeners, persistence)
    with ExitStack() as stack:
        for listener in listeners:
            stack.callback(listener.close)
        if checkpoint:
            strategy.restore(checkpoint.strategy)
            progress = Progress(array_record(checkpoint.model), checkpoint.server_round)
            for listener in listeners:
                listener.recall(checkpoint.listeners)
        try:
            stopped = run_rounds(strategy, federation, grid, progress, [*listeners, checkpoints])
        finally:  # what a run that breaks off has found is worth keeping
            folder.write_clients(federation)
            folder.write_findings(strategy.findings())
        folder.write_model(numpy_arrays(progress.model))
        folder.write_summary(settings, federation, costs.sums, progress.rounds, stopped)
        for listener in listeners:
            listener.run_ended()


def show(folder: Path) -> None:
    """Draw the run's pictures and write its report.

    They are a convenience: a failure to make them must not fail a finished run.
    """
    from fedproto_app.report.page.document import report_of
    from fedproto_app.report.pictures import draw

    for name, make in (("pictures", draw), ("report", report_of)):
        try:
            make(folder)
        except Exception as error:
            log(WARNING, "no %s: %r", name, error)
