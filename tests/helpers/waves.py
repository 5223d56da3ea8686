"""Series with a known period."""

from __future__ import annotations

import numpy as np


def wave(period: float, length: int, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return a sinusoid of this period in steps with normal noise, [length]."""
    steps = np.arange(length)
    rng = np.random.default_rng(seed)
    return np.sin(2 * np.pi * steps / period) + noise * rng.standard_normal(length)
