"""A node's client state in memory, written to its disk with each checkpoint.

Clients whose states are written together stay together, as one copy of each tensor. At any time the
disk holds the clients' states after one round, which are read as any other `ClientStore`'s. States
that do not all fit into the memory allowed go to the disk at once and are read from there. States
that all fit beside the cohorts on a GPU stay there, and come over only to be written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from fedproto_app.node.blocks import Row, Rows, model_of, rows_of
from fedproto_app.node.records import ClientRecord
from fedproto_app.node.state_log import BACK, Found
from fedproto_app.node.store import ClientStore

Tensors = dict[str, Tensor]


@dataclass(eq=False)
class _Held:
    """States [n, …] in memory, after a round.

    newest: the rows that are their clients' newest states. kept: those that are kept models, and
    not on the disk yet.
    """

    server_round: int
    tensors: Tensors
    newest: dict[int, str] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Of this machine's memory, without a GPU's."""
        return sum(value.nbytes for value in self.tensors.values() if value.device.type == "cpu")

    @property
    def count(self) -> int:
        return len(next(iter(self.tensors.values())))

    def of(self, rows: Sequence[int]) -> Tensors:
        """The tensors of these rows."""
        return {name: rows_of(value, rows) for name, value in self.tensors.items()}

    def rows(self, named: Mapping[int, str]) -> Rows:
        """The models in some of its rows."""
        rows = [Row(client, self.server_round, 0) for client in named.values()]
        return Rows(rows, model_of(self.tensors), list(named))


class MemoryStore(ClientStore):
    """A `ClientStore` that writes states and kept models late."""

    def __init__(
        self, folder: Path, limit: int, clients: int = 0, writer: int = 0, room: int = 0
    ) -> None:
        """limit: bytes of states that may wait in memory. clients: whose states will come.
        room: bytes of states that may stay on the device that they come from."""
        super().__init__(folder, writer)
        self._limit, self._clients, self._room = limit, clients, room
        self._size = 0  # bytes of what is held
        self._newest: dict[str, tuple[_Held, int]] = {}
        self._kept: dict[str, tuple[_Held, int]] = {}
        self._unwritten: set[str] = set()  # clients whose newest state is not on the disk
        self._shared: dict[int, Tensors] = {}  # by round

    def begin(self, server_round: int) -> None:
        marks = self._marks or [server_round - 1]  # which the server resumed from
        super().begin(server_round)
        self._marks = marks

    def settle(self) -> None:
        """Nothing is written yet."""

    def flush(self) -> None:
        """Write everything that waits: the server is about to write its checkpoint."""
        if self._round not in self._marks:
            self._marks = [self._round, *self._marks][:BACK]
        self._write_all()
        self._records.write(self._round)

    def read_states(self, clients: Sequence[str], upto: int) -> list[Found]:
        here: dict[_Held, list[tuple[int, int]]] = {}
        elsewhere = []
        for number, client in enumerate(clients):
            held, row = self._newest.get(client, (None, 0))
            if held and held.server_round <= upto:
                here.setdefault(held, []).append((number, row))
            else:
                elsewhere.append(number)
        found = []
        for held, pairs in here.items():
            states = held.of([row for _, row in pairs])
            found.append(Found([number for number, _ in pairs], states))
        for places, tensors in super().read_states([clients[one] for one in elsewhere], upto):
            found.append(Found([elsewhere[one] for one in places], tensors))
        return found

    def write_states(
        self, clients: Sequence[str], server_round: int, tensors: Mapping[str, Tensor]
    ) -> None:
        before = set()
        for client in clients:
            if client in self._newest:
                old, row = self._newest.pop(client)
                del old.newest[row]
                before.add(old)
        whole = sum(value.nbytes for value in tensors.values()) * self._clients
        if 0 < whole <= self._room * len(clients):
            self._hold(clients, server_round, _copied_there(tensors))
        elif whole <= self._limit * len(clients):
            self._hold(clients, server_round, _copied(tensors))
        else:
            self._unwritten -= set(clients)
            super().write_states(clients, server_round, tensors)
        for old in before:
            self._thin_out(old)
        if self._size > self._limit:
            self._write_all()
            self._newest, self._size = {}, 0

    def write_shared(self, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        rounds = self._records.all_rounds(self._marks)
        self._shared = {one: model for one, model in self._shared.items() if one in rounds}
        self._shared[server_round] = _copied(tensors)

    def read_shared(self, server_round: int) -> Tensors:
        return self._shared.get(server_round) or super().read_shared(server_round)

    def keep(self, client: str, record: ClientRecord) -> None:
        super().keep(client, record)
        if client in self._kept:
            old, row = self._kept.pop(client)
            del old.kept[row]
            if not old.kept and not old.newest:
                self._size -= old.size
        if client in self._unwritten:
            held, row = self._kept[client] = self._newest[client]
            held.kept[row] = client

    def _hold(self, clients: Sequence[str], server_round: int, tensors: Tensors) -> None:
        held = _Held(server_round, tensors, dict(enumerate(clients)))
        self._size += held.size
        self._newest |= {client: (held, row) for row, client in enumerate(clients)}
        self._unwritten |= set(clients)

    def _thin_out(self, held: _Held) -> None:
        """Copy what is still of use of these states, if it is little, and let go of the others."""
        if 2 * len(held.newest) > held.count:
            return
        self._size -= held.size
        models = [row for row in held.kept if row not in held.newest]
        self._move(held, list(held.newest), held.tensors)
        self._move(held, models, model_of(held.tensors))

    def _move(self, old: _Held, rows: list[int], tensors: Tensors) -> None:
        if not rows:
            return
        held = _Held(old.server_round, {name: value[rows] for name, value in tensors.items()})
        self._size += held.size
        for at, row in enumerate(rows):
            if row in old.newest:
                held.newest[at] = old.newest[row]
                self._newest[old.newest[row]] = (held, at)
            if row in old.kept:
                held.kept[at] = old.kept[row]
                self._kept[old.kept[row]] = (held, at)

    def _write_all(self) -> None:
        """Write what waits, kept models first, so that no state takes the place of one."""
        models = []
        for held in {held: None for held, _ in self._kept.values()}:
            its = {row: client for row, client in held.kept.items() if row not in held.newest}
            if its:
                models.append(held.rows(its))
        self._log.write_models(models)
        for server_round in sorted(self._records.all_rounds(self._marks) & self._shared.keys()):
            super().write_shared(server_round, self._shared[server_round])
        for held in {self._newest[client][0]: None for client in sorted(self._unwritten)}:
            its = {row: one for row, one in held.newest.items() if one in self._unwritten}
            super().write_states(list(its.values()), held.server_round, held.of(list(its)))
        for held, _ in self._kept.values():
            if not held.newest and held.kept:
                self._size -= held.size
            held.kept.clear()
        self._kept, self._unwritten = {}, set()


def _copied(tensors: Mapping[str, Tensor]) -> Tensors:
    """A copy that later training does not change."""
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def _copied_there(tensors: Mapping[str, Tensor]) -> Tensors:
    """A copy on the device that each is on, or here if that has no memory left."""
    try:
        return {name: value.detach().clone() for name, value in tensors.items()}
    except torch.OutOfMemoryError:
        return _copied(tensors)
