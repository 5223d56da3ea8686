"""Write and read a run's checkpoints. The server continues from them as if it had never stopped.

``checkpoint/round-000017/`` holds

    model.safetensors    the global model (methods that have one)
    strategy.npz         the method's state
    server.json          the round, the run's token, clients' results, costs so far
    digests.json         SHA-256 of each of these files

A folder gets its name only after all its files have reached the disk. The newest two checkpoints
are kept. If the newest is damaged, the server reports this and uses the checkpoint before.

`resumable` checks whether a run can be resumed or extended with given settings. The command line
uses this module before Flower is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.methods import method_named
from fedproto_app.core.stored import AnyArray, Memory
from fedproto_app.core.version import __version__
from fedproto_app.core.whole_file import flush
from fedproto_app.settings import Settings, flat_settings, settings_from
from fedproto_app.tasks.table import task_class

CHECKPOINTS_KEPT = 2
MODEL, STRATEGY, SERVER, DIGESTS = (
    "model.safetensors",
    "strategy.npz",
    "server.json",
    "digests.json",
)

# The version of the files' content. Checkpoints with another version are refused. Increase it with
# every change after which old and new versions would misread each other's checkpoints.
FORMAT = 3

# Settings that may change in a resumed run: the required nodes, and the folder, which may be moved.
FREE = ("nodes.", "output.")
# Settings that may be increased, because they decide when the run ends but not its results so far.
MAX_EPSILON = "privacy.max-epsilon"
RAISABLE = ("rounds", "patience", MAX_EPSILON)


class OtherFormatError(SettingsError):
    """A checkpoint in the format of another version."""


State = Mapping[str, AnyArray]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a round.

    token: the run's mark in its nodes' folders. nodes: the number of simulated nodes, 0 in a
    deployment. model: the global model. strategy: `MethodStrategy.state`. federation:
    `Federation.memory`. listeners: `Listener.memory` of all listeners. seconds: the duration of the
    run so far.
    """

    server_round: int
    token: str
    nodes: int = 0
    model: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    strategy: State = field(default_factory=dict)
    federation: Memory = field(default_factory=dict)
    listeners: Memory = field(default_factory=dict)
    seconds: float = 0.0


_IN_SERVER = ("server_round", "token", "nodes", "federation", "listeners", "seconds")


def write_checkpoint(root: Path, checkpoint: Checkpoint) -> None:
    """Add the checkpoint to the folder ``root`` and delete old checkpoints."""
    beside = root / "new"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    if checkpoint.model:
        model = {name: np.ascontiguousarray(value) for name, value in checkpoint.model.items()}
        save_file(model, beside / MODEL)
    if checkpoint.strategy:
        with (beside / STRATEGY).open("wb") as file:
            np.savez(file, allow_pickle=False, **checkpoint.strategy)
    server = {name: getattr(checkpoint, name) for name in _IN_SERVER}
    server |= {"order": list(checkpoint.model), "format": FORMAT}
    (beside / SERVER).write_text(json.dumps(server))
    digests = {path.name: _digest(path) for path in sorted(beside.iterdir())}
    (beside / DIGESTS).write_text(json.dumps(digests))
    for path in (*beside.iterdir(), beside):
        flush(path)
    place = _place(root, checkpoint.server_round)
    shutil.rmtree(place, ignore_errors=True)  # a damaged one, or one from before a resume
    os.rename(beside, place)
    flush(root)
    for old in _folders(root)[:-CHECKPOINTS_KEPT]:
        shutil.rmtree(old)


