"""A node's client state on its own disk: personal parameters, Adam moments, kept models.

A folder per run and node. Files have the number of a write in their name, then the writing
process's (`writer`):

    state-000017-000042-0.safetensors   what some clients held after training in round 17
    kept-000012-000040-0.safetensors    kept models of rounds up to 12, of states that are gone
    kept-000017-000031-0.jsonl          whose kept model is of which round: errors, scale
    shared-000017.safetensors           the global model of the round (methods that average)
    encoder.safetensors, settings.toml  the frozen encoder, the run's settings
    c-<client>/vectors.safetensors      what the encoder makes of a client's samples

Every file appears whole or not at all. A folder belongs to one node. Several processes may work for
a node, each on clients of its own.

Of a client stay its newest two states, and those that the server may go on from (`needed`). So a
damaged file costs a round and not the client, and a server that resumes from a checkpoint can go
back. Its newest one may be a round behind the nodes, and if that is damaged, the one before it two
rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli_w
from safetensors import SafetensorError
from torch import Tensor

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.whole_file import write_whole
from fedproto_app.node.blocks import model_of, read_tensors, write_tensors
from fedproto_app.node.records import ClientRecord, Records
from fedproto_app.node.state_log import BACK, Found, StateLog

ENCODER_FILE, VECTORS_FILE = "encoder.safetensors", "vectors.safetensors"
SETTINGS_FILE = "settings.toml"

_log = logging.getLogger(__name__)


class ClientStore:
    """The state of the clients of one node in one run.

    An order begins with `begin` and ends with `settle`; who only reads needs neither.
    writer: the number of the process among those that work for the node at once.
    """

    def __init__(self, folder: Path, writer: int = 0) -> None:
        self._folder, self._mark = folder, f".{writer}.new"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log, self._records = StateLog(folder, writer), Records(folder, writer)
        self._round, self._marks = 0, list[int]()  # rounds that the server may go on from

    def begin(self, server_round: int) -> None:
        """An order of this round is carried out.

        Raises `FedProtoError` where an earlier version has left state: to begin anew would lose it.
        """
        if self._round == 0:
            if any(self._folder.glob("c-*/state-*.safetensors")):
                raise FedProtoError(
                    f"{self._folder}: holds state of an earlier version, a folder a client; go on "
                    "with that version, or begin another run"
                )
            for path in self._folder.rglob(f"*{self._mark}"):  # of a process that was killed
                path.unlink()
        self._round = server_round
        self._marks = [server_round - back for back in range(BACK)]

    def settle(self) -> None:
        """The order is done: write what is noted once for all clients."""
        self._records.write(self._round)

    def flush(self) -> None:
        """Write all that waits in memory: nothing here."""

    def read_states(self, clients: Sequence[str], upto: int) -> list[Found]:
        """The clients' newest readable states of rounds ≤ `upto`; not of those without any."""
        return self._log.read(clients, upto)

    def write_states(
        self, clients: Sequence[str], server_round: int, tensors: Mapping[str, Tensor]
    ) -> None:
        """Add the clients' states after a round, [n, …] each; drop those that nobody needs now.

        States of later rounds are of no use: the server has gone back and does those anew.
        """
        self._log.write(clients, server_round, tensors)
        self._log.sweep(clients, self._marks, self._records.rounds)

    def write_shared(self, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        """Remember the global model that the clients are about to be evaluated with."""
        write_tensors(self._shared_file(server_round), tensors, self._mark)
        files = self._folder.glob("shared-*.safetensors")
        there = {int(path.stem.removeprefix("shared-")): path for path in files}
        later = {one for one in there if one > server_round}
        staying = self._records.all_rounds(self._marks) | set(sorted(there.keys() - later)[-BACK:])
        for one in there.keys() - (staying - later):
            there[one].unlink(missing_ok=True)

    def read_shared(self, server_round: int) -> dict[str, Tensor]:
        """What `write_shared` wrote in this round; raises `FedProtoError` if that is gone."""
        if not (found := _read(self._shared_file(server_round))):
            raise FedProtoError(f"the shared model of round {server_round} is not here any more")
        return found

    def write_encoder(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep the encoder that the node's clients share from now on."""
        write_tensors(self._folder / ENCODER_FILE, tensors, self._mark)

    def read_encoder(self) -> dict[str, Tensor]:
        """The encoder kept last, empty if there is none that can be read."""
        return _read(self._folder / ENCODER_FILE)

    def write_vectors(self, client: str, digest: str, vectors: Tensor) -> None:
        """Keep what the encoder with this digest makes of the client's samples."""
        file = self._vectors_file(client)
        file.parent.mkdir(exist_ok=True)
        write_tensors(file, {digest: vectors}, self._mark)

    def read_vectors(self, client: str, digest: str) -> Tensor | None:
        """The vectors of the encoder with this digest, None if there are none of it."""
        return _read(self._vectors_file(client)).get(digest)

    def record(self, client: str, before: int | None = None) -> ClientRecord:
        """What is known of the client's kept model.

        before: a round that is done for the first time or, after the server has resumed, once
        more. What came of it or of later rounds is then forgotten.
        """
        if before is not None:
            self._records.forget(client, before)
        return self._records.newest(client)

    def keep(self, client: str, record: ClientRecord) -> None:
        """Make the model of the record's round the client's kept one; `settle` writes that."""
        self._records.put(client, record, self._marks)

    def read_kept(self, client: str) -> dict[str, Tensor] | None:
        """The kept model's tensors, personal ones over shared ones, or None if there is none.

        Raises one of `blocks.DAMAGES` if they are damaged.
        """
        if not (kept := self.record(client).kept_round):
            return None
        file = self._shared_file(kept)
        shared = read_tensors(file) if file.exists() else {}
        return {**shared, **model_of(self._log.read_model(client, kept))} or None

    def write_settings(self, table: Mapping[str, Any]) -> None:
        """Keep the run's settings, once: a kept model is built again from them."""
        path = self._folder / SETTINGS_FILE
        if not path.exists():
            write_whole(path, tomli_w.dumps(table).encode(), self._mark, durable=True)

    def kept_clients(self) -> list[str]:
        """The clients that have a kept model, by name."""
        return self._records.clients

    def _shared_file(self, server_round: int) -> Path:
        return self._folder / f"shared-{server_round:06d}.safetensors"

    def _vectors_file(self, client: str) -> Path:
        return self._folder / file_name(client) / VECTORS_FILE


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


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that can be made again; empty if it is missing or damaged."""
    if not path.exists():
        return {}
    try:
        return read_tensors(path)
    except (SafetensorError, OSError) as error:
        _log.warning("%s is damaged (%s): made again", path, error)
        return {}
