"""Read and write the SQLite file where a node stores its clients' state in one run.

    models    a client's parameters and memory after a round: what it predicts with
    training  the rest of the client's state after a round: what only further training needs
    records   the errors and the scale of a client's kept model, and the model's round
    shared    the global model that clients were evaluated with in a round

Tensors are blobs of safetensors, with one row per client and round. A transaction is written
completely or not at all, even if the process is killed. Several processes of a machine may use the
file at the same time. The file uses SQLite's rollback journal, because a write-ahead log would
write every tensor twice. The file must lie on a disk of this machine, because SQLite's locks do not
work reliably on a network disk.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.whole_file import make_private

FILE_NAME = "state.sqlite"
PARAMETERS = "parameters"
MEMORY = "memory"  # what a method remembers about a client. Some methods predict with it
PERSONAL = "personal"  # a model that is derived from the shared one, evaluated and kept

_APPLICATION_ID, _FORMAT = 0x46505253, 1  # "FPRS". Increase the format if the schema changes
_PRAGMAS = ("page_size = 16384", "cache_size = -8000", "secure_delete = OFF")
_LOCK_SECONDS = 120.0
_BUFFER_BYTES = 2**24  # of blobs that are made at the same time
_SCHEMA = """
    CREATE TABLE models (
        id INTEGER PRIMARY KEY, client TEXT, round INTEGER, tensors BLOB, UNIQUE (client, round));
    CREATE TABLE training (
        id INTEGER PRIMARY KEY, client TEXT, round INTEGER, tensors BLOB, UNIQUE (client, round));
    CREATE TABLE records (
        client TEXT, round INTEGER, record TEXT, PRIMARY KEY (client, round)) WITHOUT ROWID;
    CREATE TABLE shared (round INTEGER PRIMARY KEY, tensors BLOB);
"""
_MODEL_GROUPS = (f"{PARAMETERS}/", f"{MEMORY}/", f"{PERSONAL}/")
_CLIENTS = "(SELECT value FROM json_each(?))"  # client names, passed as one JSON array

Tensors = dict[str, Tensor]


class StoredStates(NamedTuple):
    """The states [n, …] of some requested clients. places: their positions in the request."""

    places: list[int]
    tensors: Tensors


class StateFile:
    """The state file in a node's folder. The first transaction that writes creates it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / FILE_NAME

    @contextmanager
    def reading(self) -> Iterator[Tables]:
        """Yield the tables as of the last committed transaction. Raises `FedProtoError`."""
        with _plain_errors(self.path), closing(_empty()) as empty:
            if not self.path.exists():
                yield Tables(empty)
                return
            with closing(self._connect("rw")) as database:
                database.execute("BEGIN")
                # The database is new if another process is just creating it.
                yield Tables(empty if self._is_new(database) else database)

    @contextmanager
    def writing(self) -> Iterator[Tables]:
        """Yield the tables in a transaction, which is committed unless an exception is raised.

        Raises `FedProtoError` if the file cannot be used, and OSError if the disk is full.
        """
        make_private(self._folder)
        with suppress(FileExistsError):  # SQLite gives its other files the mode of this one
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
        with _plain_errors(self.path), closing(self._connect("rwc")) as database:
            database.execute("BEGIN IMMEDIATE")
            if self._is_new(database):
                _create(database)
            yield Tables(database)
            database.execute("COMMIT")

    def without_training(self) -> bytes:
        """Return the bytes of a copy of the file whose table `training` is empty."""
        with _plain_errors(self.path), closing(self._connect("ro")) as database:
            self._is_new(database)
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                database.backup(copy)
                copy.execute("DELETE FROM training")
                copy.execute("VACUUM")
                return copy.serialize()

    def _connect(self, mode: str) -> sqlite3.Connection:
        database = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            timeout=_LOCK_SECONDS,
            isolation_level=None,
            uri=True,
        )
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        return database

    def _is_new(self, database: sqlite3.Connection) -> bool:
        """Return whether the database is empty. Raise `FedProtoError` for another program's."""
        [application], [version] = (
            database.execute(f"PRAGMA {name}").fetchone()
            for name in ("application_id", "user_version")
        )
        [tables] = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application == version == tables == 0:
            return True
        if application != _APPLICATION_ID:
            raise FedProtoError(f"{self.path}: is the database of another program")
        if version != _FORMAT:
            raise FedProtoError(
                f"{self.path}: has format {version}, but this version of fedproto-app reads "
                f"{_FORMAT}; continue with the version that wrote it, or start another run"
            )
        return False


