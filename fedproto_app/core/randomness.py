"""Random streams named for their purpose, never for process, shard or order (design rule 1)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed of the stream (seed, names …), equal on every machine."""
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_stream(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator of the stream (seed, names …), e.g. (seed, client name, round)."""
    import torch  # slow, and streams are also drawn where nothing is trained

    return torch.Generator().manual_seed(stream_seed(seed, *names))


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return a NumPy generator of the stream (seed, names …)."""
    return np.random.default_rng(stream_seed(seed, *names))
