"""``fedproto run``: run one experiment and print its table of results."""

from __future__ import annotations

import shlex
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedproto_app.cli import say_next
from fedproto_app.cli.flower_run import follow_run, require_cpus, simulate_in_flower
from fedproto_app.cli.options import Changes
from fedproto_app.core.endings import WhenStopped, removed_if_empty, shown
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.tasks import task_record
from fedproto_app.experiments.run_settings import (
    NODES,
    deployed_settings,
    given_settings,
    left_behind,
    nearest_app,
    resumed_settings,
    simulated_settings,
)
from fedproto_app.experiments.simulation import require_modules, show_after, simulate_here
from fedproto_app.ops.superlink import NamedSuperLink, write_app
from fedproto_app.report.learning import learning_faults
from fedproto_app.report.page import REPORT
from fedproto_app.report.runs import read_clients, read_run
from fedproto_app.report.table import clients_table, run_table
from fedproto_app.settings import Settings
from fedproto_app.settings.reading import unused_settings

OF_PROCESS, OF_FLOWER = "With --engine process", "With --engine flower"  # panels of the help


def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="Settings that override the defaults."),
    ] = None,
    changes: Changes = None,
    resume: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Resume the run in this folder from its newest checkpoint. To continue a finished "
            "run, set more rounds or patience. With --superlink, RUN may also be the run's name, "
            "given together with its CONFIG.toml.",
        ),
    ] = "",
    superlink: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Run on the real nodes of this SuperLink instead of simulated nodes. NAME is a "
            "connection in Flower's config.toml.",
        ),
    ] = "",
    nodes: Annotated[
        int | None, typer.Option(min=1, help=f"Number of simulated nodes. Default: {NODES}.")
    ] = None,
    engine: Annotated[
        Literal["process", "flower"],
        typer.Option(
            help="How to simulate. process: in this process and worker processes. flower: on a "
            "separate SuperLink with Ray. Both give the same results."
        ),
    ] = "process",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of worker processes. It does not change results. Default: one per core if "
            "there is enough work, or one per GPU.",
            rich_help_panel=OF_PROCESS,
        ),
    ] = None,
    cpus_per_node: Annotated[
        int, typer.Option(min=1, help="CPUs for each node.", rich_help_panel=OF_FLOWER)
    ] = 1,
    gpus_per_node: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GPUs for each node, or a fraction of one. Default: if the setting device uses "
            "GPUs, all GPUs are shared equally; else none.",
            rich_help_panel=OF_FLOWER,
        ),
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a Flower app whose pyproject.toml holds settings. Default: the nearest "
            "parent folder that is an app, if any."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show Flower's log.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the run's folder.")] = False,
) -> None:
    """Run an experiment in a simulated federation or on real nodes, and print its results.

    The pyproject.toml of an app, if there is one, overrides the defaults.
    CONFIG.toml overrides both, and --set overrides everything. A simulation
    checks settings and data before it starts. Ctrl-C ends a simulation and
    prints how to resume it, but a run on real nodes continues.
    Exit code: 0 completed, 1 the run failed, 2 wrong settings or data,
    3 connection to the run lost, 128 + n ended by signal n.

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
            require_modules(settings)
            with tempfile.TemporaryDirectory(prefix="fedproto-") as home:
                named_superlink = NamedSuperLink(superlink, Path(home))
                submitted = folder or write_app(Path(home) / "app")
                artefacts = follow_run(named_superlink, submitted, settings, console, verbose, stop)
        else:
            require_cpus(cpus_per_node)
            if resume:
                settings, nodes = resumed_settings(resume, config, changes or [], nodes)
            else:
                nodes = nodes or NODES
                chosen = given_settings(folder, config, changes or [])
                settings = simulated_settings(chosen, nodes)
                if unused := unused_settings(chosen, settings):
                    names = ", ".join(unused)
                    console.print(f"not used by {settings.method}: {names}", markup=False)
            artefacts = Path(settings.output.dir) / settings.output.name
            stop.says = partial(left_behind, artefacts, app, changes or [] if resume else [])
            with removed_if_empty(artefacts):
                if engine == "flower":
                    resources = (cpus_per_node, gpus_per_node)
                    simulate_in_flower(folder, settings, nodes, *resources, console, verbose)
                else:
                    simulate_here(settings, nodes, workers, console, verbose)
        if quiet:
            typer.echo(artefacts)
        elif (artefacts / "summary.json").exists():
            _print_tables(settings, artefacts)
        else:
            typer.echo(f"artefacts, on the server: {artefacts}")
        if engine == "process" and not superlink and settings.output.pictures:
            show_after(artefacts, console)
        if not quiet and (artefacts / REPORT).exists():
            typer.echo(f"report: {artefacts / REPORT}")
        if (artefacts / "summary.json").exists():
            say_next(console, *_next(settings, artefacts))


def _next(settings: Settings, artefacts: Path) -> list[str]:
    """Return commands to suggest after a finished run."""
    short = shlex.quote(shown(artefacts))
    compare = f"fedproto compare {shlex.quote(shown(artefacts.parent))}"
    if not task_record(settings.task).forecasts or not (artefacts / "state").exists():
        return [compare]
    forecast = f"fedproto forecast {short} --steps {settings.data.horizon} --out next.csv"
    if _lacks_future(settings, artefacts):
        forecast += " --covariates future.csv"
    return [forecast, compare]


def _lacks_future(settings: Settings, artefacts: Path) -> bool:
    """Return whether the data lack the future values of known columns that a forecast needs.

    Reads the data again if the run has columns known in advance.
    """
    from fedproto_app.data.known_columns import as_trained
    from fedproto_app.data.sources import load_histories
    from fedproto_app.serving import open_run, trained_columns

    data = settings.data
    if not (data.known or data.covariates):
        return False
    columns = trained_columns(open_run(artefacts))
    series = load_histories(as_trained(data, columns).model_copy(update={"max_steps": 0}))
    return any(len(client.future) < data.horizon for client in series)


def _refuse_options_of_simulations(nodes: int | None, gpus: float | None) -> None:
    for option, value in (("--nodes", nodes), ("--gpus-per-node", gpus)):
        if value is not None:
            raise SettingsError(f"{option} {value}: only for simulated nodes, not with --superlink")


def _print_tables(settings: Settings, artefacts: Path) -> None:
    out = Console(soft_wrap=True)
    clients = clients_table(settings.task, read_clients(artefacts))
    run = read_run(artefacts)
    out.print(run_table(run), clients, sep="\n")
    for fault in learning_faults(run):
        out.print(f"[yellow]warning[/yellow] {fault}", highlight=False)
    out.print(f"artefacts: {artefacts}", highlight=False, markup=False)
