"""``fedproto run``: one experiment, from the configuration to the table of results."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedproto_app.cli.deployed_run import follow_run
from fedproto_app.cli.endings import WhenStopped, left_behind, removed_if_empty, stopped_later
from fedproto_app.cli.process_engine import draw_after, simulate_here
from fedproto_app.cli.run_checks import check_data, check_encoder, folder_of_users_code
from fedproto_app.cli.run_settings import (
    NODES,
    deployed_settings,
    given_settings,
    nearest_app,
    resumed_settings,
    simulated_settings,
)
from fedproto_app.errors import SettingsError
from fedproto_app.ops.flower_app import write_app
from fedproto_app.ops.superlink import NamedSuperLink, RunStatus, SuperLink, tail
from fedproto_app.report.progress import GrowingFile, NewRounds, Progress
from fedproto_app.report.runs import read_clients, read_run
from fedproto_app.report.table import clients_table, run_table
from fedproto_app.settings import Settings, flower_config
from fedproto_app.tasks.table import report_for

OF_PROCESS, OF_FLOWER = "With --engine process", "With --engine flower"  # panels of options

_LOOK_EVERY = 0.3  # seconds between two looks at the run's files


class Engine(StrEnum):
    """What simulates the nodes."""

    process = "process"
    flower = "flower"


def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="Settings over the defaults."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="One setting over all others; may be repeated."
        ),
    ] = None,
    resume: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Go on with a run from its newest checkpoint: its folder; with --superlink also "
            "its name, besides its CONFIG.toml. A finished one needs more rounds or patience.",
        ),
    ] = "",
    superlink: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Run on the nodes of this SuperLink, a connection in Flower's config.toml, "
            "instead of simulated ones.",
        ),
    ] = "",
    nodes: Annotated[
        int | None, typer.Option(min=1, help=f"Simulated nodes. Default: {NODES}.")
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="What simulates: process, the app in this process and workers beside it, or "
            "flower, a SuperLink of the run's own with Ray. Results are the same."
        ),
    ] = Engine.process,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that work for the nodes, which changes no result. Default: one for "
            "each core that there is work for; with a GPU one for each GPU.",
            rich_help_panel=OF_PROCESS,
        ),
    ] = None,
    cpus_per_node: Annotated[
        int, typer.Option(min=1, help="CPUs that each node takes.", rich_help_panel=OF_FLOWER)
    ] = 1,
    gpus_per_node: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GPUs that each node takes, or its share of one. Default: all GPUs in equal "
            "parts if the setting device asks for them, else none.",
            rich_help_panel=OF_FLOWER,
        ),
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a Flower app, for what its pyproject.toml sets; default: the nearest "
            "one upward, if any."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Flower's log as well.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print the run's folder and nothing else.")
    ] = False,
) -> None:
    """Run an experiment in a simulated federation, or on real nodes, and print its table.

    Settings have defaults. The pyproject.toml of an app goes over them, if
    the run has an app; then CONFIG.toml, then --set. In a simulation they
    and the data are checked before anything starts. Ctrl-C ends a
    simulation, and says how to go on with it; a run on real nodes goes on.
    Exit code: 0 completed, 1 the run failed, 2 wrong settings or data,
    3 lost sight of it, 128 + n ended by signal n.

    [bold]Examples[/bold]

      fedproto run
      fedproto run --set method=fedavg --set rounds=20 --set seed=1
      fedproto run --set data.source=wide-csv --set data.path=my.csv
      fedproto run my-experiment.toml --set fuels.beta=30 --nodes 4
      fedproto run configs/fed-react-synthetic.toml --set rounds=20
      fedproto run --resume runs/my-run
      fedproto run --resume runs/my-run --set rounds=60
      fedproto run configs/federation.toml --superlink federation
      fedproto run configs/federation.toml --superlink federation --resume my-run
    """
    folder = app.resolve() if app else nearest_app()
    console = Console(stderr=True, quiet=quiet, highlight=False)
    with WhenStopped() as stop:
        if superlink:
            _refuse_options_of_simulations(nodes, gpus_per_node)
            settings = deployed_settings(folder, config, changes or [], resume)
            with tempfile.TemporaryDirectory(prefix="fedproto-") as own:
                named = NamedSuperLink(superlink, Path(own))
                submitted = folder or write_app(Path(own) / "app")
                artefacts = follow_run(named, submitted, settings, console, verbose, stop)
        else:
            _check_cpus(cpus_per_node)
            if resume:
                settings, nodes = resumed_settings(resume, config, changes or [], nodes)
            else:
                nodes = nodes or NODES
                settings = simulated_settings(given_settings(folder, config, changes or []), nodes)
            artefacts = Path(settings.output.dir) / settings.output.name
            stop.says = partial(left_behind, artefacts, app, changes or [] if resume else [])
            with removed_if_empty(artefacts):
                if engine is Engine.flower:
                    _simulate(
                        folder, settings, nodes, cpus_per_node, gpus_per_node, console, verbose
                    )
                else:
                    simulate_here(settings, nodes, workers, console, verbose)
        if quiet:
            typer.echo(artefacts)
        elif (artefacts / "summary.json").exists():
            _print_tables(settings, artefacts)
        else:
            typer.echo(f"artefacts, on the server: {artefacts}")
        if engine is Engine.process and not superlink and settings.output.pictures:
            draw_after(artefacts, console)


def _simulate(
    app: Path | None,
    settings: Settings,
    nodes: int,
    cpus: int,
    gpus: float | None,
    console: Console,
    verbose: bool,
) -> None:
    """Run in Flower's simulation. Exits with 1 if the run failed."""
    import_path = folder_of_users_code(settings)
    gpus = _gpus(settings.device, nodes, cpus) if gpus is None else gpus
    check_encoder(settings)
    check_data(settings, import_path)
    artefacts = Path(settings.output.dir) / settings.output.name
    with (
        Progress(console, settings.all_rounds, report_for(settings.task).progress) as progress,
        tempfile.TemporaryDirectory(prefix="fedproto-", ignore_cleanup_errors=True) as home,
        SuperLink(Path(home), import_path) as superlink,
    ):
        progress.stage("starting Flower")
        submitted = app or write_app(Path(home) / "app")
        run_id = superlink.simulate(submitted, flower_config(settings), nodes, cpus, gpus)
        log = Path(home) / "flower.log"
        try:
            status = _watch(superlink, run_id, log, artefacts, progress, verbose)
        finally:
            _keep_log(log, artefacts)
    if not status.completed:
        _explain_failure(status, artefacts)
        raise typer.Exit(1)


