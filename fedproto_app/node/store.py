"""Store the state of a node's clients: parameters, optimiser state, kept models and their records.

Each node has a folder for each run:

    state.sqlite                    states, kept models, records, shared models (`state_file`)
    first-phase.safetensors         what a first phase left: an encoder, or totals of responses
    c-<client>/vectors.safetensors  the vectors that the encoder makes of a client's sequences
    settings.toml, shape.json       the run's settings, and the shape of the data

States wait in memory until their order is done or, if the process works for the whole run, until
the server's next checkpoint. They are then written in one transaction, or in several if they exceed
the memory limit. The server asks for states by round. Clients that were trained together share one
copy of each tensor, on the device if all states fit there. States beyond the memory limit are
written at once, and are read from the file.

At least two states of each client stay in the file, and every state that the server may resume
from (`rounds_needed`). The server's newest checkpoint may be one round behind the nodes. If it is
damaged, the server uses the checkpoint before, which may be two rounds behind.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.events import tell
from fedproto_app.core.whole_file import make_private, write_whole
from fedproto_app.data.shape import DataShape
from fedproto_app.node.device import memory_of
from fedproto_app.node.state_file import StateFile, StoredStates, Tables, Tensors, model_of

SETTINGS_FILE, SHAPE_FILE = "settings.toml", "shape.json"
FIRST_PHASE_FILE, VECTORS_FILE = "first-phase.safetensors", "vectors.safetensors"
ORDER_BYTES = 2**27  # of states that wait for the end of their order
_BACK = 3  # rounds from which a server may resume: the current round, and two with checkpoints
_STATE_SHARE = 1 / 3  # of a GPU's memory is used for states that stay there

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientRecord:
    """The errors of a client's kept model, and the model's round (0: none yet).

    scale: the numbers that its model needs for new data (`Task.scale`). private: results for use
    by the client alone (`Task.stays`). response: see `Task.response`.
    """

    kept_round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    private: dict[str, float] = field(default_factory=dict)
    response: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(eq=False)
class _Block:
    """States [n, …] after a round that are in memory.

    newest_rows: by row, the clients whose newest state is in the block. kept_rows: by row,
    the clients whose kept model is in the block and not in the file yet.
    """

    server_round: int
    tensors: Tensors
    newest_rows: dict[int, str] = field(default_factory=dict)
    kept_rows: dict[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of bytes in this machine's memory, without those on a GPU."""
        return sum(value.nbytes for value in self.tensors.values() if value.device.type == "cpu")

    def rows(self, places: Sequence[int]) -> Tensors:
        """Return these rows of the tensors."""
        return {name: rows_of(value, places) for name, value in self.tensors.items()}


