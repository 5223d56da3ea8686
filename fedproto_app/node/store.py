"""A node's client state on its own disk: personal parameters, Adam moments, the kept model.

A folder per run and node; in it a folder per client with

    state-000017.safetensors    what the client held after training in round 17
    shared-000017.safetensors   the global model it was evaluated with (methods that average)
    kept-000017.json            its model of round 17 is its kept one: errors, scale of its values
    vectors.safetensors         what a frozen encoder makes of its samples (methods with one)

beside them ``encoder.safetensors`` and ``settings.toml``, the run's settings. Every file appears
whole or not at all. A folder belongs to one node. Several processes may work for a node, each on
clients of its own.

The newest states and records of a client stay (`ClientStore.versions`): a damaged file costs a
round and not the client, and a server that resumes from a checkpoint can go back. Its newest one
may be a round behind the nodes, and if that is damaged, the one before it two rounds.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedproto_app.errors import FedProtoError
from fedproto_app.whole_file import write_whole

ENCODER_FILE, VECTORS_FILE = "encoder.safetensors", "vectors.safetensors"
SETTINGS_FILE = "settings.toml"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientRecord:
    """The errors of a client's kept model, and the round that it comes from (0 = none yet).

    scale: what its forecasts take to be in the data's units (`Task.scale`). private: what was found
    of the model for the client's own use (`Task.stays`).
    """

    kept_round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    private: dict[str, float] = field(default_factory=dict)


class ClientStore:
    """The state of the clients of one node in one run.

    writer: the number of the process among those that work for the node at once.
    """

    versions: ClassVar[int] = 3  # of a client's states and records that stay

    def __init__(self, folder: Path, writer: int = 0) -> None:
        self._folder, self._mark = folder, f".{writer}.new"
        self._folder.mkdir(parents=True, exist_ok=True)

    def read_state(self, client: str, upto: int) -> dict[str, Tensor] | None:
        """The client's newest readable state of a round ≤ `upto`, None before its first."""
        for path in _versions(self._client_dir(client), "state", newest_first=True):
            if _round_of(path) > upto:
                continue
            try:
                return load_file(path)
            except (SafetensorError, OSError) as error:
                _log.warning("%s is damaged (%s): the state before it is used", path, error)
        return None

    def write_state(self, client: str, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        """Add the client's state after a round; drop those that are no longer needed.

        States of later rounds are of no use: the server has gone back and does those anew.
        """
        folder = self._client_dir(client)
        _write(folder / _version("state", server_round), tensors, self._mark)
        _drop_later(folder, "state", server_round)
        self._prune(client, "state")

    def write_shared(self, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        """Remember the global model that the clients are about to be evaluated with."""
        _write(self._folder / _version("shared", server_round), tensors, self._mark)
        _drop_later(self._folder, "shared", server_round)
        for path in list(_versions(self._folder, "shared"))[: -self.versions]:
            path.unlink(missing_ok=True)

    def read_shared(self, server_round: int) -> dict[str, Tensor]:
        """What `write_shared` wrote in this round; raises `FedProtoError` if that is gone."""
        if not (found := _read(self._folder / _version("shared", server_round))):
            raise FedProtoError(f"the shared model of round {server_round} is not here any more")
        return found

    def write_encoder(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep the encoder that the node's clients share from now on."""
        _write(self._folder / ENCODER_FILE, tensors, self._mark)

    def read_encoder(self) -> dict[str, Tensor]:
        """The encoder kept last, empty if there is none that can be read."""
        return _read(self._folder / ENCODER_FILE)

    def write_vectors(self, client: str, digest: str, vectors: Tensor) -> None:
        """Keep what the encoder with this digest makes of the client's samples."""
        _write(self._client_dir(client) / VECTORS_FILE, {digest: vectors}, self._mark)

    def read_vectors(self, client: str, digest: str) -> Tensor | None:
        """The vectors of the encoder with this digest, None if there are none of it."""
        return _read(self._client_dir(client) / VECTORS_FILE).get(digest)

    def record(self, client: str, before: int | None = None) -> ClientRecord:
        """What is known of the client's kept model.

        before: a round that is done for the first time or, after the server has resumed, once
        more. What came of it or of later rounds is then forgotten.
        """
        for path in sorted(self._client_dir(client).glob("kept-*.json"), reverse=True):
            if before is not None and _round_of(path) >= before:
                path.unlink()
                continue
            try:
                return ClientRecord(**json.loads(path.read_text())["record"])
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("%s is damaged (%s): the one before it is used", path, error)
        return ClientRecord()

    def keep(self, client: str, record: ClientRecord) -> None:
        """Make the model of the record's round the client's kept one."""
        folder, name = self._client_dir(client), _version("shared", record.kept_round)
        if (self._folder / name).exists():
            _second_name(self._folder / name, folder / name)
        told = json.dumps({"client": client, "record": asdict(record)})
        write_whole(folder / f"kept-{record.kept_round:06d}.json", told.encode())
        for old in sorted(folder.glob("kept-*.json"))[: -self.versions]:
            old.unlink()
        self._prune(client, "shared")

    def read_kept(self, client: str) -> dict[str, Tensor] | None:
        """The kept model's tensors, personal ones over shared ones, or None if there is none."""
        kept = self.record(client).kept_round
        folder = self._client_dir(client)
        tensors: dict[str, Tensor] = {}
        for kind in ("shared", "state"):
            upto = [path for path in _versions(folder, kind) if _round_of(path) <= kept]
            if upto:
                tensors |= load_file(upto[-1])
        return tensors or None

    def _prune(self, client: str, kind: str) -> None:
        """Drop all versions but the newest ones and those that kept models need."""
        folder = self._client_dir(client)
        paths = list(_versions(folder, kind))
        needed: list[Path] = []
        for kept in folder.glob("kept-*.json"):
            needed += [path for path in paths if _round_of(path) <= _round_of(kept)][-1:]
        for path in paths[: -self.versions]:
            if path not in needed:
                path.unlink()
        for path in folder.glob("*.new"):  # of a process that was killed
            path.unlink()

    def _client_dir(self, client: str) -> Path:
        folder = self._folder / file_name(client)
        folder.mkdir(exist_ok=True)
        return folder

    def write_settings(self, table: Mapping[str, Any]) -> None:
        """Keep the run's settings, once: a kept model is built again from them."""
        path = self._folder / SETTINGS_FILE
        if not path.exists():
            write_whole(path, tomli_w.dumps(table).encode(), self._mark)

    def kept_clients(self) -> list[str]:
        """The clients that have a kept model, by name."""
        names = set()
        for path in self._folder.glob("*/kept-*.json"):
            try:
                names.add(str(json.loads(path.read_text())["client"]))
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("%s is damaged: %s", path, error)
        return sorted(names)


def holds_kept_models(folder: Path) -> bool:
    """Whether the folder is that of a node with a kept model."""
    return any(folder.glob("*/kept-*.json"))


def file_name(name: str) -> str:
    """A file name that cannot leave its folder; long names end in their hash."""
    quoted = "c-" + quote(name, safe=" +=@,")
    if len(quoted) <= 120:
        return quoted
    return f"{quoted[:80]}-{sha256(name.encode()).hexdigest()[:16]}"


def flatten(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """{"parameters": {"w": …}} → {"parameters/w": …}, the names used in state files."""
    return {f"{group}/{n}": value for group, named in groups.items() for n, value in named.items()}


def unflatten(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """The tensors of one group of a state file, without the group's prefix."""
    prefix = group + "/"
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


def _version(kind: str, server_round: int) -> str:
    return f"{kind}-{server_round:06d}.safetensors"


def _round_of(path: Path) -> int:
    return int(path.name.split("-")[1].split(".")[0])


def _versions(folder: Path, kind: str, *, newest_first: bool = False) -> Iterator[Path]:
    return iter(sorted(folder.glob(f"{kind}-*.safetensors"), reverse=newest_first))


def _drop_later(folder: Path, kind: str, server_round: int) -> None:
    for path in _versions(folder, kind, newest_first=True):
        if _round_of(path) <= server_round:
            return
        path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that can be made again; empty if it is missing or damaged."""
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        _log.warning("%s is damaged (%s): made again", path, error)
        return {}


def _write(path: Path, tensors: Mapping[str, Tensor], mark: str) -> None:
    """Write the file whole or not at all; raises OSError, and then leaves nothing behind."""
    beside = path.with_suffix(mark)
    try:
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, beside)
    except SafetensorError as error:  # what a full disk comes as
        beside.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be written: {error}") from None
    os.replace(beside, path)


def _second_name(source: Path, name: Path) -> None:
    """Let the file go by another name too, in place of one that had it."""
    if name.exists() and name.samefile(source):
        return
    beside = name.with_suffix(".new")
    beside.unlink(missing_ok=True)
    try:
        os.link(source, beside)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, beside)
    os.replace(beside, name)
