"""The Gaussian mechanism: clip to a length, add noise that only a secret can repeat.

A value of a client is clipped so that its data can change it by a known length at most, and gets
independent N(0, s²) on every entry (Dwork & Roth, 2014). The noise comes of SHAKE-256
of a key: who lacks the key cannot tell it from random, and who has it draws the same again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
_BITS = 53  # of a double's fraction


def clipped_rows(rows: NDArray[np.floating], length: float) -> Values:
    """[..., D] with each row at most so long: row · min(1, length / ‖row‖)."""
    exact = finite(rows)
    norms = np.linalg.norm(exact, axis=-1, keepdims=True)
    return exact * _shrinking(norms, length)


def clipped_together(arrays: Mapping[str, Values], length: float) -> dict[str, Values]:
    """Arrays that are one vector, at most so long."""
    exact = {name: finite(value) for name, value in arrays.items()}
    norm = math.sqrt(sum(float(np.square(value).sum()) for value in exact.values()))
    factor = float(_shrinking(np.float64(norm), length))
    return {name: value * factor for name, value in exact.items()}


def finite(values: NDArray[np.floating]) -> Values:
    """In double precision, with 0 for what is no number: noise would not hide it."""
    return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _shrinking(norms: NDArray[np.float64] | np.float64, length: float) -> Values:
    return np.asarray(np.minimum(1.0, length / np.maximum(norms, np.finfo(np.float64).tiny)))


def gaussian_noise(key: bytes, count: int) -> Values:
    """[count] independent N(0, 1), the same for the same key.

    Box & Muller (1958) in double precision. Its grid shows through in the last bits only, which
    rounding the noised value to float32 removes.
    """
    pairs = -(-count // 2)
    raw = hashlib.shake_256(key).digest(16 * pairs)
    whole = np.frombuffer(raw, dtype="<u8").reshape(2, pairs) >> np.uint64(64 - _BITS)
    uniform = (whole.astype(np.float64) + 0.5) / 2.0**_BITS  # in (0, 1), never at an end
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
