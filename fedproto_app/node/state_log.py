"""The states of a node's clients, in blocks that are written one behind the other.

Clients whose states are written together share a block, whoever they are that time. A write for a
round replaces what there was of its clients for that round, and for later ones: the server has gone
back and does those anew. A block is deleted when none of its rows is needed. Where few are, they
are copied into a new block with those of other such blocks; of a kept model that nothing else needs
only what it predicts with. So neither many small files nor many unused rows remain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from fedproto_app.node.blocks import (
    DAMAGES,
    KEPT,
    STATE,
    Block,
    Place,
    Row,
    Rows,
    blocks_in,
    joined,
    model_of,
    number_of,
    read_block,
    round_of,
    rows_of,
    write_block,
)

BACK = 3  # rounds that the server may go on from: its newest two, and the one that it does not know
_SPARSE_BLOCKS, _SPARSE_BYTES = 64, 2**28  # that may wait to be copied together

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """States of some of the clients asked for: where these stand in the question; [n, …] each."""

    places: list[int]
    tensors: dict[str, Tensor]


def needed(rounds: Sequence[int], marks: Sequence[int], at_least: int) -> set[int]:
    """Which versions of something to keep, by their rounds, newest first.

    marks: the rounds that the server may go on from, newest first: it then needs the newest version
    up to there. Where fewer than `BACK` are known, those before the oldest may be needed too.
    """
    wanted = set(rounds[:at_least])
    for mark in marks:
        wanted |= set([one for one in rounds if one <= mark][:1])
    if len(marks) < BACK:
        wanted |= set([one for one in rounds if not marks or one <= marks[-1]][:BACK])
    return wanted


class StateLog:
    """The blocks in a folder. writer: the number of the process among the node's.

    It knows what was there when it was first used and what it wrote itself. Others may write at the
    same time, for clients of their own.
    """

    def __init__(self, folder: Path, writer: int) -> None:
        self._folder, self._writer = folder, writer
        self._places: dict[str, list[Place]] = {}
        self._next = 0  # number of a write; 0: the folder has not been looked at yet
        self._touched: set[Block] = set()  # of which less is needed than at the last sweep
        self._sparse: set[Block] = set()
        self._swept = False
        self._damaged: list[int] = []  # rounds of blocks that cannot be read

    def read(self, clients: Sequence[str], upto: int) -> list[Found]:
        """The clients' newest readable states of rounds ≤ `upto`, block by block."""
        self._look()
        while True:
            chosen: dict[Block, list[tuple[int, int]]] = {}
            for number, client in enumerate(clients):
                if place := self._newest(client, upto):
                    chosen.setdefault(place.block, []).append((number, place.at))
            found = []
            for block, pairs in chosen.items():
                tensors = self._tensors(block)
                if tensors is None:
                    break  # the clients' states before it
                places, at = [number for number, _ in pairs], [at for _, at in pairs]
                found.append(Found(places, {n: rows_of(v, at) for n, v in tensors.items()}))
            else:
                return found

    def read_model(self, client: str, upto: int) -> dict[str, Tensor]:
        """The client's newest model up to a round, empty if there is none; raises `DAMAGES`.

        Never an older one in its place: a file that cannot be read may have had a newer one.
        """
        self._look()
        its = [one for one in self._places.get(client, []) if one.row.server_round <= upto]
        place = max(its, key=lambda one: one.row[1:], default=None)
        found = place.row.server_round if place else 0
        if found < upto and max(self._damaged, default=0) > found:
            raise SafetensorError("the file that may hold it cannot be read")
        if place is None:
            return {}
        try:
            return {name: value[place.at] for name, value in place.block.tensors().items()}
        except FileNotFoundError:  # another process has moved its rows
            self._next = 0
            return self.read_model(client, upto)

    def write(
        self, clients: Sequence[str], server_round: int, tensors: Mapping[str, Tensor]
    ) -> None:
        """Add the clients' states [n, …] after a round."""
        number = self._number()
        rows = [Row(client, server_round, number) for client in clients]
        self._add(write_block(self._folder, STATE, rows, tensors, number, self._writer))

    def write_models(self, parts: Iterable[Rows]) -> None:
        """Add kept models; their rows get the number of this write."""
        for rows, models in joined(parts):
            number = self._number()
            numbered = [Row(row.client, row.server_round, number) for row in rows]
            self._add(write_block(self._folder, KEPT, numbered, models, number, self._writer))

    def sweep(
        self,
        clients: Iterable[str],
        marks: Sequence[int],
        kept_rounds: Callable[[str, Sequence[int]], Iterable[int]],
    ) -> None:
        """Drop what is not needed of these clients; at first, of all.

        marks: see `needed`. kept_rounds: of a client's kept models, by these.
        """
        for client in clients if self._swept else list(self._places):
            self._sweep_client(client, marks, kept_rounds(client, marks))
        self._swept = True
        touched, self._touched = self._touched, set()
        for block in touched:
            if not block.needed:
                self._sparse.discard(block)
                block.path.unlink(missing_ok=True)
            elif block.is_sparse:
                self._sparse.add(block)
        size = sum(block.size for block in self._sparse)
        if len(self._sparse) >= _SPARSE_BLOCKS or size >= _SPARSE_BYTES:
            self._join_sparse()

    def _sweep_client(self, client: str, marks: Sequence[int], kept_rounds: Iterable[int]) -> None:
        places = sorted(self._places.get(client, []), key=lambda one: one.row[1:], reverse=True)
        rounds = needed([one.row.server_round for one in places if one.whole], marks, at_least=2)
        models = {self._kept_place(places, kept) for kept in kept_rounds}
        self._places[client] = []
        for place in places:
            whole = place.whole and place.row.server_round in rounds
            if whole != place.whole:
                self._touched.add(place.block)
            if whole or place in models:
                place.whole = whole
                self._places[client].append(place)
            else:
                self._drop(place)

    def _drop(self, place: Place) -> None:
        del place.block.needed[place.at]
        self._touched.add(place.block)

    @staticmethod
    def _kept_place(places: Sequence[Place], kept: int) -> Place | None:
        """Of a client's places, newest first, that of its model up to a round; best a copy."""
        its = [one for one in places if one.row.server_round <= kept]
        same = [one for one in its if one.row == its[0].row]
        return min(same, key=lambda one: one.whole, default=None)

    def _join_sparse(self) -> None:
        """Copy what is needed of the sparse blocks into few, and delete them."""
        sparse, known = sorted(self._sparse, key=lambda one: one.path), self._places
        self._sparse = set()
        read = {block: tensors for block in sparse if (tensors := self._tensors(block))}
        if self._places is not known:
            return  # another process has moved some of it, so all was looked at again
        for kind in (STATE, KEPT):
            moving, parts = dict[Row, Place](), []
            for block, tensors in read.items():
                its = [one for one in block.needed.values() if one.whole == (kind == STATE)]
                moving |= {one.row: one for one in its}
                values = tensors if kind == STATE else model_of(tensors)
                if its:
                    parts.append(Rows([one.row for one in its], values, [one.at for one in its]))
            for rows, values in joined(parts):
                number = self._number()
                block = write_block(
                    self._folder, kind, rows, values, number, self._writer, durable=True
                )
                for at, row in enumerate(rows):
                    block.needed[at] = moving[row]
                    moving[row].block, moving[row].at = block, at
        for block in read:
            block.path.unlink(missing_ok=True)

    def _newest(self, client: str, upto: int) -> Place | None:
        its = [
            one
            for one in self._places.get(client, [])
            if one.whole and one.row.server_round <= upto
        ]
        return max(its, key=lambda one: one.row[1:], default=None)

    def _tensors(self, block: Block) -> dict[str, Tensor] | None:
        """The block's tensors; None, and the block forgotten, if they cannot be read."""
        try:
            return block.tensors()
        except FileNotFoundError:  # another process has moved its rows
            self._next = 0
            self._look()
        except DAMAGES as error:
            self._lose(block.path, error)
            for place in block.needed.values():
                self._places[place.row.client].remove(place)
            block.needed.clear()
        self._sparse.discard(block)
        return None

    def _lose(self, path: Path, error: Exception) -> None:
        _log.warning("%s is damaged (%s): the states before it are used", path, error)
        self._damaged.append(round_of(path))

    def _number(self) -> int:
        """The next write's."""
        self._look()
        self._next += 1
        return self._next - 1

    def _look(self) -> None:
        """Learn what is in the folder, once."""
        if self._next:
            return
        self._places, self._swept = {}, False
        self._touched, self._sparse, self._damaged = set(), set(), []
        blocks = self._blocks()
        found = [(row, block, at) for block in blocks for at, row in enumerate(block.rows)]
        found.sort(key=lambda one: (one[0].write, number_of(one[1].path), one[1].path))
        for row, block, at in found:
            self._add_row(Place(row, block, at, whole=block.kind == STATE))

    def _blocks(self) -> list[Block]:
        """All that can be read in the folder, and what others write there meanwhile."""
        read = dict[Path, Block | None]()
        while new := [path for path in blocks_in(self._folder) if path not in read]:
            for path in new:
                read[path] = None
                try:
                    read[path] = read_block(path)
                except FileNotFoundError:  # its rows were moved, to where the next look finds them
                    continue
                except DAMAGES as error:
                    self._lose(path, error)
        self._next = 1 + max(map(number_of, read), default=0)
        return [block for block in read.values() if block]

    def _add(self, block: Block) -> None:
        whole = block.kind == STATE
        for at, row in enumerate(block.rows):
            self._add_row(Place(row, block, at, whole))

    def _add_row(self, place: Place) -> None:
        its, row = self._places.setdefault(place.row.client, []), place.row
        for one in list(its):  # of a row and its copy the copy stays: who made it deletes the row
            if one.row == row and one.whole == place.whole:
                its.remove(one)
                self._drop(one)
        if place.whole:
            for one in list(its):
                if one.row.write < row.write and one.row.server_round >= row.server_round:
                    its.remove(one)
                    self._drop(one)
        its.append(place)
        place.block.needed[place.at] = place