def _refuse_options_of_simulations(nodes: int | None, gpus: float | None) -> None:
    for option, given in (("--nodes", nodes), ("--gpus-per-node", gpus)):
        if given is not None:
            raise SettingsError(
                f"{option} {given}: simulated nodes only; --superlink has real ones"
            )


def _print_tables(settings: Settings, artefacts: Path) -> None:
    out = Console(soft_wrap=True)
    clients = clients_table(settings.task, read_clients(artefacts))
    out.print(run_table(read_run(artefacts)), clients, sep="\n")
    out.print(f"artefacts: {artefacts}", highlight=False)


def _watch(
    superlink: SuperLink,
    run_id: str,
    log: Path,
    artefacts: Path,
    progress: Progress,
    verbose: bool,
) -> RunStatus:
    """Show the run's rounds, and its log if verbose, until Flower says that it has finished."""
    rounds, said = NewRounds(artefacts / "rounds.jsonl"), GrowingFile(log)
    follower = superlink.follow(run_id, log)
    while True:
        superlink.check()
        ended = follower.poll() is not None  # asked first: what came before it is then all there
        for record in rounds.new():
            progress.show(record)
        for line in said.new_lines():
            if verbose:
                progress.say(line)
        if ended:
            status = superlink.status(run_id)
            if status.finished:
                return status
            follower = superlink.follow(run_id, log)  # the stream broke, the run goes on
            said = GrowingFile(log)
        time.sleep(_LOOK_EVERY)


def _explain_failure(status: RunStatus, artefacts: Path) -> None:
    """Say on stderr why the run failed: the server's own line, or the end of Flower's log."""
    said, log = artefacts / "error.txt", artefacts / "flower.log"
    if said.exists():
        typer.echo(f"error: {said.read_text(encoding='utf-8').strip()}", err=True)
    else:
        typer.echo(tail(log), err=True)
        typer.echo(f"error: the run ended as {status.status}: {status.details}", err=True)
    typer.echo(f"full log: {log}", err=True)


def _keep_log(log: Path, artefacts: Path) -> None:
    """Add the log to that of the run, which may have one of before it was resumed."""
    if log.exists():
        artefacts.mkdir(parents=True, exist_ok=True)
        with log.open("rb") as source, (artefacts / "flower.log").open("ab") as kept:
            shutil.copyfileobj(source, kept)


def _check_cpus(cpus: int) -> None:
    available = os.cpu_count() or 1
    if cpus > available:
        raise SettingsError(f"--cpus-per-node {cpus}: this machine has {available}")


def _gpus(device: str, nodes: int, cpus: int) -> float:
    """GPUs for each node, of which as many run at once as the CPUs allow: Flower's simulation hides
    GPUs from a node that takes none."""
    if device == "cpu":
        return 0.0
    with stopped_later():
        from fedproto_app.node.trainer import torch_device

    if torch_device(device).type == "cpu":  # "auto", and there is none
        return 0.0
    import torch  # is there by now

    at_once = min(nodes, max(1, (os.cpu_count() or 1) // cpus))
    share = torch.cuda.device_count() / at_once
    # Flower takes shares below one, or whole GPUs; rounded down, so that all fit.
    return float(math.floor(share)) if share >= 1 else math.floor(share * 1000) / 1000
