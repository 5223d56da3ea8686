"""Sums that no samples have: the worst that the server's checks of `analytic`'s sums allow.

Ten clients, one on a node, one solution for all. The last clients are hostile and send the same
sums. They try thousands of pairs A = XᵀX and b = Xᵀy, each as large as the checks allow, and send
the pair that changes the solution most as far as they know. They know their own samples, which they
take for everybody's, or the total of the honest clients' sums. A fit that is worse than the mean
for most clients would be refused, so they keep their fit nearer to the others' as far as they know
these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Message, MessageType, UserConfig
from torch import Tensor

from benchmarks.attacks.declared import fields_of, say
from benchmarks.attacks.trial import CLIENTS
from benchmarks.in_process import clients_of
from benchmarks.pages import table_texts
from fedproto_app.core.messages import Arrays
from fedproto_app.core.wire import ARRAYS, ROSTER, array_record, numpy_arrays
from fedproto_app.data.windows import lookback
from fedproto_app.engine.flower_parts import FIRST_ID
from fedproto_app.engine.local import LocalGrid
from fedproto_app.maths.ridge import solve, symmetric, triangle
from fedproto_app.settings import Settings
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.analytic.strategy import LARGEST_MEAN_SQUARE, SHRUNK
from fedproto_app.tasks.table import small_run
from fedproto_app.trust.averaging import fit

HOSTILE, SEEDS = (1, 3), (0, 1, 2)
MOST_TIMES = 5  # aggregation.weight-limit: a client's samples over the usual client's
_SETTINGS = {
    **small_run("forecasting"),
    "data.synthetic.clients": CLIENTS,
    "method": "analytic",
    "analytic.sharing": "federated",
}
NOTE = (
    "Mean error of the honest clients over their error without the attack, least and largest of "
    "three data seeds. {command}: `analytic`, one solution, {machine}."
)
_NEARLY = 0.999  # of what a check allows: sums are rounded to float32
_STRAYS = 0.7  # of the distance that is refused: clients differ from what is known of them
_SIZES = np.logspace(-9, 2, 23)  # of A, relative to the claimed samples


class Knowledge(NamedTuple):
    """What the hostile clients know or suppose of one step ahead: the honest clients' total A
    [d, d] and b [d], and their own A."""

    gram: Tensor
    moment: Tensor
    own_gram: Tensor


@dataclass(frozen=True)
class Attack:
    """knows_total: whether it knows the honest clients' total, or else its own sums. times: the
    samples that a hostile client claims, over the samples that it has."""

    says: str
    knows_total: bool
    times: int


ATTACKS = (
    Attack("knows its own samples", False, 1),
    Attack("the same, claims five times the samples", False, MOST_TIMES),
    Attack("knows the total, claims five times the samples", True, MOST_TIMES),
)


@dataclass(frozen=True)
class Trial:
    """A run. attack: None for an honest run."""

    attack: Attack | None
    hostile: int
    seed: int


def trials() -> Iterator[Trial]:
    """Yield every run of the table."""
    for hostile in HOSTILE:
        for seed in SEEDS:
            yield from (Trial(attack, hostile, seed) for attack in (None, *ATTACKS))


class HostileGrid(LocalGrid):
    """A grid whose last nodes send the worst sums that they find."""

    def __init__(
        self, attack: Attack, hostile: int, settings: Settings, configs: Sequence[UserConfig]
    ) -> None:
        super().__init__(settings, configs)
        self._settings, self._attack, self._hostile = settings, attack, hostile
        self._honest: list[Arrays] = []

    def answer(self, message: Message) -> Message | None:
        reply, kind = super().answer(message), message.metadata.message_type
        attack = self._attack
        if reply is None or kind not in (ROSTER, MessageType.TRAIN):
            return reply
        arrays = numpy_arrays(reply.content.array_records[ARRAYS]) if kind != ROSTER else {}
        if message.metadata.dst_node_id < FIRST_ID + CLIENTS - self._hostile:
            self._honest += [arrays] if arrays else []
            return reply
        samples = fields_of(reply)["samples"]
        if kind == ROSTER:
            say(reply, samples={name: attack.times * n for name, n in samples.items()})
            return reply
        claimed = attack.times * samples[0]
        say(reply, samples=[claimed])
        reply.content[ARRAYS] = array_record(self._worst(arrays, claimed))
        return reply

    def _worst(self, own_sums: Arrays, claimed: int) -> Arrays:
        known_sums = self._honest if self._attack.knows_total else [own_sums]
        factor = (CLIENTS - self._hostile) / len(known_sums)
        grams, moments = zip(*map(_unpacked, known_sums), strict=True)
        gram, moment = (factor * torch.stack(parts).sum(dim=0) for parts in (grams, moments))
        steps = zip(gram, moment, _unpacked(own_sums)[0], strict=True)
        worst = [self._worst_of_step(Knowledge(*step), claimed) for step in steps]
        false_gram, false_moment = (torch.stack(parts) for parts in zip(*worst, strict=True))
        packed = {"gram": triangle(false_gram)[None], "moment": false_moment[None]}
        return {name: value.float().numpy() for name, value in packed.items()}

    def _worst_of_step(self, knowledge: Knowledge, claimed: int) -> tuple[Tensor, Tensor]:
        data, hostile = self._settings.data, self._hostile
        target_squares = claimed + lookback(data) + data.period + data.horizon
        penalty = self._settings.method_table(AnalyticSettings).penalty
        honest = solve(knowledge.gram, knowledge.moment[:, None], penalty)[:, 0]
        usual = fit(knowledge.gram[None], knowledge.moment[None, :, None], SHRUNK)[0]
        worst, harm = (knowledge.own_gram, knowledge.moment), -1.0
        for gram, direction in _pairs(knowledge, claimed):
            largest = math.sqrt(target_squares / _explained(gram, direction))
            false_fit = fit(gram[None], direction[None, :, None], SHRUNK)[0]
            for factor in _accepted_factors(knowledge.gram, false_fit, usual):
                moment = max(-largest, min(largest, factor)) * _NEARLY * direction
                total = knowledge.moment + hostile * moment
                spoilt = solve(knowledge.gram + hostile * gram, total[:, None], penalty)[:, 0]
                apart = spoilt - honest
                if (error := float(apart @ knowledge.gram @ apart)) > harm:
                    worst, harm = (gram, moment), error
        return worst


def _pairs(knowledge: Knowledge, claimed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield possible A and directions of b: along each direction of the known samples, and along
    what these samples say of the targets."""
    vectors = torch.linalg.eigh(knowledge.gram).eigenvectors.mT
    largest = LARGEST_MEAN_SQUARE * claimed
    identity = torch.eye(len(vectors), dtype=vectors.dtype)
    for direction in (*vectors, knowledge.moment / knowledge.moment.norm()):
        for form in (identity, knowledge.own_gram, torch.outer(direction, direction)):
            for size in _SIZES:
                gram = form * (size * claimed / form.diagonal().max())
                if gram.diagonal().max() <= largest:
                    yield gram, direction


