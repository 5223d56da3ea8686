"""``fedproto run``: one experiment, from the configuration to the table of results."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedproto_app.cli.superlink import RunStatus, SuperLink, tail
from fedproto_app.errors import DataError, SettingsError
from fedproto_app.report.progress import GrowingFile, Progress
from fedproto_app.report.reports import report_for
from fedproto_app.report.runs import flat, read_clients, read_run
from fedproto_app.report.table import clients_table, run_table
from fedproto_app.settings import (
    PRETRAINED,
    Settings,
    default_run_name,
    flat_settings,
    settings_from,
)

_LOOK_EVERY = 0.3  # seconds between two looks at the run's files


def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="Settings over the app's defaults."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="One setting over all others; may be repeated."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Simulated SuperNodes.")] = 2,
    cpus_per_node: Annotated[int, typer.Option(min=1, help="CPUs that each node takes.")] = 1,
    gpus_per_node: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GPUs that each node takes, or its share of one. Default: all GPUs in equal "
            "parts if the setting device asks for them, else none.",
        ),
    ] = None,
    app: Annotated[
        Path | None,
        typer.Option(help="Folder of the Flower app; default: the nearest one upward."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Flower's log as well.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print the run's folder and nothing else.")
    ] = False,
) -> None:
    """Run an experiment in a simulated federation and print its table.

    Settings come from the app's pyproject.toml, then CONFIG.toml, then
    --set. They and the data are checked before anything starts.
    Exit code: 0 completed, 1 the run failed, 2 wrong settings or data.

    [bold]Examples[/bold]

      fedproto run
      fedproto run --set method=fedavg --set rounds=20 --set seed=1
      fedproto run --set data.source=wide-csv --set data.path=my.csv
      fedproto run my-experiment.toml --set fuels.beta=30 --nodes 4
      fedproto run configs/fed-react-synthetic.toml --set rounds=20
    """
    _check_cpus(cpus_per_node)
    folder = app.resolve() if app else _nearest_app()
    settings = _resolve(folder, config, changes or [], nodes)
    import_path = Path.cwd() if ":" in settings.data.source else None  # a user's own module
    gpus = _gpus(settings.device, nodes, cpus_per_node) if gpus_per_node is None else gpus_per_node
    _check_encoder(settings)
    _check_data(settings, import_path)
    artefacts = Path(settings.output.dir) / settings.output.name

    console = Console(stderr=True, quiet=quiet, highlight=False)
    with (
        Progress(console, settings.all_rounds, report_for(settings.task).progress) as progress,
        tempfile.TemporaryDirectory(prefix="fedproto-", ignore_cleanup_errors=True) as home,
        SuperLink(Path(home), import_path) as superlink,
    ):
        table = settings.model_dump(by_alias=True)
        run_id = superlink.submit(folder, table, nodes, cpus_per_node, gpus)
        log = Path(home) / "flower.log"
        try:
            status = _watch(superlink, run_id, log, artefacts, progress, verbose)
        finally:
            _keep_log(log, artefacts)
    if not status.completed:
        _explain_failure(status, artefacts)
        raise typer.Exit(1)
    if quiet:
        typer.echo(artefacts)
        return
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
    rounds, said = GrowingFile(artefacts / "rounds.jsonl"), GrowingFile(log)
    follower = superlink.follow(run_id, log)
    while True:
        superlink.check()
        ended = follower.poll() is not None  # asked first: what came before it is then all there
        for line in rounds.new_lines():
            progress.show(json.loads(line))
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
    if log.exists():
        artefacts.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, artefacts / "flower.log")


def _resolve(app: Path, config: Path | None, changes: Sequence[str], nodes: int) -> Settings:
    """The settings of this run, complete, with absolute paths and a folder name of its own."""
    defaults = flat(_read_toml(app / "pyproject.toml")["tool"]["flwr"]["app"].get("config", {}))
    given = flat(_read_toml(config)) if config else {}
    given |= dict(_change(text) for text in changes)
    # All nodes of a simulation come, so a run need not start without some of them.
    settings = settings_from({**defaults, "nodes.minimum": nodes, **given})
    if settings.nodes.minimum > nodes:
        raise SettingsError(
            f"nodes.minimum = {settings.nodes.minimum}: more than the {nodes} of --nodes"
        )
    resolved = flat_settings(settings)
    for key in ("data.path", "encoder.path"):
        if resolved[key]:
            resolved[key] = _absolute(resolved[key])
    resolved["output.dir"] = _absolute(settings.output.dir)
    resolved["output.name"] = _run_name(settings, Path(resolved["output.dir"]))
    return settings_from(resolved)


def _change(text: str) -> tuple[str, Any]:
    """The key and value of one ``--set``; a value that is no TOML is the text itself."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals):
        raise SettingsError(f"--set {text}: expected KEY=VALUE, for example --set rounds=20")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    return key, parsed["value"]


