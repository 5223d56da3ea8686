"""The lies of hostile nodes: what a node sends instead of its trained arrays. It knows the model
that it received, and what the first client, the victim, sent in the same round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedproto_app.core.messages import Arrays

FAR = 100.0  # how far colluders carry a prototype: a tenth of what the server accepts


@dataclass(frozen=True)
class HonestReply:
    """A hostile node's reply before it lies.

    before: the model that it received. after: what it would send for one client. victim_reply:
    the arrays that the victim sent.
    """

    before: Arrays
    after: Arrays
    server_round: int
    victim_reply: Arrays


Lie = Callable[[HonestReply], Arrays]


# --- models: the step from the model that was sent ---------------------------------------------


def flipped(reply: HonestReply) -> Arrays:
    """Return the step in the other direction."""
    return _stepped(reply, -1.0)


def flipped_tenfold(reply: HonestReply) -> Arrays:
    """Return ten times the step, in the other direction."""
    return _stepped(reply, -10.0)


def noise(reply: HonestReply) -> Arrays:
    """Return a step ten times as long, in a random direction. The clients do not collude."""
    seed = int(abs(_length(reply.after) * 1e6)) % 2**31
    return _towards(reply, np.random.default_rng([reply.server_round, seed]))


def together(reply: HonestReply) -> Arrays:
    """Return a step ten times as long, in a direction that all hostile clients share."""
    return _towards(reply, np.random.default_rng(0))


def _stepped(reply: HonestReply, factor: float) -> Arrays:
    arrays = dict(reply.after)
    for name, start in reply.before.items():
        if name in arrays:
            arrays[name] = _float32(start + factor * (arrays[name] - start))
    return arrays


def _towards(reply: HonestReply, rng: np.random.Generator) -> Arrays:
    step = {name: reply.after[name] - start for name, start in reply.before.items()}
    draws = {name: rng.standard_normal(value.shape) for name, value in step.items()}
    scale = 10 * _length(step) / _length(draws)
    lies = {name: _float32(reply.before[name] + scale * draws[name]) for name in step}
    return {**reply.after, **lies}


# --- prototypes, heads and sums: arrays that are no step from anything ---------------------------


def negated(reply: HonestReply) -> Arrays:
    """Return the arrays times −1."""
    return {name: -value for name, value in reply.after.items()}


def negated_far(reply: HonestReply) -> Arrays:
    """Return the arrays times −100: a cosine or a divergence sees only their direction."""
    return {name: np.float32(-FAR) * value for name, value in reply.after.items()}


def scaled_far(reply: HonestReply) -> Arrays:
    """Return the arrays times 100, which cosines do not see."""
    return {name: np.float32(FAR) * value for name, value in reply.after.items()}


def copied(reply: HonestReply) -> Arrays:
    """Return the victim's prototype with a constant added to every value of a row. A divergence of
    softmaxes does not see it, so all colluding clients are among its partners."""
    return {name: _float32(value + FAR) for name, value in reply.victim_reply.items()}


def opposite_sums(reply: HonestReply) -> Arrays:
    """Return sums of samples with every target negated, or the sums of classes negated."""
    return {name: -value if name == "moment" else value for name, value in reply.after.items()}


def many_opposite_sums(reply: HonestReply) -> Arrays:
    """Return the same with squares fifty times as large, which are still possible sums."""
    return {name: np.float32(50) * value for name, value in opposite_sums(reply).items()}


def copied_opposite(reply: HonestReply) -> Arrays:
    """Return the victim's prototype, to be its nearest kin, with sums that say the opposite."""
    lies = opposite_sums(reply)
    return {**lies, "prototype": reply.victim_reply["prototype"]}


def opposite_of_all(reply: HonestReply) -> Arrays:
    """Return a prototype without a shape, about as near to everybody's, with sums that say the
    opposite."""
    lies = opposite_sums(reply)
    return {**lies, "prototype": np.zeros_like(lies["prototype"])}


def copied_then_turned(reply: HonestReply) -> Arrays:
    """Return the victim's arrays, to be in its cluster, and from round 3 on their opposite."""
    sign = np.float32(1 if reply.server_round < 3 else -1)
    return {name: sign * value for name, value in reply.victim_reply.items()}


def _length(arrays: Mapping[str, Any]) -> float:
    return float(
        np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays.values()))
    )


def _float32(value: Any) -> Any:
    return np.asarray(value, dtype=np.float32)
