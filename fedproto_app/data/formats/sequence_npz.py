"""Read labelled sequences from arrays of an npz archive, without pickled objects.

Sequences of any lengths are stored one after the other:

- points: [P, d] numbers. offsets: [n + 1] integers. Sequence i is points[offsets[i] :
  offsets[i + 1]].
- label: [n]. subject or client: [n] texts or integers, optional, the client of each sequence.
- group: [n] texts or integers, optional, the true group of that client. flagged: not read.

Sequences of equal length are stored as x [n, T, d] and y [n], with client and group as above. With
one value a step, x may be [n, T]. Or they are x_train, y_train, x_test and y_test, with
client_train and client_test, group_train and group_test.

In every layout, dimensions may hold d texts: the names of a step's values.

If labels are integers or texts, each is a class, in ascending order. Real numbers are targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import Answers, Candidate, Fit, Format, Reading, Source
from fedproto_app.data.npz_archive import Archive, Array, open_archive
from fedproto_app.data.sequences.pool import (
    SequencePool,
    Targets,
    float32_steps,
    numbered_dimensions,
)
from fedproto_app.settings import DataSettings

_ARRAYS = ("x", "y", "client", "group")
_SPLITS = ("_train", "_test")
_NAMES = "dimensions"
# For each layout, the required and the optional arrays.
_LAYOUTS = {
    "points": (("points", "offsets", "label"), ("subject", "client", "group", "flagged", _NAMES)),
    "x": (_ARRAYS[:2], (*_ARRAYS[2:], _NAMES)),
    "x_train": (
        tuple(name + split for split in _SPLITS for name in _ARRAYS[:2]),
        (*(name + split for split in _SPLITS for name in _ARRAYS[2:]), _NAMES),
    ),
}
_NARROWEST_IMAGE = 4  # pixels; if a row has fewer uint8 values, they are a step's dimensions


@dataclass(frozen=True)
class Part:
    """The sequences of an archive or of one split. labels, clients and groups: [n]."""

    sequences: list[NDArray[np.float32]]
    labels: Array
    clients: NDArray[np.str_] | None
    groups: NDArray[np.str_] | None


def load_sequence_npz(settings: DataSettings) -> SequencePool:
    """Return the sequences of an archive. The names of the arrays determine the layout."""
    path = Path(settings.path)
    with open_archive(path) as archive:
        layout = _layout(archive)
        if layout == "points":
            client = "subject" if "subject" in archive.names else "client"
            parts = [_part(archive, _pieces(archive), "label", client, "group")]
        else:
            suffixes = ("",) if layout == "x" else _SPLITS
            parts = [
                _part(archive, _rows(archive, f"x{s}"), f"y{s}", f"client{s}", f"group{s}")
                for s in suffixes
            ]
        names = _dimensions(archive, parts[0].sequences[0].shape[1])
    classes, targets = _targets([part.labels for part in parts], path)
    clients = _joined([part.clients for part in parts])
    groups = _joined([part.groups for part in parts])
    sequences = [sequence for part in parts for sequence in part.sequences]
    is_test = np.arange(len(sequences)) >= len(parts[0].sequences) if len(parts) == 2 else None
    return SequencePool(
        names,
        classes,
        sequences,
        targets,
        clients,
        _group_of(clients, groups, path),
        is_test,
    )


def load_unlabelled(path: Path, dimensions: Sequence[str]) -> list[NDArray[np.float32]]:
    """Return the sequences of an archive with x, or with points and offsets.

    dimensions: the names of a step's values, which the archive must have if it has names.
    """
    with open_archive(path) as archive:
        if "points" in archive.names:
            archive.require_names(["points", "offsets"], archive.names)
            sequences = _pieces(archive)
        else:
            archive.require_names(["x"], archive.names)
            sequences = _rows(archive, "x")
        names = _dimensions(archive, sequences[0].shape[1])
        if dimensions and _NAMES in archive.names and names != tuple(dimensions):
            raise DataError(
                f"{path}: a step's values are {', '.join(names)}, but in training they were "
                f"{', '.join(dimensions)}"
            )
    return sequences


def _layout(archive: Archive) -> str:
    """Return the name of the layout's first array, which identifies it. Refuse missing arrays."""
    layouts = [name for name in _LAYOUTS if name in archive.names]
    if len(layouts) != 1:
        raise DataError(
            f"{archive.path}: expected one of the arrays {', '.join(_LAYOUTS)}, found "
            f"{', '.join(archive.names) or 'none'}"
        )
    archive.require_names(*_LAYOUTS[layouts[0]])
    if {"subject", "client"} <= set(archive.names):
        raise DataError(
            f"{archive.path}: both 'subject' and 'client'; only one of them can name the clients"
        )
    return layouts[0]


def _part(
    archive: Archive, sequences: list[NDArray[np.float32]], label: str, client: str, group: str
) -> Part:
    count, items = len(sequences), "sequences"
    labels = archive.column_of(label, "iufU", count, items)
    assert labels is not None  # the layout has it
    clients, groups = (archive.texts_of(name, count, items) for name in (client, group))
    return Part(sequences, labels, clients, groups)