def _run_name(settings: Settings, output: Path) -> str:
    """``output.name``, or a name that no folder in ``output`` has yet."""
    if name := settings.output.name:
        if (output / name).exists():
            raise SettingsError(
                f"output.name = {name!r}: {output / name} exists already and is never overwritten"
            )
        return name
    name = unused = default_run_name(settings)
    number = 1
    while (output / unused).exists():
        number += 1
        unused = f"{name}-{number}"
    return unused


def _check_encoder(settings: Settings) -> None:
    """Raise `SettingsError` now for an encoder that the server would not find after the start."""
    path = settings.encoder.path
    if settings.method not in PRETRAINED or not path:
        return
    if not settings.encoder.file.is_file():
        raise SettingsError(
            f"encoder.path = {path!r}: there is no {settings.encoder.file}; it must be a file of "
            f"an encoder, or the folder of a run of {', '.join(PRETRAINED)}"
        )


def _check_data(settings: Settings, import_path: Path | None) -> None:
    """Raise `DataError` now for data that every node would refuse after the start, `SettingsError`
    for fewer clients than clusters."""
    from fedproto_app.data.eligibility import reasons_against  # its readers are slow to import

    if import_path is not None and str(import_path) not in sys.path:
        sys.path.insert(0, str(import_path))
    reasons = reasons_against(settings)
    if all(reasons.values()):
        name, reason = next(iter(reasons.items()))
        raise DataError(f"none of {len(reasons)} clients can take part; {name!r}: {reason}")
    clients, clusters = list(reasons.values()).count(None), settings.fed_react.clusters
    if settings.method in PRETRAINED and clusters > clients:
        raise SettingsError(
            f"fed-react.clusters = {clusters}: must be at most {clients}, the number of clients "
            "that can take part"
        )


def _check_cpus(cpus: int) -> None:
    available = os.cpu_count() or 1
    if cpus > available:
        raise SettingsError(f"--cpus-per-node {cpus}: this machine has {available}")


def _gpus(device: str, nodes: int, cpus: int) -> float:
    """GPUs for each node, of which as many run at once as the CPUs allow: Flower's simulation hides
    GPUs from a node that takes none."""
    if device == "cpu":
        return 0.0
    from fedproto_app.node import torch_device

    if torch_device(device).type == "cpu":  # "auto", and there is none
        return 0.0
    import torch

    at_once = min(nodes, max(1, (os.cpu_count() or 1) // cpus))
    share = torch.cuda.device_count() / at_once
    # Flower takes shares below one, or whole GPUs; rounded down, so that all fit.
    return float(math.floor(share)) if share >= 1 else math.floor(share * 1000) / 1000


def _nearest_app() -> Path:
    """The folder of the Flower app around the current folder, else around this package."""
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            project = folder / "pyproject.toml"
            if project.exists() and "app" in _read_toml(project).get("tool", {}).get("flwr", {}):
                return folder
    raise SettingsError("no Flower app here or in a folder above; name its folder with --app")


def _read_toml(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{file}: {error}") from None


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
