"""Compute the (ε, δ) of composed Gaussian releases, with Google's dp-accounting.

Suppose that a release adds noise N(0, (σΔ)²·I) to a value which the protected unit changes by at
most Δ in Euclidean length. It is µ-GDP with µ = 1/σ (Dong, Roth & Su, JRSS B 2022). Releases, even
if they depend on all earlier ones, compose to √(Σ µ²). This equals one release with σ = 1/√(Σ µ²),
exactly and not just as a bound. Its ε follows Balle & Wang (ICML 2018, Theorem 8). Drawing clients
at random does not reduce ε, because a run draws a fixed number of clients, and the server knows
them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.methods import method_named, methods_of
from fedproto_app.core.sends import Sends
from fedproto_app.settings import PrivacyPlan, Settings
from fedproto_app.settings.fit import pretraining_releases, releases_of

# The Gaussian mechanism: clip to a length, and add noise that only a secret's holder can repeat.
#
# A client's value is clipped, so that the client's data can change it by no more than a known
# length. Every entry then gets independent noise N(0, s²) (Dwork & Roth, 2014). The noise comes
# from SHAKE-256 of a key. Without the key it looks random. With the key it can be drawn again.

Values = NDArray[np.float64]
_BITS = 53  # of a double's fraction


def clipped_rows(rows: NDArray[np.floating], length: float) -> Values:
    """Return the rows [..., D] clipped to a length: row · min(1, length / ‖row‖)."""
    exact = finite(rows)
    norms = np.linalg.norm(exact, axis=-1, keepdims=True)
    return exact * _shrinking(norms, length)


def clipped_together(arrays: Mapping[str, Values], length: float) -> dict[str, Values]:
    """Return the arrays, clipped to a length as if they were one vector."""
    exact = {name: finite(value) for name, value in arrays.items()}
    norm = math.sqrt(sum(float(np.square(value).sum()) for value in exact.values()))
    factor = float(_shrinking(np.float64(norm), length))
    return {name: value * factor for name, value in exact.items()}


def finite(values: NDArray[np.floating]) -> Values:
    """Return the values as float64. NaN and infinities, which noise cannot hide, become 0."""
    return np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _shrinking(norms: NDArray[np.float64] | np.float64, length: float) -> Values:
    return np.asarray(np.minimum(1.0, length / np.maximum(norms, np.finfo(np.float64).tiny)))


def gaussian_noise(key: bytes, count: int) -> Values:
    """Return [count] independent N(0, 1) values, the same for the same key.

    The method is by Box & Muller (1958), in double precision. The grid of floating-point
    numbers shows only in the last bits. Rounding the noised value to float32 removes these.
    """
    pairs = -(-count // 2)
    raw = hashlib.shake_256(key).digest(16 * pairs)
    integers = np.frombuffer(raw, dtype="<u8").reshape(2, pairs) >> np.uint64(64 - _BITS)
    uniform = (integers.astype(np.float64) + 0.5) / 2.0**_BITS  # in (0, 1), never at an end
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


EXTRA = "privacy"


def epsilon_of(losses: float, delta: float) -> float:
    """Return the ε, at this δ, of releases whose µ² add up to `losses`, or 0 without releases.

    Raises `SettingsError` if dp-accounting is not installed.
    """
    if losses == 0:
        return 0.0
    if not math.isfinite(losses):
        return math.inf
    return float(_dp_accounting().get_epsilon_gaussian(1 / math.sqrt(losses), delta))


def multiplier_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest σ at which so many releases are together (ε, δ)-private."""
    return math.sqrt(releases) * float(_dp_accounting().get_sigma_gaussian(epsilon, delta))


def _dp_accounting() -> ModuleType:
    """Import dp-accounting. This is slow, and it is installed only with its extra."""
    try:
        import dp_accounting
    except ImportError:
        raise SettingsError(
            "privacy: counting ε needs dp-accounting, which is not installed here: "
            f"pip install 'fedproto-app[{EXTRA}]'"
        ) from None
    module: ModuleType = dp_accounting
    return module


