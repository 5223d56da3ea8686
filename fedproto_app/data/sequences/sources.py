"""Load labelled sequences of any source, check them, and put the classes in the order that is set.

A loader returns the pool as it is in its format. This module does what all sources need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import replace

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.pool import NO_CLASS, UNLABELLED, SequencePool
from fedproto_app.data.source_checks import (
    listed_classes,
    loaded_from,
    require_class_names,
    require_column,
    require_labels,
)
from fedproto_app.settings import DataSettings


def load_sequences(settings: DataSettings) -> SequencePool:
    """Return the sequences of the source, labelled in the order of ``data.classes`` if it is set.

    Sequences whose class name is in `NO_CLASS` become unlabelled. If something cannot be read or
    used, a `DataError` names the file or source, and the sequence.
    """
    loaded, where = loaded_from(settings, "labelled sequences")
    pool = _checked(loaded, where)
    if not pool.classes:
        if settings.classes:
            raise DataError(
                f"data.classes = {settings.classes!r}: the targets of {where} are real numbers"
            )
        return pool
    class_names = [name for name in pool.classes if name not in NO_CLASS]
    if not class_names or not pool.has_target.any():
        raise DataError(f"{where}: no sequence has a label; every client needs some")
    classes, label_of = listed_classes(tuple(class_names), settings, where)
    if none := set(NO_CLASS) & set(classes):
        raise DataError(
            f"data.classes = {settings.classes!r}: {none.pop()!r} is what sequences without a "
            "label are called; leave it out"
        )
    new = np.full(len(pool.classes) + 1, UNLABELLED)  # index -1, the last, is for UNLABELLED
    new[[pool.classes.index(name) for name in class_names]] = label_of
    return replace(pool, classes=classes, targets=new[pool.targets.astype(np.int64)])


def _checked(pool: object, where: str) -> SequencePool:
    """Return the pool. Raises `DataError` if the loader returned an invalid pool."""
    if not isinstance(pool, SequencePool):
        raise DataError(f"{where}: returned {type(pool).__name__}, expected a SequencePool")
    names = pool.dimensions
    if not isinstance(names, tuple) or not names or len(set(names)) != len(names):
        raise DataError(
            f"{where}: dimensions {names!r}: expected a tuple of names, none of them twice"
        )
    if not len(pool.sequences):
        raise DataError(f"{where}: no sequence in it")
    columns: Mapping[str, Sized | None] = {
        "targets": pool.targets,
        "clients": pool.clients,
        "is_test": pool.is_test,
    }
    types = {"targets": "int64" if pool.classes else "float64", "clients": "str", "is_test": "bool"}
    for title, values in columns.items():
        if values is None and title != "targets":
            continue
        require_column(values, types[title], f"{where}: {title}")
        if values is not None and len(values) != len(pool.sequences):
            raise DataError(f"{where}: {len(values)} {title} for {len(pool.sequences)} sequences")
    _require_steps(pool, where)
    _require_targets(pool, where)
    _require_clients(pool, where)
    return pool


def _require_steps(pool: SequencePool, where: str) -> None:
    """Raise `DataError` if a sequence is not [T ≥ 1, d] of finite float32."""
    for number, steps in enumerate(pool.sequences):
        name = f"{where}: sequence {number}"
        if not isinstance(steps, np.ndarray) or steps.dtype != np.float32:
            actual = steps.dtype if isinstance(steps, np.ndarray) else type(steps).__name__
            raise DataError(f"{name} is {actual}, expected an array of float32")
        if steps.ndim != 2 or steps.shape[0] < 1 or steps.shape[1] != len(pool.dimensions):
            raise DataError(
                f"{name} has shape {steps.shape}, expected [T, {len(pool.dimensions)}] with T ≥ 1"
            )
        if not np.isfinite(steps).all():
            step, dimension = np.argwhere(~np.isfinite(steps))[0].tolist()
            raise DataError(
                f"{name}: {pool.dimensions[dimension]} at step {step} is {steps[step, dimension]}, "
                "expected a finite number"
            )


def _require_targets(pool: SequencePool, where: str) -> None:
    if pool.classes:
        require_class_names(pool.classes, where)
        if (labels := pool.targets[pool.has_target].astype(np.int64)).size:
            require_labels(labels, len(pool.classes), where)
    elif not np.isfinite(pool.targets).all():
        number = int(np.argmin(np.isfinite(pool.targets)))
        raise DataError(
            f"{where}: sequence {number} has the target {pool.targets[number]}, expected a finite "
            "number"
        )


def _require_clients(pool: SequencePool, where: str) -> None:
    if pool.clients is not None and (np.strings.strip(pool.clients) == "").any():
        raise DataError(f"{where}: a sequence has a client without a name")
    if not isinstance(pool.groups, Mapping) or not all(
        isinstance(text, str) for pair in pool.groups.items() for text in pair
    ):
        raise DataError(f"{where}: groups: expected a mapping of clients' names to groups")
    if pool.groups and pool.clients is None:
        raise DataError(f"{where}: there are groups of clients, but no sequence has a client")
    if pool.is_test is not None and pool.is_test.all():
        raise DataError(f"{where}: all sequences are test")
