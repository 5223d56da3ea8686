"""A node's client state on its own disk: personal parameters, Adam moments, the kept model.

A folder per run and node; in it, per client, ``state.safetensors`` (written after every training),
``kept-personal.safetensors`` and ``kept-shared.safetensors`` (the model of the round with the best
validation error) and ``record.json`` (that round and its errors). ``shared.safetensors`` beside the
clients is the global model last received. Every file appears whole or not at all: it is written beside its
name and renamed. The kept model costs no copy: it is a second name (a hard link) of files that are
never written in place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedproto_app.errors import FedProtoError


@dataclass(frozen=True)
class ClientRecord:
    """The errors of a client's kept model, and the round that it comes from (0 = none yet)."""

    kept_round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class ClientStore:
    """The state of the clients of one node in one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)

    def read_state(self, client: str) -> dict[str, Tensor] | None:
        """The client's tensors as last written, or None before its first training."""
        return _read(self._client_dir(client) / "state.safetensors")

    def write_state(self, client: str, tensors: Mapping[str, Tensor]) -> None:
        """Replace the client's tensors, atomically."""
        _write(self._client_dir(client) / "state.safetensors", tensors)

    def write_shared(self, tensors: Mapping[str, Tensor]) -> None:
        """Remember the global model that the clients are about to be evaluated with."""
        _write(self._folder / "shared.safetensors", tensors)

    def read_record(self, client: str) -> ClientRecord:
        """What is known of the client's kept model."""
        path = self._client_dir(client) / "record.json"
        if not path.exists():
            return ClientRecord()
        try:
            return ClientRecord(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise FedProtoError(f"{path}: damaged record of client {client!r}: {error}") from None

    def keep(self, client: str, record: ClientRecord) -> None:
        """Make the client's present state, with the shared model, its kept model."""
        folder = self._client_dir(client)
        _second_name(folder / "state.safetensors", folder / "kept-personal.safetensors")
        _second_name(self._folder / "shared.safetensors", folder / "kept-shared.safetensors")
        _replace(folder / "record.json", json.dumps(asdict(record)).encode())

    def read_kept(self, client: str) -> dict[str, Tensor] | None:
        """The kept model's tensors, personal ones over shared ones, or None if there is none."""
        folder = self._client_dir(client)
        shared = _read(folder / "kept-shared.safetensors")
        personal = _read(folder / "kept-personal.safetensors")
        if shared is None and personal is None:
            return None
        return {**(shared or {}), **(personal or {})}

    def _client_dir(self, client: str) -> Path:
        folder = self._folder / _file_name(client)
        folder.mkdir(exist_ok=True)
        return folder


def _file_name(name: str) -> str:
    """A file name no name can escape its folder with; long names end in their hash."""
    quoted = "c-" + quote(name, safe=" +=@,")
    if len(quoted) <= 120:
        return quoted
    return f"{quoted[:80]}-{sha256(name.encode()).hexdigest()[:16]}"


def _read(path: Path) -> dict[str, Tensor] | None:
    if not path.exists():
        return None
    try:
        return load_file(path)
    except SafetensorError as error:
        raise FedProtoError(f"{path}: damaged client state: {error}") from None


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    beside = path.with_suffix(".new")
    save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, beside)
    os.replace(beside, path)


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    os.replace(beside, path)


def _second_name(source: Path, name: Path) -> None:
    if not source.exists():
        return
    beside = name.with_suffix(".new")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, beside)
    os.replace(beside, name)


def flatten(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """{"parameters": {"w": …}} → {"parameters/w": …}, the names used in state files."""
    return {f"{group}/{n}": value for group, named in groups.items() for n, value in named.items()}


def unflatten(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """The tensors of one group of a state file, without the group's prefix."""
    prefix = group + "/"
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


def stacked(states: list[dict[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    """Clients' tensors along a new leading client axis, [K, …] each, on the device."""
    return {name: torch.stack([state[name] for state in states]).to(device) for name in states[0]}
