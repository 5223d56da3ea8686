"""Labelled sequences as arrays of one npz archive, without pickled objects.

Sequences of any lengths lie one after the other:

- points: [P, d] numbers; offsets: [n + 1] integers: sequence i is points[offsets[i] :
  offsets[i + 1]].
- label: [n]. subject or client: [n] texts or integers, optional, whose sequence it is.
- group: [n] texts or integers, optional, the true group of that client. flagged is not read.

Sequences of one length are x [n, T, d] and y [n], with client and group as above; or x_train,
y_train, x_test and y_test, with client_train and client_test, group_train and group_test.

Integers or texts as labels are classes, in ascending order; real numbers are targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.npz_archive import array, column, column_of, opened, require_names
from fedproto_app.data.sequences.pool import (
    SequencePool,
    Targets,
    float32_steps,
    numbered_dimensions,
)
from fedproto_app.settings import DataSettings

_ONE = ("x", "y", "client", "group")
_SPLITS = ("_train", "_test")
# The arrays of a layout, those that must be there first.
_LAYOUTS = {
    "points": (("points", "offsets", "label"), ("subject", "client", "group", "flagged")),
    "x": (_ONE[:2], _ONE[2:]),
    "x_train": (
        tuple(name + split for split in _SPLITS for name in _ONE[:2]),
        tuple(name + split for split in _SPLITS for name in _ONE[2:]),
    ),
}


@dataclass(frozen=True)
class Part:
    """The sequences of a whole archive or of one split. labels, clients and groups: [n]."""

    sequences: list[NDArray[np.float32]]
    labels: NDArray[Any]
    clients: NDArray[np.str_] | None
    groups: NDArray[np.str_] | None


def load_sequence_npz(settings: DataSettings) -> SequencePool:
    """The pool of an archive; which of the layouts it has is told by its arrays."""
    path = Path(settings.path)
    with path.open("rb") as file, opened(file, path) as archive:
        layout = _layout(archive, path)
        if layout == "points":
            client = "subject" if "subject" in archive.files else "client"
            parts = [_part(archive, _pieces(archive, path), "label", client, "group", path)]
        else:
            suffixes = ("",) if layout == "x" else _SPLITS
            parts = [
                _part(
                    archive, _rows(archive, f"x{s}", path), f"y{s}", f"client{s}", f"group{s}", path
                )
                for s in suffixes
            ]
    classes, targets = _targets([part.labels for part in parts], path)
    clients = _joined([part.clients for part in parts], "client", path)
    groups = _joined([part.groups for part in parts], "group", path)
    sequences = [one for part in parts for one in part.sequences]
    is_test = np.arange(len(sequences)) >= len(parts[0].sequences) if len(parts) == 2 else None
    return SequencePool(
        numbered_dimensions(sequences[0].shape[1]),
        classes,
        sequences,
        targets,
        clients,
        _group_of(clients, groups, path),
        is_test,
    )


def _layout(archive: NpzFile, path: Path) -> str:
    """The name of the first array of the layout."""
    found = [name for name in _LAYOUTS if name in archive.files]
    if len(found) != 1:
        raise DataError(
            f"{path}: expected one of the arrays {', '.join(_LAYOUTS)}, found "
            f"{', '.join(archive.files) or 'none'}"
        )
    needed, optional = _LAYOUTS[found[0]]
    require_names(archive, needed, optional, path)
    if {"subject", "client"} <= set(archive.files):
        raise DataError(f"{path}: both 'subject' and 'client'; one of them says whose it is")
    return found[0]


def _part(
    archive: NpzFile,
    sequences: list[NDArray[np.float32]],
    label: str,
    client: str,
    group: str,
    path: Path,
) -> Part:
    labels, clients, groups = (
        column_of(archive, name, kinds, len(sequences), "sequences", path)
        for name, kinds in ((label, "iufU"), (client, "iuU"), (group, "iuU"))
    )
    assert labels is not None  # the layout has it
    return Part(
        sequences,
        labels,
        None if clients is None else clients.astype(np.str_),
        None if groups is None else groups.astype(np.str_),
    )


def _pieces(archive: NpzFile, path: Path) -> list[NDArray[np.float32]]:
    """The pieces of `points` between the offsets."""
    points = _numbers(archive, "points", "[P, d]", 2, path)
    offsets = column(archive, "offsets", "iu", path).astype(np.int64)
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(points):
        raise DataError(
            f"{path}: array 'offsets' must begin with 0 and end with {len(points)}, the number of "
            "points"
        )
    if (lengths := np.diff(offsets)).min() < 1:
        empty = int(np.argmax(lengths < 1))
        raise DataError(f"{path}: array 'offsets': sequence {empty} has {lengths[empty]} points")
    return np.split(points, offsets[1:-1])


def _rows(archive: NpzFile, name: str, path: Path) -> list[NDArray[np.float32]]:
    return list(_numbers(archive, name, "[n, T, d]", 3, path))


def _numbers(
    archive: NpzFile, name: str, wanted: str, axes: int, path: Path
) -> NDArray[np.float32]:
    numbers = array(archive, name, path)
    if numbers.dtype.kind not in "iuf":
        raise DataError(f"{path}: array {name!r} holds {numbers.dtype}, expected numbers")
    if numbers.ndim != axes or min(numbers.shape) < 1:
        raise DataError(f"{path}: array {name!r} has shape {numbers.shape}, expected {wanted}")
    return float32_steps(numbers)


def _targets(labels: Sequence[NDArray[Any]], path: Path) -> tuple[tuple[str, ...], Targets]:
    """The classes, () for real numbers; and [n] each sequence's class or number."""
    kinds = {"integers" if one.dtype.kind in "iu" else one.dtype.kind for one in labels}
    if len(kinds) > 1:
        raise DataError(f"{path}: y_train holds {labels[0].dtype}, y_test {labels[1].dtype}")
    values = np.concatenate(labels)
    if kinds == {"f"}:
        return (), values.astype(np.float64)
    names, targets = np.unique(values, return_inverse=True)
    return tuple(str(name) for name in names), targets


def _joined(
    parts: Sequence[NDArray[np.str_] | None], what: str, path: Path
) -> NDArray[np.str_] | None:
    given = [part for part in parts if part is not None]
    if given and len(given) != len(parts):
        raise DataError(f"{path}: {what}_train or {what}_test alone; both splits need it or none")
    return np.concatenate(given) if given else None


def _group_of(
    clients: NDArray[np.str_] | None, groups: NDArray[np.str_] | None, path: Path
) -> dict[str, str]:
    """The group of each client."""
    if groups is None:
        return {}
    if clients is None:
        raise DataError(f"{path}: groups are of clients, but there is no array of clients")
    found: dict[str, str] = {}
    for client, group in zip(clients.tolist(), groups.tolist(), strict=True):
        if found.setdefault(client, group) != group:
            raise DataError(
                f"{path}: client {client!r} is in the groups {found[client]!r}, {group!r}"
            )
    return found