class ClientStore:
    """The state of the clients of one node in one run.

    An order begins with `begin` and ends with `settle`. Code that only reads calls neither. Other
    processes may work for other clients of the node at the same time.
    """

    def __init__(
        self,
        folder: Path,
        limit: int = ORDER_BYTES,
        *,
        lasting: bool = False,
        clients: int = 0,
        device_limit: int = 0,
    ) -> None:
        """lasting: the process works for the whole run, so states wait for `flush`.

        limit: the bytes of states that may wait in memory. clients: the number of the node's
        clients. It tells beforehand whether all states can wait. If not, they are written at once.
        device_limit: the bytes of states that may stay on the device where they were made.
        """
        self._folder, self._file = folder, StateFile(folder)
        self._limit, self._lasting = limit, lasting
        self._clients, self._device_limit = clients, device_limit
        self._round, self._marks = 0, list[int]()  # rounds from which the server may resume
        self._size = 0  # bytes of the blocks in memory
        self._newest: dict[str, tuple[_Block, int]] = {}
        self._kept: dict[str, tuple[_Block, int]] = {}
        self._unwritten: set[str] = set()  # clients whose newest state is not in the file
        self._shared: dict[int, Tensors] = {}
        self._records: dict[str, list[ClientRecord]] | None = None  # newest first
        self._changed: set[str] = set()  # clients with unwritten records

    def begin(self, server_round: int) -> None:
        """Called before an order of this round is carried out."""
        self._round = server_round
        if not self._lasting:
            self._marks = [server_round - back for back in range(_BACK)]
        elif not self._marks:
            self._marks = [server_round - 1]  # the server resumed from this round

    def settle(self) -> None:
        """Called when the order is done. Write its results, unless they wait for `flush`."""
        if not self._lasting:
            self._write()

    def flush(self) -> None:
        """Write everything that waits. Called before the server writes a checkpoint."""
        if self._lasting and self._round not in self._marks:
            self._marks = [self._round, *self._marks][:_BACK]
        self._write()

    def read_states(self, clients: Sequence[str], upto: int) -> list[StoredStates]:
        """Return the clients' newest states of rounds ≤ `upto`. Leave out clients without one."""
        blocks: dict[_Block, list[tuple[int, int]]] = {}
        elsewhere = []
        for place, client in enumerate(clients):
            block, row = self._newest.get(client, (None, 0))
            if block and block.server_round <= upto:
                blocks.setdefault(block, []).append((place, row))
            else:
                elsewhere.append(place)
        states = [
            StoredStates([place for place, _ in pairs], block.rows([row for _, row in pairs]))
            for block, pairs in blocks.items()
        ]
        if elsewhere:
            with self._file.reading() as tables:
                stored = tables.states([clients[place] for place in elsewhere], upto)
                stored_places = {elsewhere[place] for places, _ in stored for place in places}
                missing = [clients[place] for place in elsewhere if place not in stored_places]
                _tell_of_lost_states(tables, missing, upto)
            for places, tensors in stored:
                states.append(StoredStates([elsewhere[place] for place in places], tensors))
        return states

    def write_states(
        self, clients: Sequence[str], server_round: int, tensors: Mapping[str, Tensor]
    ) -> None:
        """Add the clients' states [n, …] after a round.

        They replace states of the same round and of later rounds. Such states exist if the server
        has gone back.
        """
        size = sum(value.nbytes for value in tensors.values()) * self._clients // len(clients)
        copied: Tensors | None = None
        if 0 < size <= self._device_limit:
            copied = _copied_on_device(tensors)
        elif size <= self._limit:
            copied = _copied(tensors)
        else:
            with self._writing() as tables:
                self._put_states(tables, clients, server_round, tensors)
        # Done only now, so that the earlier states stay if a write fails.
        replaced = set()
        for client in clients:
            if client in self._newest:
                block, row = self._newest.pop(client)
                del block.newest_rows[row]
                replaced.add(block)
        self._unwritten -= set(clients)
        if copied is not None:
            self._hold(clients, server_round, copied)
        for block in replaced:
            self._thin_out(block)
        if self._size > self._limit:
            with self._writing() as tables:
                self._put_waiting(tables)
            self._forget_waiting()
            self._newest, self._size = {}, 0

    def write_shared(self, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        """Remember the global model that the clients are about to be evaluated with."""
        if self._lasting:
            rounds = self._kept_rounds()
            self._shared = {r: model for r, model in self._shared.items() if r in rounds}
            self._shared[server_round] = _copied(tensors)
        else:
            with self._writing() as tables:
                self._put_shared(tables, server_round, tensors)

    def read_shared(self, server_round: int) -> Tensors:
        """Return the global model of a round. Raises `FedProtoError` if it is no longer stored."""
        if server_round in self._shared:
            return self._shared[server_round]
        with self._file.reading() as tables:
            if shared := tables.shared(server_round):
                return shared
        raise FedProtoError(f"the shared model of round {server_round} is no longer stored")

    def record(self, client: str, before: int | None = None) -> ClientRecord:
        """Return the record of the client's kept model.

        before: a round that is about to be carried out, perhaps again because the server has
        resumed. Records of this round and of later rounds are then dropped.
        """
        records = self._all_records().get(client, [])
        if before is not None and records and records[0].kept_round >= before:
            records = [record for record in records if record.kept_round < before]
            self._set_records(client, records)
        return records[0] if records else ClientRecord()

    def keep(self, client: str, record: ClientRecord) -> None:
        """Make the model of the record's round the client's kept model."""
        earlier = [
            old for old in self._all_records().get(client, []) if old.kept_round < record.kept_round
        ]
        records = [record, *earlier]
        rounds = self._rounds_of(records)
        self._set_records(client, [r for r in records if r.kept_round in rounds])
        if client in self._kept:
            block, row = self._kept.pop(client)
            del block.kept_rows[row]
            if not block.kept_rows and not block.newest_rows:
                self._size -= block.size
        if client in self._unwritten:
            block, row = self._kept[client] = self._newest[client]
            block.kept_rows[row] = client

    def read_kept(self, client: str) -> Tensors | None:
        """Return the tensors of the client's kept model, or None without one.

        A personal tensor replaces a shared one with the same name.
        """
        with self._file.reading() as tables:
            if client not in self._changed:  # another process may have dropped the model since
                self._all_records()[client] = _parsed(tables.records(client)).get(client, [])
            if not (kept_round := self.record(client).kept_round):
                return None
            shared = self._shared.get(kept_round) or tables.shared(kept_round)
            return {**shared, **tables.model(client, kept_round)} or None

    def kept_clients(self) -> list[str]:
        """Return the clients that have a kept model, sorted by name."""
        return sorted(client for client, records in self._all_records().items() if records)

    def write_settings(self, table: Mapping[str, Any], shape: DataShape) -> None:
        """Write the run's settings and the shape of the data once, to rebuild kept models."""
        if (self._folder / SHAPE_FILE).exists():
            return
        make_private(self._folder)
        for name, text in (
            (SETTINGS_FILE, tomli_w.dumps(table)),
            (SHAPE_FILE, json.dumps(asdict(shape))),
        ):
            path = self._folder / name
            write_whole(path, text.encode(), durable=True, private=True, concurrent=True)

    def read_shape(self) -> DataShape:
        """Return the shape of the data. Raises `OSError` or `ValueError` if it cannot be read."""
        numbers = json.loads((self._folder / SHAPE_FILE).read_text(encoding="utf-8"))
        lists = {name: tuple(numbers[name]) for name in ("inputs", "classes", "columns", "names")}
        return DataShape(**lists, step=numbers["step"])

    # --- files that can be computed again: a damaged one is treated as missing --------------------

    def write_first_phase(self, tensors: Mapping[str, Tensor]) -> None:
        """Store the result of a first phase, which the node's clients share from now on."""
        _write(self._folder / FIRST_PHASE_FILE, tensors)

    def read_first_phase(self) -> Tensors:
        """Return the tensors that were stored last, or {} if none can be read."""
        return _read(self._folder / FIRST_PHASE_FILE)

    def write_vectors(self, client: str, digest: str, vectors: Tensor) -> None:
        """Store the client's vectors [n, D], which the encoder with this digest computed."""
        _write(self._folder / file_name(client) / VECTORS_FILE, {digest: vectors})

    def read_vectors(self, client: str, digest: str) -> Tensor | None:
        """Return the vectors that the encoder with this digest computed, or None."""
        return _read(self._folder / file_name(client) / VECTORS_FILE).get(digest)

    # --- blocks in memory -------------------------------------------------------------------------

    def _hold(self, clients: Sequence[str], server_round: int, tensors: Tensors) -> None:
        block = _Block(server_round, tensors, dict(enumerate(clients)))
        self._size += block.size
        self._newest |= {client: (block, row) for row, client in enumerate(clients)}
        self._unwritten |= set(clients)

    def _thin_out(self, block: _Block) -> None:
        """If few rows of the block are still needed, copy these rows and drop the block."""
        if 2 * len(block.newest_rows) > len(next(iter(block.tensors.values()))):
            return
        self._size -= block.size
        models = [row for row in block.kept_rows if row not in block.newest_rows]
        self._move(block, list(block.newest_rows), block.tensors)
        self._move(block, models, model_of(block.tensors))

    def _move(self, old: _Block, rows: list[int], tensors: Tensors) -> None:
        if not rows:
            return
        block = _Block(old.server_round, {name: value[rows] for name, value in tensors.items()})
        self._size += block.size
        for place, row in enumerate(rows):
            for old_names, names, index in (
                (old.newest_rows, block.newest_rows, self._newest),
                (old.kept_rows, block.kept_rows, self._kept),
            ):
                if row in old_names:
                    names[place] = old_names[row]
                    index[old_names[row]] = block, place

    # --- the file ---------------------------------------------------------------------------------

    def _write(self) -> None:
        if not (self._unwritten or self._kept or self._changed):
            return
        with self._writing() as tables:
            self._put_waiting(tables)
            for client in self._changed:
                records = [(r.kept_round, json.dumps(asdict(r))) for r in self._records_of(client)]
                tables.put_records(client, records)
        self._forget_waiting()
        self._changed = set()

    def _writing(self) -> AbstractContextManager[Tables]:
        """Return a transaction. Records are read first, as it blocks other connections."""
        self._all_records()
        return self._file.writing()

    def _put_waiting(self, tables: Tables) -> None:
        """Write everything that waits, except the records."""
        kept_blocks = {block: None for block, _ in self._kept.values()}
        for block in kept_blocks:
            rows = [row for row in block.kept_rows if row not in block.newest_rows]
            if rows:
                names = [block.kept_rows[row] for row in rows]
                model = {name: rows_of(v, rows) for name, v in model_of(block.tensors).items()}
                tables.put("models", names, block.server_round, model)
        for server_round in sorted(self._kept_rounds() & self._shared.keys()):
            self._put_shared(tables, server_round, self._shared[server_round])
        for block in {self._newest[client][0]: None for client in sorted(self._unwritten)}:
            rows = [row for row, client in block.newest_rows.items() if client in self._unwritten]
            names = [block.newest_rows[row] for row in rows]
            self._put_states(tables, names, block.server_round, block.rows(rows))

    def _forget_waiting(self) -> None:
        """Drop kept models from memory, because what waited is now in the file."""
        for block in {block: None for block, _ in self._kept.values()}:
            if not block.newest_rows:
                self._size -= block.size
            block.kept_rows.clear()
        self._kept, self._unwritten = {}, set()

    def _put_states(
        self,
        tables: Tables,
        clients: Sequence[str],
        server_round: int,
        tensors: Mapping[str, Tensor],
    ) -> None:
        """Write states, and drop those rows of the clients that are no longer needed."""
        tables.put_states(clients, server_round, tensors)
        training, models = (tables.rounds(table, clients) for table in ("training", "models"))
        unneeded: dict[str, list[tuple[str, int]]] = {"training": [], "models": []}
        for client in clients:
            resumable = rounds_needed(training[client], self._marks, at_least=2)
            kept_rounds = self._rounds_of(self._records_of(client))
            best = {max((r for r in models[client] if r <= k), default=0) for k in kept_rounds}
            unneeded["training"] += [(client, r) for r in training[client] if r not in resumable]
            unneeded["models"] += [(client, r) for r in models[client] if r not in resumable | best]
        for table, rows in unneeded.items():
            tables.drop(table, rows)

    def _put_shared(self, tables: Tables, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        tables.put_shared(server_round, tensors)
        rounds = tables.shared_rounds()
        newest = sorted(r for r in rounds if r <= server_round)[-_BACK:]
        kept_rounds = {r for r in self._kept_rounds() if r <= server_round}
        tables.drop_shared(rounds - kept_rounds - set(newest))

    # --- records ----------------------------------------------------------------------------------

    def _all_records(self) -> dict[str, list[ClientRecord]]:
        if self._records is None:
            with self._file.reading() as tables:
                self._records = _parsed(tables.records())
        return self._records

    def _records_of(self, client: str) -> list[ClientRecord]:
        return self._all_records().get(client, [])

    def _set_records(self, client: str, records: list[ClientRecord]) -> None:
        self._all_records()[client] = records
        self._changed.add(client)

    def _rounds_of(self, records: Sequence[ClientRecord]) -> set[int]:
        return rounds_needed([r.kept_round for r in records], self._marks, at_least=1)

    def _kept_rounds(self) -> set[int]:
        """Return the rounds of all clients' kept models."""
        return set().union(*map(self._rounds_of, self._all_records().values()))


class _Memory(NamedTuple):
    """The stores of a worker's nodes, by folder.

    limit: the bytes of states that may wait in each store. nodes: the number of nodes in the
    simulation.
    """

    limit: int
    nodes: int
    stores: dict[Path, ClientStore]


_memory: _Memory | None = None  # set in a worker that keeps state in memory


def keep_state_in_memory(limit: int, nodes: int = 1) -> None:
    """Let this process keep states in memory until `flush`. It works for a whole simulation.

    limit: the bytes for the state of one node. With 0, no state is kept in memory. nodes: the
    number of nodes in the simulation.
    """
    global _memory
    _memory = _Memory(limit, nodes, {}) if limit else None


def store_of(folder: Path, clients: int, device: torch.device | None = None) -> ClientStore:
    """Return the store of a node with so many clients. device: the device of the node."""
    if _memory is None:
        return ClientStore(folder)
    if folder not in _memory.stores:
        device_limit = int(_STATE_SHARE * memory_of(device) / _memory.nodes) if device else 0
        _memory.stores[folder] = ClientStore(
            folder, _memory.limit, lasting=True, clients=clients, device_limit=device_limit
        )
    return _memory.stores[folder]


def flush() -> None:
    """Write all state that waits in memory."""
    for store in _memory.stores.values() if _memory else ():
        store.flush()


def _tell_of_lost_states(tables: Tables, clients: Sequence[str], upto: int) -> None:
    """Log the clients that start anew because the server went back further than states are kept.

    This happens if an old backup of the server was restored. upto: the round of that backup.
    """
    rounds = tables.rounds("training", clients) if upto else {}
    lost = [client for client, newest in rounds.items() if newest and newest[0] >= upto + _BACK]
    if lost:
        fields = {"round": upto, "node_round": max(rounds[client][0] for client in lost)}
        tell("state-lost", WARNING, clients=len(lost), first=lost[0], **fields)


def rounds_needed(rounds: Sequence[int], marks: Sequence[int], at_least: int) -> set[int]:
    """Return the rounds whose versions of something must be kept.

    rounds: the rounds of all versions, newest first. marks: the rounds that the server may
    resume from, newest first. Each mark needs the newest version that is not later than itself. If
    there are fewer than three marks, versions before the oldest mark may be needed too.
    """
    needed_rounds = set(rounds[:at_least])
    for mark in marks:
        needed_rounds |= set([r for r in rounds if r <= mark][:1])
    if len(marks) < _BACK:
        earlier = [r for r in rounds if not marks or r <= marks[-1]]
        needed_rounds |= set(earlier[:_BACK])
    return needed_rounds


def rows_of(value: Tensor, rows: Sequence[int]) -> Tensor:
    """Return rows of a tensor [n, …]. Consecutive rows are not copied."""
    if list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return value[rows[0] : rows[0] + len(rows)]
    return value[list(rows)]


def flatten(groups: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    """Turn {"parameters": {"w": …}} into {"parameters/w": …}, the names of stored tensors."""
    return {f"{group}/{n}": v for group, tensors in groups.items() for n, v in tensors.items()}


def unflatten(tensors: Mapping[str, Tensor], group: str) -> Tensors:
    """Return the tensors of one group, under names without the group's prefix."""
    prefix = group + "/"
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}


def _parsed(records: Mapping[str, Sequence[tuple[int, str]]]) -> dict[str, list[ClientRecord]]:
    return {
        client: [_record(client, text) for _, text in texts] for client, texts in records.items()
    }


def _record(client: str, text: str) -> ClientRecord:
    """Return the record in the text. Raises `FedProtoError` if the text holds no record."""
    try:
        record = ClientRecord(**json.loads(text))
        tables = (record.metrics, record.scale, record.private)
        numbers = [value for table in tables for value in table.values()]
        if not all(isinstance(value, int | float) for value in (record.kept_round, *numbers)):
            raise TypeError("a value is not a number")
    except (AttributeError, TypeError, ValueError) as error:
        raise FedProtoError(
            f"the state file is damaged, in the record of client {client!r}: {error}"
        ) from None
    return record


def _copied(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return a copy that later training does not change."""
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def _copied_on_device(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return a copy on the tensors' device or, if this is full, in this machine's memory."""
    try:
        return {name: value.detach().clone() for name, value in tensors.items()}
    except torch.OutOfMemoryError:
        return _copied(tensors)


def file_name(client: str) -> str:
    """Return a file name without path separators for a client. Long names end in a hash."""
    quoted = "c-" + quote(client, safe=" +=@,")
    if len(quoted) <= 120:
        return quoted
    return f"{quoted[:80]}-{sha256(client.encode()).hexdigest()[:16]}"


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    make_private(path.parent)
    content = save({name: value.cpu().contiguous() for name, value in tensors.items()})
    write_whole(path, content, private=True, concurrent=True)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        _log.warning("%s is damaged (%s) and will be written again", path, error)
        return {}
