"""The ServerApp: settings → roster → strategy → artefacts. No algorithm."""

from __future__ import annotations

import secrets
from logging import INFO, WARNING

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedproto_app.errors import FedProtoError
from fedproto_app.federation import Federation
from fedproto_app.methods import make_strategy
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.rounds import run_rounds
from fedproto_app.settings import Settings, settings_from
from fedproto_app.wire import numpy_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run configuration describes."""
    settings = settings_from(context.run_config)
    folder = RunFolder(settings)
    log(INFO, "artefacts of this run: %s", folder.path)
    try:
        conduct(grid, settings, folder)
    except FedProtoError as error:
        folder.write_error(str(error))
        raise


def conduct(grid: Grid, settings: Settings, folder: RunFolder) -> None:
    """Gather the nodes, train, write what came of it."""
    federation = Federation(settings, folder.name, secrets.token_hex(4))
    federation.await_nodes(grid)
    folder.write_partition(federation)
    strategy = make_strategy(settings, federation)
    try:
        outcome = run_rounds(strategy, federation, grid, folder)
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