def _dimensions(archive: Archive, count: int) -> tuple[str, ...]:
    names = archive.column_of(_NAMES, "U", count, "values a step")
    return numbered_dimensions(count) if names is None else tuple(names.tolist())


def _pieces(archive: Archive) -> list[NDArray[np.float32]]:
    """Return the pieces of `points` between the offsets."""
    points = _numbers(archive, "points", "[P, d]", 2)
    offsets = archive.column("offsets", "iu").astype(np.int64)
    where = f"{archive.path}: array 'offsets'"
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(points):
        raise DataError(
            f"{where} must begin with 0 and end with {len(points)}, the number of points"
        )
    if (lengths := np.diff(offsets)).min() < 1:
        empty = int(np.argmax(lengths < 1))
        raise DataError(f"{where}: sequence {empty} has {lengths[empty]} points")
    return np.split(points, offsets[1:-1])


def _rows(archive: Archive, name: str) -> list[NDArray[np.float32]]:
    """Return the sequences of an array [n, T, d], or [n, T] if a step has one value."""
    shape, _ = archive.header(name)
    if len(shape) == 2:
        return list(_numbers(archive, name, "[n, T]", 2)[:, :, None])
    return list(_numbers(archive, name, "[n, T, d]", 3))


def _numbers(archive: Archive, name: str, expected: str, axes: int) -> NDArray[np.float32]:
    numbers = archive.numbers(name, axes, expected)
    if min(numbers.shape) < 1:
        raise DataError(
            f"{archive.path}: array {name!r} has shape {numbers.shape}, expected more than 0"
        )
    return float32_steps(numbers)


def _targets(labels: Sequence[Array], path: Path) -> tuple[tuple[str, ...], Targets]:
    """Return the classes, () if targets are real numbers, and the target of each sequence, [n]."""
    kinds = {"integers" if array.dtype.kind in "iu" else array.dtype.kind for array in labels}
    if len(kinds) > 1:
        raise DataError(f"{path}: y_train holds {labels[0].dtype}, y_test {labels[1].dtype}")
    values = np.concatenate(labels)
    if kinds == {"f"}:
        return (), values.astype(np.float64)
    names, targets = np.unique(values, return_inverse=True)
    return tuple(str(name) for name in names), targets


def _joined(parts: Sequence[NDArray[np.str_] | None]) -> NDArray[np.str_] | None:
    """Return the joined parts, or None if they are None. Either all are None or no part is."""
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def _group_of(
    clients: NDArray[np.str_] | None, groups: NDArray[np.str_] | None, path: Path
) -> dict[str, str]:
    """Return the group of each client."""
    if groups is None:
        return {}
    if clients is None:
        raise DataError(f"{path}: `group` needs an array of clients, and there is none")
    group_of: dict[str, str] = {}
    for client, group in zip(clients.tolist(), groups.tolist(), strict=True):
        if group_of.setdefault(client, group) != group:
            raise DataError(
                f"{path}: client {client!r} is in the groups {group_of[client]!r}, {group!r}"
            )
    return group_of


def _fit(candidate: Candidate) -> Fit:
    arrays = candidate.arrays
    if {"points", "offsets"} <= set(arrays):
        return Fit.CERTAIN
    name = _equally_long(candidate)
    if not name:
        return Fit.NONE
    shape, dtype = arrays[name]
    if len(shape) == 2:
        return Fit.STRONG
    _, height, width = shape
    is_image = dtype == np.uint8 and width >= _NARROWEST_IMAGE
    if name == "x":  # without a split, as is usual for sequences
        is_image &= height >= _NARROWEST_IMAGE and max(height, width) <= 4 * min(height, width)
    return Fit.NONE if is_image else Fit.STRONG


def _equally_long(candidate: Candidate) -> str:
    """Return the name of the first array of sequences, or "" if there is none.

    It is [n, T, d], or [n, T] beside an array of labels.
    """
    name = next((name for name in ("x", "x_train") if name in candidate.arrays), "")
    axes = len(candidate.arrays[name][0]) if name else 0
    has_labels = name.replace("x", "y") in candidate.arrays
    return name if axes == 3 or (axes == 2 and has_labels) else ""


def _reading(candidate: Candidate, _: Answers) -> Reading:
    """Return a note if sequences have as many steps as dimensions, as images would."""
    notes: tuple[str, ...] = ()
    if "points" not in candidate.arrays:
        name = _equally_long(candidate)
        (count, steps, *width), dtype = candidate.arrays[name]
        dimensions = width[0] if width else 1
        if steps == dimensions >= _NARROWEST_IMAGE:
            notes = (
                f"{name} is read as {count} sequences of {steps} steps with {dimensions} values "
                "each; if these are images, save them as x_train and x_test of uint8 (0 to 255) "
                f"instead of {dtype}",
            )
    return Reading("sequence-npz", notes=notes)


FORMAT = Format(
    (Source("sequence-npz", "labelled sequences", load_sequence_npz),),
    "an .npz file with points and offsets",
    _fit,
    _reading,
)