class Tables:
    """The tables of a state file within one transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def states(self, clients: Sequence[str], upto: int) -> list[StoredStates]:
        """Return the clients' newest states of rounds ≤ `upto`. Clients without one are left out.

        The states of clients whose tensors have the same names and shapes are stacked.
        """
        newest = self._database.execute(
            "SELECT client, MAX(round) FROM training "
            f"WHERE round <= ? AND client IN {_CLIENTS} GROUP BY client",
            (upto, json.dumps(clients)),
        )
        rounds = dict(newest.fetchall())
        stacks: dict[tuple[bytes, ...], tuple[list[int], list[_Stack]]] = {}
        for place, client in enumerate(clients):
            if client not in rounds:
                continue
            blobs = self._database.execute(
                "SELECT models.tensors, training.tensors FROM models "
                "JOIN training USING (client, round) WHERE client = ? AND round = ?",
                (client, rounds[client]),
            ).fetchone()
            if blobs is None:
                raise SafetensorError(f"no model of client {client!r}")
            layouts = tuple(map(_header, blobs))
            if layouts not in stacks:
                stacks[layouts] = [], [_Stack(blob, len(clients) - place) for blob in blobs]
            places, columns = stacks[layouts]
            places.append(place)
            for stack, blob in zip(columns, blobs, strict=True):
                stack.append(blob)
        return [
            StoredStates(places, {n: v for stack in columns for n, v in stack.tensors().items()})
            for places, columns in stacks.values()
        ]

    def model(self, client: str, upto: int) -> Tensors:
        """Return the client's newest model of rounds ≤ `upto`, or {} if there is none."""
        row = self._database.execute(
            "SELECT tensors FROM models WHERE client = ? AND round <= ? ORDER BY round DESC",
            (client, upto),
        ).fetchone()
        return _loaded(row[0]) if row else {}

    def put_states(
        self, clients: Sequence[str], server_round: int, tensors: Mapping[str, Tensor]
    ) -> None:
        """Add the clients' states [n, …] after a round, and delete states of later rounds."""
        for table in ("models", "training"):
            self._database.execute(
                f"DELETE FROM {table} WHERE round > ? AND client IN {_CLIENTS}",
                (server_round, json.dumps(clients)),
            )
        model = model_of(tensors)
        self.put("models", clients, server_round, model)
        optimizer = {name: value for name, value in tensors.items() if name not in model}
        self.put("training", clients, server_round, optimizer)

    def put(
        self, table: str, clients: Sequence[str], server_round: int, tensors: Mapping[str, Tensor]
    ) -> None:
        """Add the clients' tensors [n, …] after a round to `models` or `training`."""
        blobs = zip(clients, _blobs(len(clients), tensors), strict=True)
        self._database.executemany(
            f"INSERT OR REPLACE INTO {table} (client, round, tensors) VALUES (?, ?, ?)",
            ((client, server_round, blob) for client, blob in blobs),
        )

    def rounds(self, table: str, clients: Sequence[str]) -> dict[str, list[int]]:
        """Return the rounds of each client's rows in `models` or `training`, newest first."""
        rounds: dict[str, list[int]] = {client: [] for client in clients}
        for client, server_round in self._database.execute(
            f"SELECT client, round FROM {table} WHERE client IN {_CLIENTS} ORDER BY round DESC",
            (json.dumps(clients),),
        ):
            rounds[client].append(server_round)
        return rounds

    def drop(self, table: str, rows: Iterable[tuple[str, int]]) -> None:
        """Delete the rows with these clients and rounds from `models` or `training`."""
        self._database.executemany(f"DELETE FROM {table} WHERE client = ? AND round = ?", rows)

    def records(self, client: str | None = None) -> dict[str, list[tuple[int, str]]]:
        """Return each client's records with their rounds, newest first. client: only this one."""
        records: dict[str, list[tuple[int, str]]] = {}
        for name, server_round, text in self._database.execute(
            "SELECT client, round, record FROM records WHERE client = ? OR ? IS NULL "
            "ORDER BY client, round DESC",
            (client, client),
        ):
            records.setdefault(name, []).append((server_round, text))
        return records

    def put_records(self, client: str, records: Iterable[tuple[int, str]]) -> None:
        """Replace all records of a client."""
        self._database.execute("DELETE FROM records WHERE client = ?", (client,))
        self._database.executemany(
            "INSERT INTO records VALUES (?, ?, ?)", [(client, *record) for record in records]
        )

    def shared(self, server_round: int) -> Tensors:
        """Return the global model of a round, or {} if there is none."""
        row = self._database.execute(
            "SELECT tensors FROM shared WHERE round = ?", (server_round,)
        ).fetchone()
        return _loaded(row[0]) if row else {}

    def put_shared(self, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        """Add the global model of a round."""
        blob = safetensors.torch.save({n: v.cpu().contiguous() for n, v in tensors.items()})
        self._database.execute("INSERT OR REPLACE INTO shared VALUES (?, ?)", (server_round, blob))

    def shared_rounds(self) -> set[int]:
        """Return the rounds with a global model."""
        return {row[0] for row in self._database.execute("SELECT round FROM shared")}

    def drop_shared(self, rounds: Iterable[int]) -> None:
        """Delete the global models of these rounds."""
        self._database.executemany("DELETE FROM shared WHERE round = ?", [(r,) for r in rounds])


def model_of(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors that a client predicts with, without those that only training needs."""
    return {name: value for name, value in tensors.items() if name.startswith(_MODEL_GROUPS)}


def node_folders(run: Path) -> list[Path]:
    """Return the folders in a simulation's folder that hold the state of nodes with kept models.

    Raises `FedProtoError` if there is none.
    """
    if not run.is_dir():
        raise FedProtoError(f"{run}: no such folder")
    folders = [path for path in sorted((run / "state").glob("*")) if holds_kept_models(path)]
    if not folders and (run / FILE_NAME).exists():
        raise FedProtoError(f"{run}: the state of a node; name it with --state")
    if not folders and (run / "settings.toml").exists():
        raise FedProtoError(f"{run}: no client has a model yet; has the run ended?")
    if not folders:
        raise FedProtoError(
            f"{run}: no nodes' state in it; expected the folder of a simulation (deployed sites "
            "keep their own state)"
        )
    return folders


def holds_kept_models(folder: Path) -> bool:
    """Return whether the folder has the state of a node with a kept model."""
    if not (folder / FILE_NAME).exists():
        return False
    with StateFile(folder).reading() as tables:
        return bool(tables.records())


def _loaded(blob: bytes) -> Tensors:
    """Return the tensors in a blob of safetensors. Other bytes raise `SafetensorError`."""
    _header(blob)
    return safetensors.torch.load(blob)


class _Stack:
    """Blobs of the same layout, one row each."""

    def __init__(self, blob: bytes, capacity: int) -> None:
        first = _loaded(blob)
        spans, self._size = _spans(blob), len(blob)
        if any(spans[name].start % value.element_size() for name, value in first.items()):
            raise SafetensorError("its tensors are not aligned")
        self._layout = {name: (v.dtype, v.shape, spans[name]) for name, v in first.items()}
        # Rows start at multiples of 8 bytes, so that numbers of any type can be viewed in place.
        self._rows, self._count = (
            torch.empty((capacity, -(-len(blob) // 8) * 8), dtype=torch.uint8),
            0,
        )

    def append(self, blob: bytes) -> None:
        if len(blob) != self._size:
            raise SafetensorError(f"{len(blob)} bytes instead of {self._size}")
        self._rows.numpy()[self._count, : self._size] = np.frombuffer(blob, np.uint8)
        self._count += 1

    def tensors(self) -> Tensors:
        """Return the values [n, …] as views of the rows."""
        rows = self._rows[: self._count]
        return {
            name: rows[:, span].view(dtype).view(self._count, *shape)
            for name, (dtype, shape, span) in self._layout.items()
        }


def _blobs(count: int, tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """Yield a blob of safetensors for each of `count` clients.

    All blobs have the same layout, so safetensors is needed only for the first client's tensors.
    """
    first = safetensors.torch.save({n: v[0].cpu().contiguous() for n, v in tensors.items()})
    header, spans = _header(first), _spans(first)
    capacity = min(count, 1 + _BUFFER_BYTES // len(first))
    rows = torch.empty((capacity, len(first)), dtype=torch.uint8)
    rows[:, : len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    for start in range(0, count, capacity):
        size = min(capacity, count - start)
        for name, span in spans.items():
            values = tensors[name][start : start + size].cpu()
            values = values.reshape(size, values[0].numel())
            if values.stride(1) != 1:  # a view as bytes needs contiguous values
                values = values.clone(memory_format=torch.contiguous_format)
            rows[:size, span] = values.view(torch.uint8)
        for row in rows[:size].numpy():
            yield memoryview(row)


def _header(blob: bytes) -> bytes:
    """Return the length and the JSON text at the start of a blob of safetensors."""
    if not isinstance(blob, bytes):
        raise SafetensorError(f"a {type(blob).__name__} instead of tensors")
    return blob[: 8 + int.from_bytes(blob[:8], "little")]


def _spans(blob: bytes) -> dict[str, slice]:
    """Return where the bytes of each tensor lie in a blob of safetensors."""
    header = _header(blob)
    offsets = {name: entry["data_offsets"] for name, entry in json.loads(header[8:]).items()}
    return {
        name: slice(len(header) + first, len(header) + end)
        for name, (first, end) in offsets.items()
    }


def _empty() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", isolation_level=None)
    _create(database)
    return database


def _create(database: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";")[:-1]:
        database.execute(statement)
    database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {_FORMAT}")


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into messages of one line that say what is wrong with the file."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_FULL":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ")):
            raise _damaged(path, error) from None
        if "LOCK" in name or name.startswith(("SQLITE_BUSY", "SQLITE_PROTOCOL")):
            raise FedProtoError(
                f"{path}: could not be locked ({error}); another process holds it, or it lies on a "
                "network disk, where SQLite's locks do not work; keep state on a local disk"
            ) from None
        raise FedProtoError(f"{path}: cannot be read or written: {error} ({name})") from None
    except SafetensorError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> FedProtoError:
    return FedProtoError(
        f"{path}: is damaged or of another program ({error}); restore it from a backup, or "
        "remove it, and its clients start anew"
    )
