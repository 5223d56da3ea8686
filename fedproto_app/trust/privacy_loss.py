"""What Gaussian noise is worth: (ε, δ) of releases that compose, by Google's dp-accounting.

A release of noise N(0, (σΔ)²·I) on a value that the unit changes by at most Δ in Euclidean length
is µ-GDP with µ = 1/σ (Dong, Roth & Su, JRSS B 2022). Releases that may depend on all earlier ones
compose to √(Σ µ²), which is one release of 1/√(Σ µ²): exactly, not as a bound. Its ε is that of
Balle & Wang (ICML 2018, Theorem 8). Nothing is gained from drawing clients at random: a run draws a
fixed number of them, and the server knows whom.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import SettingsError

# The Gaussian mechanism: clip to a length, add noise that only a secret can repeat.
#
# A value of a client is clipped so that its data can change it by a known length at most, and gets
# independent N(0, s²) on every entry (Dwork & Roth, 2014). The noise comes of SHAKE-256
# of a key: who lacks the key cannot tell it from random, and who has it draws the same again.

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


EXTRA = "privacy"


def epsilon_of(losses: float, delta: float) -> float:
    """ε at this δ of releases whose µ² add up to `losses`; 0 of none, infinite beyond counting.

    Raises `SettingsError` where dp-accounting is not installed.
    """
    if losses == 0:
        return 0.0
    if not math.isfinite(losses):
        return math.inf
    return float(_dp_accounting().get_epsilon_gaussian(1 / math.sqrt(losses), delta))


def multiplier_for(epsilon: float, delta: float, releases: int) -> float:
    """The least σ with which so many releases together are (ε, δ)-private."""
    return math.sqrt(releases) * float(_dp_accounting().get_sigma_gaussian(epsilon, delta))


def _dp_accounting() -> ModuleType:
    """Slow to import, and not there without its extra."""
    try:
        import dp_accounting
    except ImportError:
        raise SettingsError(
            "privacy: counting ε needs dp-accounting, which is not installed here: "
            f"pip install 'fedproto-app[{EXTRA}]'"
        ) from None
    module: ModuleType = dp_accounting
    return module
