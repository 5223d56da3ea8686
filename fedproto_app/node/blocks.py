"""Blocks of client state: files with the tensors of several clients, a row for each.

A block is a safetensors file of tensors [n, …]; its metadata say whose row is whose, so there is no
index beside the blocks that could disagree with them. Blocks appear whole or not at all and never
change. A row's number is that of the write that it came of: the higher one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.whole_file import flush

STATE, KEPT = "state", "kept"  # all that clients go on from; of kept models what they predict with
PARAMETERS = "parameters"
MEMORY = "memory"  # what the method remembers; it may predict with that, as GLDP does
PERSONAL = "personal"  # a model made of the shared one, to be judged and kept
_MODEL = (PARAMETERS + "/", MEMORY + "/", PERSONAL + "/")
_SUFFIX = ".safetensors"
_ROWS = "rows"  # of the metadata
_BLOCK_BYTES = 2**26  # of rows that are copied together

DAMAGES = (SafetensorError, OSError, ValueError, KeyError, TypeError)  # of files that are read


class Row(NamedTuple):
    """A client's state after a round, and the number of the write that it came of."""

    client: str
    server_round: int
    write: int


@dataclass(eq=False)
class Block:
    """A file of rows. needed: where rows that are still of use stand in it."""

    path: Path
    rows: list[Row]
    size: int
    needed: dict[int, Place] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.path.name.split("-")[0]

    @property
    def is_sparse(self) -> bool:
        """Whether a copy of what is needed of it would take half its space.

        Optimisers keep one or two numbers a parameter, so a model is at most half a state.
        """
        weights = (1.0 if one.whole or self.kind == KEPT else 0.5 for one in self.needed.values())
        return sum(weights) <= len(self.rows) / 2

    def tensors(self) -> dict[str, Tensor]:
        """All its tensors [n, …], mapped from the file; raises one of `DAMAGES`."""
        return read_tensors(self.path)


@dataclass(eq=False)
class Place:
    """Where a row is. whole: whether training can go on from it, or it is a model alone."""

    row: Row
    block: Block
    at: int
    whole: bool


class Rows(NamedTuple):
    """Some rows of tensors [n, …]; `at` says which."""

    rows: list[Row]
    tensors: Mapping[str, Tensor]
    at: list[int]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(v[0].nbytes * len(self.at) for v in self.tensors.values())


def rows_of(value: Tensor, at: Sequence[int]) -> Tensor:
    """Rows of a tensor; neighbours are not copied."""
    if list(at) == list(range(at[0], at[0] + len(at))):
        return value[at[0] : at[0] + len(at)]
    return value[list(at)]


def model_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what only training needs."""
    return {name: value for name, value in tensors.items() if name.startswith(_MODEL)}


def joined(parts: Iterable[Rows]) -> Iterator[tuple[list[Row], dict[str, Tensor]]]:
    """The rows with their tensors copied together: blocks of rows of the same names and shapes."""
    alike: dict[object, list[Rows]] = {}
    for part in parts:
        shapes = {name: (value.dtype, value.shape[1:]) for name, value in part.tensors.items()}
        kind = tuple(sorted(shapes.items(), key=lambda one: one[0]))
        some = alike.setdefault(kind, [])
        some.append(part)
        if sum(one.size for one in some) >= _BLOCK_BYTES:
            yield _joined(alike.pop(kind))
    yield from map(_joined, alike.values())


def _joined(parts: list[Rows]) -> tuple[list[Row], dict[str, Tensor]]:
    names = parts[0].tensors
    return [row for part in parts for row in part.rows], {
        name: torch.cat([rows_of(part.tensors[name], part.at).cpu() for part in parts])
        for name in names
    }


def write_block(
    folder: Path,
    kind: str,
    rows: list[Row],
    tensors: Mapping[str, Tensor],
    number: int,
    writer: int,
    *,
    durable: bool = False,
) -> Block:
    """Write a block whole or not at all; raises OSError, and then leaves nothing behind.

    number, writer: make the file's name its own. durable: return when it is on the disk.
    """
    newest = max(row.server_round for row in rows)
    path = folder / f"{kind}-{newest:06d}-{number:06d}-{writer}{_SUFFIX}"
    write_tensors(path, tensors, f".{writer}.new", {_ROWS: json.dumps(rows)}, durable=durable)
    return Block(path, rows, path.stat().st_size)


def read_block(path: Path) -> Block:
    """The block of this file, without its tensors; raises one of `DAMAGES`."""
    require_access(path)
    # Not "pt": torch would open the file a second time, when it may be gone.
    with safe_open(path, framework="np") as file:
        rows = [Row(str(c), int(r), int(n)) for c, r, n in json.loads(file.metadata()[_ROWS])]
    return Block(path, rows, path.stat().st_size)


def blocks_in(folder: Path) -> list[Path]:
    """The files of blocks, those of earlier writes first."""
    files = [*folder.glob(f"{STATE}-*{_SUFFIX}"), *folder.glob(f"{KEPT}-*{_SUFFIX}")]
    return sorted(files, key=number_of)


def round_of(path: Path) -> int:
    """The newest round that anything in this file is of."""
    return int(path.name.split("-")[1])


def number_of(path: Path) -> int:
    """The number of the write that made this file."""
    return int(path.name.split("-")[2])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, mapped from it; raises one of `DAMAGES`."""
    require_access(path)
    try:
        return load_file(path)
    except RuntimeError as error:  # torch's own, of a file that went after its header was read
        if path.exists():
            raise
        raise FileNotFoundError(str(path)) from error


def require_access(path: Path) -> None:
    """Raises `FedProtoError` if the file is there and cannot be opened; then it is not damaged.

    For safetensors all files that it cannot open are missing ones.
    """
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FedProtoError(f"cannot read its state: {error.strerror}: {path}") from None


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    mark: str,
    metadata: dict[str, str] | None = None,
    *,
    durable: bool = False,
) -> None:
    """Write the file whole or not at all; raises OSError, and then leaves nothing behind."""
    beside = path.with_name(path.name + mark)
    try:
        save_file({n: v.contiguous().cpu() for n, v in tensors.items()}, beside, metadata)
        if durable:
            flush(beside)
        os.replace(beside, path)
        if durable:
            flush(path.parent)
    except SafetensorError as error:  # what a full disk comes as
        beside.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be written: {error}") from None
    except OSError:
        beside.unlink(missing_ok=True)
        raise
