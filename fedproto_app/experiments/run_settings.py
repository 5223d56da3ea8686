"""Collect a run's settings from an app's table, a file and ``--set``, or from an earlier run.

All other settings keep the defaults of `Settings`.
"""

from __future__ import annotations

import shlex
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedproto_app.core.endings import NOTHING_WRITTEN, program, shown
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.run_lock import require_unwritten
from fedproto_app.server.checkpoint import (
    FREE,
    RAISABLE,
    newest_checkpoint,
    resumable,
    stored_settings,
)
from fedproto_app.settings import (
    FIRST_METHOD,
    Settings,
    default_run_name,
    defaults_of,
    flat_settings,
    settings_from,
)
from fedproto_app.settings.reading import TEXT, flat, parsed, with_tables

NODES = 2  # default of a simulation


def given_settings(app: Path | None, config: Path | None, changes: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the app, the file and ``--set``, each overriding those before it.

    The keys are dotted.
    """
    return {**(_table_of(app) if app else {}), **changed_settings(config, changes)}


def simulated_settings(changes: Mapping[str, object], nodes: int) -> Settings:
    """Return a simulation's complete settings, with absolute paths and a new folder.

    changes: the settings that differ from the defaults, with dotted keys or nested.
    """
    settings = unclaimed_settings(changes, nodes)
    name = _claimed_name(settings, Path(settings.output.dir))
    return settings.model_copy(update={"output": settings.output.model_copy(update={"name": name})})


def unclaimed_settings(changes: Mapping[str, object], nodes: int) -> Settings:
    """Return the same as `simulated_settings`, but make no folder."""
    if names := flat(changes).get("nodes.names"):
        raise SettingsError(f"nodes.names = {names!r}: only for real nodes, not for a simulation")
    # All nodes of a simulation are present, so a run can wait for all of them.
    settings = settings_from({"nodes.minimum": nodes, **changes})
    if settings.nodes.minimum > nodes:
        raise SettingsError(
            f"nodes.minimum = {settings.nodes.minimum}: more than the {nodes} of --nodes"
        )
    of_data = [("data", key) for key in ("path", "covariates", "groups", "pretrained_encoder")]
    for table, key in (*of_data, ("encoder", "path"), ("output", "dir")):
        section = getattr(settings, table)
        if path := getattr(section, key):
            absolute = section.model_copy(update={key: _absolute(path)})
            settings = settings.model_copy(update={table: absolute})
    return settings


def deployed_settings(
    app: Path | None, config: Path | None, changes: Sequence[str], resume: str
) -> Settings:
    """Return the settings of a run on real nodes. Paths are those on the server.

    resume: the run to resume, or "". If this machine can read the server's folders, it is the run's
    folder, else its name. If it is a name, the settings must be the same as before.
    """
    if resume and (Path(resume) / "settings.toml").exists():
        _refuse_config(resume, config)
        return _resumed(Path(resume), changes)
    settings = settings_from(given_settings(app, config, changes))
    name = resume or settings.output.name or default_run_name(settings)
    output = settings.output.model_copy(update={"name": name, "resume": bool(resume)})
    return settings.model_copy(update={"output": output})


def resumed_settings(
    resume: str, config: Path | None, changes: Sequence[str], nodes: int | None
) -> tuple[Settings, int]:
    """Return the settings for resuming the simulation in a folder, and its number of nodes.

    Raises `SettingsError` if there is no run to resume, or if a change is not allowed.
    """
    _refuse_config(resume, config)
    folder = Path(resume).expanduser()
    settings = _resumed(folder, changes)
    checkpoint, _ = newest_checkpoint(folder / "checkpoint")
    node_count = checkpoint.nodes if checkpoint else settings.nodes.minimum
    if nodes not in (None, node_count):
        raise SettingsError(
            f"--nodes {nodes}: the run has {node_count} nodes, which hold its clients' models"
        )
    return settings, node_count


def _resumed(folder: Path, changes: Sequence[str]) -> Settings:
    """Return the settings to resume the run in this folder. No process may be writing it."""
    resolved = flat_settings(stored_settings(folder))
    for key, value in map(_change, changes):
        if not key.startswith(FREE) and key not in RAISABLE:
            raise SettingsError(f"--set {key}={value}: a run continues with its settings")
        resolved[key] = value
    place = {"dir": _absolute(str(folder.parent)), "name": folder.resolve().name, "resume": True}
    settings = settings_from(resolved | {f"output.{key}": value for key, value in place.items()})
    require_unwritten(folder)
    return resumable(settings, folder)


def _refuse_config(resume: str, config: Path | None) -> None:
    if config is not None:
        raise SettingsError(
            f"--resume {resume}: continues with the settings in its folder; leave out {config}"
        )


def _table_of(app: Path) -> dict[str, object]:
    """Return the settings of an app's table, with dotted keys.

    Flower requires an app to list every key, so keys with their default value are ignored.
    """
    file = app / "pyproject.toml"
    table = _app_in(read_toml(file))
    if table is None:
        raise SettingsError(f"{file}: has no table [tool.flwr.app]")
    config = table.get("config", {})
    if config and TEXT not in config:
        raise SettingsError(
            f'{file}: [tool.flwr.app.config] must list {TEXT} = "", in which the table of a '
            "method travels"
        )
    listed = flat(with_tables(config))
    defaults = defaults_of(str(listed.get("method", FIRST_METHOD)))
    return {key: value for key, value in listed.items() if value != defaults.get(key)}


def _app_in(project: Mapping[str, Any]) -> Mapping[str, Any] | None:
    table: Mapping[str, Any] | None = project.get("tool", {}).get("flwr", {}).get("app")
    return table


def changed_settings(config: Path | None, changes: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the file, overridden by ``--set``, with dotted keys."""
    return {**(flat(read_toml(config)) if config else {}), **dict(map(_change, changes))}


def _change(text: str) -> tuple[str, object]:
    """Return the key and value of one ``--set``."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals):
        raise SettingsError(f"--set {text}: expected KEY=VALUE, for example --set rounds=20")
    return key, parsed(value)


def _claimed_name(settings: Settings, output: Path) -> str:
    """Return ``output.name`` or a new name. Make its folder, so that no other run takes it.

    Raises `SettingsError` if the folder exists already or cannot be made.
    """
    name = settings.output.name or default_run_name(settings)
    unused, number = name, 1
    while True:
        try:
            (output / unused).mkdir(parents=True)
        except FileExistsError:
            if settings.output.name:
                raise SettingsError(
                    f"output.name = {name!r}: {output / name} exists already and is never "
                    "overwritten"
                ) from None
            number += 1
            unused = f"{name}-{number}"
        except OSError as error:
            raise SettingsError(f"output.dir: {output / unused}: {error.strerror}") from None
        else:
            return unused


def require_writable(folder: Path, option: str) -> None:
    """Make the folder for several runs, or raise a `SettingsError` that names the option."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{folder}: {error.strerror}; {option} names another folder for the runs"
        ) from None


