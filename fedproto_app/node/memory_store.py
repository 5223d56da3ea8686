"""A node's client state in memory, written to its disk with each checkpoint.

At any time the disk holds the clients' states after one round, which are read as any other
`ClientStore`'s. States that take more memory than allowed go to the disk earlier and are read from
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedproto_app.node.store import ClientRecord, ClientStore

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class _Versioned:
    """Tensors, and the round that they are of."""

    server_round: int
    tensors: Tensors

    @property
    def size(self) -> int:
        return sum(value.nbytes for value in self.tensors.values())


@dataclass(frozen=True)
class _Kept:
    """A kept model that is not on the disk yet; None: its state, or its shared part, is there."""

    record: ClientRecord
    state: _Versioned | None
    shared: _Versioned | None


class MemoryStore(ClientStore):
    """A `ClientStore` that writes states and kept models late.

    A flush may write two states of a client, the kept model's and the newest, so more stay.
    """

    versions = 2 * ClientStore.versions

    def __init__(self, folder: Path, limit: int, writer: int = 0) -> None:
        """limit: bytes of states that may wait in memory."""
        super().__init__(folder, writer)
        self._limit, self._size = limit, 0
        self._states: dict[str, _Versioned] = {}
        self._unwritten: set[str] = set()  # clients whose state here is newer than the disk's
        self._shared: _Versioned | None = None
        self._kept: dict[str, _Kept] = {}

    def read_state(self, client: str, upto: int) -> Tensors | None:
        here = self._states.get(client)
        if here and here.server_round <= upto:
            return here.tensors
        return super().read_state(client, upto)

    def write_state(self, client: str, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        before, now = self._states.get(client), _copied(server_round, tensors)
        self._size += now.size - (before.size if before else 0)
        self._states[client] = now
        self._unwritten.add(client)
        if self._size > self._limit:
            self.flush()
            self._states, self._size = {}, 0

    def write_shared(self, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        self._shared = _copied(server_round, tensors)

    def read_shared(self, server_round: int) -> Tensors:
        if self._shared and self._shared.server_round == server_round:
            return self._shared.tensors
        return super().read_shared(server_round)

    def record(self, client: str, before: int | None = None) -> ClientRecord:
        here = self._kept.get(client)
        if here and (before is None or here.record.kept_round < before):
            return here.record
        return super().record(client, before)

    def keep(self, client: str, record: ClientRecord) -> None:
        state, shared = self._states.get(client), self._shared
        self._kept[client] = _Kept(
            record,
            state if client in self._unwritten else None,
            shared if shared and shared.server_round == record.kept_round else None,
        )

    def flush(self) -> None:
        """Write everything that waits, kept models first, so that nothing drops them."""
        by_round = sorted(self._kept.items(), key=lambda item: item[1].record.kept_round)
        written = None
        for client, kept in by_round:
            if kept.shared and kept.shared is not written:
                super().write_shared(kept.shared.server_round, kept.shared.tensors)
                written = kept.shared
            if kept.state:
                super().write_state(client, kept.state.server_round, kept.state.tensors)
            super().keep(client, kept.record)
        for client in sorted(self._unwritten):
            state, kept_one = self._states[client], self._kept.get(client)
            if kept_one is None or kept_one.state is not state:
                super().write_state(client, state.server_round, state.tensors)
        self._kept, self._unwritten = {}, set()


def _copied(server_round: int, tensors: Mapping[str, Tensor]) -> _Versioned:
    """A copy that later training does not change."""
    copies = {name: value.detach().cpu().clone() for name, value in tensors.items()}
    return _Versioned(server_round, copies)
