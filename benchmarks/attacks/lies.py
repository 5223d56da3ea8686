"""What hostile nodes send in place of what they trained. They know what they were sent, and what
the first client, their victim, sent in the same round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedproto_app.core.messages import Arrays

FAR = 100.0  # how far colluders carry a prototype: a tenth of what is believed


@dataclass(frozen=True)
class Told:
    """A hostile node's answer before it lies.

    before: the model that it was sent. after: what it would send, of one client. heard: what the
    victim sent.
    """

    before: Arrays
    after: Arrays
    server_round: int
    heard: Arrays


Lie = Callable[[Told], Arrays]


# --- models: the step from the model that was sent ---------------------------------------------


def flipped(told: Told) -> Arrays:
    """The step in the other direction."""
    return _stepped(told, -1.0)


def flipped_tenfold(told: Told) -> Arrays:
    """Ten times the step, in the other direction."""
    return _stepped(told, -10.0)


def noise(told: Told) -> Arrays:
    """A step of ten times the size in a direction of its own: the clients do not collude."""
    seed = int(abs(_length(told.after) * 1e6)) % 2**31
    return _towards(told, np.random.default_rng([told.server_round, seed]))


def together(told: Told) -> Arrays:
    """A step of ten times the size in one direction that all hostile clients share."""
    return _towards(told, np.random.default_rng(0))


def _stepped(told: Told, factor: float) -> Arrays:
    made = dict(told.after)
    for name, start in told.before.items():
        if name in made:
            made[name] = _float32(start + factor * (made[name] - start))
    return made


def _towards(told: Told, rng: np.random.Generator) -> Arrays:
    step = {name: told.after[name] - start for name, start in told.before.items()}
    draws = {name: rng.standard_normal(value.shape) for name, value in step.items()}
    scale = 10 * _length(step) / _length(draws)
    lies = {name: _float32(told.before[name] + scale * draws[name]) for name in step}
    return {**told.after, **lies}


# --- prototypes, heads and sums: arrays that are no step from anything ---------------------------


def negated(told: Told) -> Arrays:
    """The arrays times −1."""
    return {name: -value for name, value in told.after.items()}


def negated_far(told: Told) -> Arrays:
    """The arrays times −100: a cosine or a divergence sees their direction alone."""
    return {name: np.float32(-FAR) * value for name, value in told.after.items()}


def scaled_far(told: Told) -> Arrays:
    """The arrays times 100, which cosines do not see."""
    return {name: np.float32(FAR) * value for name, value in told.after.items()}


def copied(told: Told) -> Arrays:
    """The victim's prototype with a constant added to every value of a row, which a divergence of
    softmaxes does not see: all who collude are among its partners."""
    return {name: _float32(value + FAR) for name, value in told.heard.items()}


def opposite_sums(told: Told) -> Arrays:
    """Sums of samples whose targets all are the negative of what they were."""
    return {name: -value if name == "moment" else value for name, value in told.after.items()}


def many_opposite_sums(told: Told) -> Arrays:
    """The same, of fifty times as large squares: still possible sums."""
    return {name: np.float32(50) * value for name, value in opposite_sums(told).items()}


def copied_opposite(told: Told) -> Arrays:
    """The victim's prototype, so as to be its nearest kin, with sums that say the opposite."""
    lies = opposite_sums(told)
    return {**lies, "prototype": told.heard["prototype"]}


def _length(arrays: Mapping[str, Any]) -> float:
    return float(
        np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays.values()))
    )


def _float32(value: Any) -> Any:
    return np.asarray(value, dtype=np.float32)
