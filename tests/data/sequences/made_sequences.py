"""Pools of sequences made for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.settings import DataSettings


def pool_of(
    labels: Sequence[int],
    clients: Sequence[str] | None = None,
    groups: dict[str, str] | None = None,
    is_test: Sequence[bool] | None = None,
) -> SequencePool:
    """Return sequences of three classes. All 2 + i % 3 steps of sequence i have the value i."""
    return SequencePool(
        ("x", "y"),
        ("ant", "bee", "cat"),
        [np.full((2 + i % 3, 2), i, np.float32) for i in range(len(labels))],
        np.array(labels, np.int64),
        None if clients is None else np.array(clients),
        groups or {},
        None if is_test is None else np.array(is_test),
    )


def sequences_of(source: str, path: Path) -> SequencePool:
    return load_sequences(DataSettings(source=source, path=str(path)))


def measured(count: int, clients: Sequence[str] | None = None) -> SequencePool:
    """Targets are real numbers: sequence i has the target i / 2."""
    sequences: list[NDArray[np.float32]] = [np.full((4, 1), i, np.float32) for i in range(count)]
    return SequencePool(
        ("x",), (), sequences, np.arange(count) / 2, None if clients is None else np.array(clients)
    )
