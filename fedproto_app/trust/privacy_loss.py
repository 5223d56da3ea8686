"""What Gaussian noise is worth: (ε, δ) of releases that compose, by Google's dp-accounting.

A release of noise N(0, (σΔ)²·I) on a value that the unit changes by at most Δ in Euclidean length
is µ-GDP with µ = 1/σ (Dong, Roth & Su, JRSS B 2022). Releases that may depend on all earlier ones
compose to √(Σ µ²), which is one release of 1/√(Σ µ²): exactly, not as a bound. Its ε is that of
Balle & Wang (ICML 2018, Theorem 8). Nothing is gained from drawing clients at random: a run draws a
fixed number of them, and the server knows whom.
"""

from __future__ import annotations

import math
from types import ModuleType

from fedproto_app.core.errors import SettingsError

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