@lru_cache(maxsize=64)
def privacy_plan(settings: Settings) -> PrivacyPlan | None:
    """Return the privacy plan that follows from the settings, or None without a mechanism.

    Raises `SettingsError` if the method's messages cannot be protected, or if the first rounds
    alone exceed the allowed ε.
    """
    privacy = settings.privacy
    if not privacy.is_on:
        return None
    method = method_named(settings.method)
    before = pretraining_releases(settings)
    unclipped = any(not release.clip for _, learnt in before for release in learnt)
    if settings.has_response and unclipped:
        raise SettingsError(
            f"privacy.mechanism = {privacy.mechanism!r}: how far a client can change the response "
            "to known columns is unknown as long as their usual size is; state it in "
            "response.scales, or protect the target alone with response.columns = 'public', or "
            "send nothing with response.sharing = 'none'"
        )
    before = [(rounds, _require(settings, learnt)) for rounds, learnt in before]
    releases = _require(settings, releases_of(method, settings))
    if settings.aggregation.rule != "mean" and any(release.clip == "sums" for release in releases):
        raise SettingsError(
            f"aggregation.rule = {settings.aggregation.rule!r}: this rule judges a client's sums, "
            f"but with privacy.mechanism = {privacy.mechanism!r} noise hides them; method = "
            f"{settings.method!r} then allows only 'mean'"
        )
    phases = tuple((rounds, len(learnt)) for rounds, learnt in before)
    evaluation = int(privacy.reported == "noised")
    evaluations = math.ceil(settings.rounds / settings.evaluate_every)
    first_releases = sum(rounds * count for rounds, count in phases)
    planned = first_releases + settings.rounds * len(releases) + evaluations * evaluation
    noise = privacy.noise_multiplier
    if not noise:
        noise = multiplier_for(privacy.epsilon, privacy.delta, max(planned, 1))
    plan = PrivacyPlan(privacy, noise, len(releases), phases, evaluation)
    first = first_releases + len(releases) + evaluation
    spent = epsilon_of(first * plan.loss, privacy.delta)
    if privacy.max_epsilon and spent > privacy.max_epsilon:
        rounds = settings.pretraining_rounds
        upto = "the first round" if not rounds else "the rounds of phase 1 and one more"
        raise SettingsError(
            f"privacy.max-epsilon = {privacy.max_epsilon:g}: {upto} alone spend{'s' * (not rounds)}"
            f" {spent:.3g}; raise this limit, or privacy.noise-multiplier"
        )
    return plan


def _require(settings: Settings, releases: tuple[Sends, ...]) -> tuple[Sends, ...]:
    """Return the releases that noise protects. Raise `SettingsError` if it cannot protect all."""
    releases = tuple(release for release in releases if release.clip != "public")
    method = method_named(settings.method)
    on = f"privacy.mechanism = {settings.privacy.mechanism!r}"
    unbounded = [release.name for release in releases if not release.clip]
    if unbounded or method.joined_clients:
        why = (
            "its clients see each other's values"
            if method.joined_clients
            else f"how far one client can change the {unbounded[0]} that it sends is not known"
        )
        able = [name for name in methods_of(settings.task) if _is_able(name, settings)]
        raise SettingsError(
            f"{on}: method = {settings.method!r}: {why}. For task = {settings.task!r}, these "
            f"methods can be protected: {', '.join(able)}"
        )
    if settings.privacy.unit == "sample" and any(release.clip != "sums" for release in releases):
        raise SettingsError(
            f"privacy.unit = 'sample': method = {settings.method!r} trains on all samples together "
            "before it sends, but only sums over samples ('analytic') can hide a single sample"
        )
    return releases


def _is_able(name: str, settings: Settings) -> bool:
    method = method_named(name)
    return not method.joined_clients and all(
        release.clip for release in releases_of(method, settings)
    )