def nearest_app() -> Path | None:
    """Return the folder of the Flower app that contains the current folder, or None."""
    current = Path.cwd()
    for folder in (current, *current.parents):
        project = folder / "pyproject.toml"
        if project.exists() and _app_in(read_toml(project)) is not None:
            return folder
    return None


def read_toml(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        if file.suffix != ".toml":
            raise SettingsError(
                f"{file}: holds no settings in TOML; to check data: "
                f"fedproto data check {shlex.quote(str(file))}"
            ) from None
        raise SettingsError(f"{file}: {error} (texts need double quotes)") from None


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def left_behind(run: Path, app: Path | None, changes: Sequence[str]) -> str:
    """Return a message on what a stopped run has saved, with the command that resumes it.

    If the folder of a new run is empty, it is removed. app, changes: the folder of the Flower app
    and the values of ``--set``, to be repeated in the command.
    """
    if not (run / "settings.toml").exists():
        shutil.rmtree(run, ignore_errors=True)
        return NOTHING_WRITTEN
    if (run / "summary.json").exists() and not changes:
        return f"stopped when all rounds were done: {shown(run)}"
    checkpoint, _ = newest_checkpoint(run / "checkpoint")
    saved = f"round {checkpoint.server_round} is saved" if checkpoint else "no round is saved yet"
    words = ["run", "--resume", shown(run)]
    words += ["--app", str(app)] if app else []
    words += [word for change in changes for word in ("--set", change)]
    return f"stopped; {saved}; go on with: {program()} {shlex.join(words)}"
