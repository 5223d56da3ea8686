"""A run's checkpoints: the server continues from one as if it had never stopped.

``checkpoint/round-000017/`` holds

    model.safetensors    the global model (methods that have one)
    strategy.npz         the method's state
    server.json          the round, the run's token, clients' results, costs so far
    digests.json         SHA-256 of each of these files

A folder gets its name after all its files have reached the disk. The newest two are kept. If the
newest is damaged, the server reports it and uses the previous checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.version import __version__
from fedproto_app.core.whole_file import flush

CHECKPOINTS_KEPT = 2
MODEL, STRATEGY, SERVER, DIGESTS = (
    "model.safetensors",
    "strategy.npz",
    "server.json",
    "digests.json",
)

# The version of the files' content. Checkpoints of another format are refused: increase it with
# every change that makes old and new versions misread each other's checkpoints.
FORMAT = 3
LAST_OF_FORMAT = {1: "0.1", 2: "0.2.0 before its release"}  # the versions that can resume them


class OtherFormatError(SettingsError):
    """A checkpoint in the format of another version."""


Memory = dict[str, Any]  # of values that JSON has
State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round.

    token: the run's mark in its nodes' folders. nodes: number of simulated nodes, 0 in deployment.
    model: the global model. strategy: `MethodStrategy.state`. federation: `Federation.memory`.
    listeners: `Listener.memory` of all listeners. seconds: duration of the run so far.
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
    shutil.rmtree(place, ignore_errors=True)  # damaged, or from before a resume
    os.rename(beside, place)
    flush(root)
    for old in _folders(root)[:-CHECKPOINTS_KEPT]:
        shutil.rmtree(old)


def newest_checkpoint(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint or None, and why newer checkpoints are refused.

    Raise `OtherFormatError` if there are only checkpoints of other versions.
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
    """Delete the checkpoints of later rounds, which a resumed run repeats."""
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
    if (file_format := server.pop("format", 1)) != FORMAT:
        able = f"fedproto-app {LAST_OF_FORMAT.get(file_format, 'of a later version')}"
        raise OtherFormatError(
            f"{place}: of format {file_format}, this is fedproto-app {__version__} with format "
            f"{FORMAT}; {able} can resume it"
        )
    strategy: dict[str, NDArray[Any]] = {}
    if STRATEGY in digests:
        file = (place / STRATEGY).open("rb")  # np.load leaves a damaged archive open
        with file, np.load(file, allow_pickle=False) as arrays:
            strategy = {name: arrays[name] for name in arrays.files}
    arrays = load_file(place / MODEL) if MODEL in digests else {}
    model = {name: arrays[name] for name in server.pop("order")}  # sums depend on it
    return Checkpoint(model=model, strategy=strategy, **server)


def _folders(root: Path) -> list[Path]:
    """Return the checkpoints' folders, oldest first."""
    return sorted(root.glob("round-*"))


def _place(root: Path, server_round: int) -> Path:
    return root / f"round-{server_round:06d}"


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