def newest_checkpoint(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint, or None, and why newer checkpoints are refused.

    Raise `OtherFormatError` if all readable checkpoints have the format of another version.
    """
    faults: list[str] = []
    foreign: OtherFormatError | None = None
    for place in reversed(_folders(root)):
        try:
            return _read(place), faults
        except OtherFormatError as error:
            foreign, faults = error, [*faults, str(error)]
        except Exception as error:  # readers may raise anything for a damaged file
            faults.append(f"checkpoint {place} is damaged: {error}")
    if foreign is not None:
        raise foreign
    return None, faults


def drop_later_checkpoints(root: Path, server_round: int) -> None:
    """Delete the checkpoints of later rounds, because a resumed run repeats these rounds."""
    for place in _folders(root):
        if place > _place(root, server_round):
            shutil.rmtree(place)


def _read(place: Path) -> Checkpoint:
    digests = json.loads((place / DIGESTS).read_text())
    file_names = {path.name for path in place.iterdir()} - {DIGESTS}
    if not isinstance(digests, dict) or file_names != set(digests) or SERVER not in digests:
        raise ValueError(f"files {sorted(file_names)}, expected {sorted(digests)}")
    for name, digest in digests.items():
        if _digest(place / name) != digest:
            raise ValueError(f"{name} is not what was written")
    server = json.loads((place / SERVER).read_text())
    if (file_format := server.pop("format", None)) != FORMAT:
        raise OtherFormatError(
            f"{place}: has format {file_format}, but this fedproto-app {__version__} reads only "
            f"{FORMAT}; resume the run with the version that wrote it"
        )
    strategy: dict[str, AnyArray] = {}
    if STRATEGY in digests:
        file = (place / STRATEGY).open("rb")  # np.load leaves a damaged archive open
        with file, np.load(file, allow_pickle=False) as arrays:
            strategy = {name: arrays[name] for name in arrays.files}
    arrays = load_file(place / MODEL) if MODEL in digests else {}
    model = {name: arrays[name] for name in server.pop("order")}  # sums depend on the order
    return Checkpoint(model=model, strategy=strategy, **server)


def _folders(root: Path) -> list[Path]:
    """Return the checkpoints' folders, oldest first."""
    return sorted(root.glob("round-*"))


def _place(root: Path, server_round: int) -> Path:
    return root / f"round-{server_round:06d}"


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def stored_settings(folder: Path) -> Settings:
    """Return the settings of the run in this folder, or raise `SettingsError` without a run."""
    file = folder / "settings.toml"
    if not file.is_file():
        raise SettingsError(f"{folder}: holds no run to resume, because it has no settings.toml")
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        settings = settings_from(table)
    except ValueError as error:
        raise SettingsError(f"{file}: {error}") from None
    # A closed form that took in late sites has more rounds than a new run of its method would.
    return settings.model_copy(update={"rounds": table.get("rounds", settings.rounds)})


def longer(stored: Settings, settings: Settings) -> Settings:
    """Return the stored settings, with rounds, patience and the limit on ε from `settings`."""
    limit = {"max_epsilon": settings.privacy.max_epsilon}
    return stored.model_copy(
        update={
            "rounds": settings.rounds,
            "patience": settings.patience,
            "privacy": stored.privacy.model_copy(update=limit),
        }
    )


def resumable(settings: Settings, folder: Path) -> Settings:
    """Return these settings with the number of rounds that the run in this folder shall have.

    A finished run can be resumed if the setting that ended it is increased: rounds, patience, or
    `privacy.max-epsilon`. A finished closed form gets one further round, whatever `rounds` says,
    and takes in the clients of late sites. Raise `SettingsError` if the run cannot be resumed.
    """
    stored, is_finished = stored_settings(folder), (folder / "summary.json").exists()
    if _decides_rounds(settings):
        if is_finished:
            _require_late_clients_can_join(settings, folder)
        settings = settings.model_copy(update={"rounds": stored.rounds + is_finished})
    before, wanted_settings = flat_settings(stored), flat_settings(settings)
    differing = [
        f"{key} = {wanted_settings[key]!r}, was {before[key]!r}"
        for key in wanted_settings
        if wanted_settings[key] != before.get(key)
        and not key.startswith(FREE)
        and key not in RAISABLE
    ]
    if differing:
        raise SettingsError(
            f"{folder} cannot be resumed with other settings: {'; '.join(differing)}"
        )
    _require_raised(stored, settings, folder)
    if is_finished:
        _require_something_to_do(stored, settings, folder)
    return settings


def _decides_rounds(settings: Settings) -> bool:
    """Return whether the method, not the settings or the data, sets the number of rounds."""
    return method_named(settings.method).rounds is not None and not settings.has_round_per_stage


def _require_late_clients_can_join(settings: Settings, folder: Path) -> None:
    """Refuse a further round of a closed form if it would be wrong or reveal too much.

    A masked total hides each client's sums. But clients send the same sums again, so a second total
    minus the first would be the sums of the late clients. settings: a new run's.
    """
    reason = ""
    if settings.rounds > 1:
        reason = "it took in a part of the data in each round, and late sites would miss parts"
    elif settings.aggregation.secure:
        reason = (
            "aggregation.secure = true: a total with late sites minus the first total would show "
            "what these sites sent"
        )
    if reason:
        raise SettingsError(f"{folder}: this run is finished: {reason}")


def _require_raised(before: Settings, settings: Settings, folder: Path) -> None:
    if settings.rounds < before.rounds:
        raise SettingsError(
            f"rounds = {settings.rounds}: {folder} was planned with {before.rounds}; rounds can "
            "only be increased"
        )
    if settings.patience != before.patience and not _is_more_patient(settings, before):
        raise SettingsError(
            f"patience = {settings.patience}: {folder} had {before.patience}; patience can only "
            "be increased (0: no limit)"
        )
    limits = before.privacy.max_epsilon, settings.privacy.max_epsilon
    if limits[0] != limits[1] and not _allows_more(settings, before):
        raise SettingsError(
            f"{MAX_EPSILON} = {limits[1]:g}: {folder} had {limits[0]:g}; it can only be increased "
            "(0: no limit)"
        )
    if settings.rounds > before.rounds and before.privacy.is_on and before.privacy.epsilon:
        raise SettingsError(
            f"rounds = {settings.rounds}: privacy.epsilon set the noise for {before.rounds} "
            "rounds; only runs with privacy.noise-multiplier can get more rounds"
        )
    if settings.rounds > before.rounds and (
        fault := task_class(settings.task).longer_fault(settings)
    ):
        raise SettingsError(f"rounds = {settings.rounds}, was {before.rounds}: {fault}")


def _require_something_to_do(before: Settings, settings: Settings, folder: Path) -> None:
    """Refuse a finished run that would end at the same round again."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    done = summary.get("rounds", before.all_rounds)
    finished = f"{folder}: this run is finished"
    if summary.get("stopped") == "patience" and not _is_more_patient(settings, before):
        raise SettingsError(
            f"{finished}: its patience = {before.patience} ended it after round {done}; to go on, "
            "raise patience (0: no limit)"
        )
    if summary.get("stopped") == "privacy" and not _allows_more(settings, before):
        raise SettingsError(
            f"{finished}: its {MAX_EPSILON} = {before.privacy.max_epsilon:g} ended it after round "
            f"{done}; to go on, raise this setting (0: no limit)"
        )
    if summary.get("stopped") == "stages":
        raise SettingsError(f"{finished}: it has learnt every stage of its clients' data")
    if settings.all_rounds <= done:
        raise SettingsError(f"{finished}: all {done} rounds are done; to go on, raise rounds")
    if newest_checkpoint(folder / "checkpoint")[0] is None:
        raise SettingsError(f"{finished}, and there is no intact checkpoint to resume it from")


def _is_more_patient(settings: Settings, before: Settings) -> bool:
    return before.patience > 0 and (settings.patience == 0 or settings.patience > before.patience)


def _allows_more(settings: Settings, before: Settings) -> bool:
    limit, was = settings.privacy.max_epsilon, before.privacy.max_epsilon
    return was > 0 and (limit == 0 or limit > was)
