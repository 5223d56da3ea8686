"""The ServerApp: settings → roster → strategy → artefacts. No algorithm."""

from __future__ import annotations

import secrets
from logging import ERROR, WARNING

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedproto_app.errors import FederationError, FedProtoError
from fedproto_app.events import tell
from fedproto_app.federation import Federation
from fedproto_app.methods import make_strategy
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.rounds import first_outcome, outcome_of, run_rounds
from fedproto_app.server_paths import within_root
from fedproto_app.settings import Settings, settings_from
from fedproto_app.wire import numpy_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run configuration describes."""
    try:
        settings = within_root(settings_from(context.run_config))
        folder = RunFolder(settings)
    except FedProtoError as error:
        tell("stopped", ERROR, reason=str(error))
        raise
    tell("artefacts", folder=str(folder.path))
    try:
        conduct(grid, settings, folder)
    except FedProtoError as error:
        tell("stopped", ERROR, reason=str(error))
        folder.write_error(str(error))
        raise
    except OSError as error:  # a full disk, say, on which nothing more can be written
        tell("stopped", ERROR, reason=str(error))
        raise FederationError(f"the server cannot write its artefacts: {error}") from error


def conduct(grid: Grid, settings: Settings, folder: RunFolder) -> None:
    """Gather the nodes, train, write what came of it; go on from a checkpoint if so set."""
    checkpoint = folder.resume() if settings.output.resume else None
    token = checkpoint.token if checkpoint else secrets.token_hex(4)
    federation = Federation(settings, folder.name, token)
    if checkpoint:
        federation.recall(checkpoint.federation)
    federation.await_nodes(grid)
    folder.write_partition(federation)
    strategy = make_strategy(settings, federation)
    if checkpoint:
        strategy.restore(checkpoint.strategy)
        outcome = outcome_of(checkpoint, federation)
    else:
        outcome = first_outcome(strategy, federation)
    try:
        run_rounds(strategy, federation, grid, folder, outcome)
    finally:  # what a run that breaks off has found is worth keeping
        folder.write_clients(federation)
        folder.write_findings(strategy.findings())
    folder.write_model(numpy_arrays(outcome.model))
    folder.write_summary(settings, federation, outcome.costs, outcome.rounds, outcome.stopped)
    if settings.output.pictures:
        draw_pictures(folder)


def draw_pictures(folder: RunFolder) -> None:
    """Pictures are a convenience: a failure to draw must not fail a finished run."""
    from fedproto_app.report.pictures import draw

    try:
        draw(folder.path)
    except Exception as error:
        log(WARNING, "no pictures: %r", error)