def _accepted_factors(gram: Tensor, false_fit: Tensor, usual: Tensor) -> tuple[float, ...]:
    """Return the least and largest factor f that keeps f · false_fit within `_STRAYS` of the mean's
    distance from the usual fit, or () if there is no such factor."""
    size, product, limit = (
        float(first @ gram @ second)
        for first, second in ((false_fit, false_fit), (false_fit, usual), (usual, usual))
    )
    root = product**2 - (1 - _STRAYS) * limit * size
    return (
        () if root < 0 else ((product - math.sqrt(root)) / size, (product + math.sqrt(root)) / size)
    )


def _explained(gram: Tensor, direction: Tensor) -> float:
    """Return bᵀA⁻¹b as the server computes it."""
    scale = (gram.diagonal() + 1e-30).rsqrt()
    rounding = 4 * len(gram) * 2.0**-24 * torch.eye(len(gram), dtype=gram.dtype)
    factor = torch.linalg.cholesky(gram * scale * scale[:, None] + rounding)
    right = (direction * scale)[:, None]
    return float(torch.linalg.solve_triangular(factor, right, upper=False).square().sum())


def _unpacked(sums: Arrays) -> tuple[Tensor, Tensor]:
    """Return A [H, d, d] and b [H, d] of a reply of one client."""
    moment = torch.from_numpy(sums["moment"][0]).double()
    return symmetric(torch.from_numpy(sums["gram"][0]).double(), moment.shape[-1]), moment


def error_of(trial: Trial) -> float:
    """Return the mean error of the honest clients. Fails if the run stops."""
    grid = partial(HostileGrid, trial.attack, trial.hostile) if trial.attack else LocalGrid
    clients = clients_of({**_SETTINGS, "data.synthetic.seed": trial.seed}, CLIENTS, grid)
    assert clients is not None
    honest = [int(node) < CLIENTS - trial.hostile for node in clients.nodes]
    return float(clients["mse"][honest].mean())


def table(errors: Mapping[Trial, float]) -> list[str]:
    """Return a line for each attack: by how much it raises the error."""
    lines = [["hostile clients", "hostile", "error"]]
    for attack in ATTACKS:
        title = attack.says
        for hostile in HOSTILE:
            factors = [
                errors[Trial(attack, hostile, seed)] / errors[Trial(None, hostile, seed)]
                for seed in SEEDS
            ]
            lines.append([title, f"{10 * hostile}%", f"× {min(factors):.3g} … {max(factors):.3g}"])
            title = ""
    return table_texts(lines)
