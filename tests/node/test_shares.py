"""The memory that a client takes, by hand and against what a larger cohort takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.node.shares import bytes_of
from fedproto_app.strategies.solo import SoloLearner
from tests.helpers.quadratic import Quadratic, learner_of
from tests.helpers.tiny_cohort import tiny_learner, tiny_windows

ORDER = Order("run", "t", 1, ["a"])


@dataclass
class CachedBatches:
    """A client's two batches, of 4 bytes each."""

    values: Tensor
    names: list[str]


class Gathered(Quadratic):
    def gather(self, clients: list[str], server_round: int) -> CachedBatches:
        return CachedBatches(torch.ones(2), clients)


def test_the_parts_by_hand() -> None:
    """w and its momentum (4 + 4), and w − a, which the square saves (4), twice, and samples (8)."""
    learner = learner_of(SoloLearner, None, 0.1)
    learner.task = Gathered()
    assert bytes_of("a", learner, ORDER, trains=True) == 2 * (4 + 4 + 4) + 8
    assert bytes_of("a", learner, ORDER, trains=False) == 2 * 4 + 8


def test_two_views_take_more_than_one() -> None:
    sizes = {}
    for method in ("solo", "fuels"):
        learner = tiny_learner(method)
        (client, _) = tiny_windows(learner.task.settings)
        sizes[method] = bytes_of(client, learner, ORDER, trains=True)
        idle = bytes_of(client, learner, ORDER, trains=False)
        assert idle < sizes[method]
    assert sizes["fuels"] > 1.5 * sizes["solo"]


class Remembered(NamedTuple):
    flag: Tensor
    sums: dict[str, Tensor]


class RememberingLearner(SoloLearner):
    def initial_memory(self) -> Remembered:
        return Remembered(torch.tensor(False), {"one": torch.zeros(3)})


def test_what_a_client_remembers_counts() -> None:
    """A flag and three numbers (1 + 12) beside w (4), twice, and samples (8)."""
    learner = learner_of(RememberingLearner, None, 0.1)
    learner.task = Gathered()
    assert bytes_of("a", learner, ORDER, trains=False) == 2 * (4 + 13) + 8
