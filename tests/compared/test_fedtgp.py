"""FedTGP: how a client is evaluated, and what the server learns of the prototypes.

Prototypes as in FedProto are tested in test_prototypes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch.nn import functional

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.wire import read_order
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from fedproto_compared.fedproto import pull
from fedproto_compared.fedtgp import (
    adaptive_margin,
    contrastive_loss,
    generated,
    trained,
)
from tests.helpers.tiny_images import class_guidance, image_cohort, image_learner
from tests.strategies.server_half import (
    NO_GRID,
    NODE,
    accept,
    assert_same_state,
    class_replies,
    class_server,
    guidance,
    refusals,
)

HONEST = {"a": {0: [1, 2], 1: [-1, 1]}, "b": {0: [2, 2]}, "c": {0: [1, 1]}}


def server(**changes: Any) -> Any:
    return class_server("fedtgp", **{"fedtgp.server-epochs": 20, **changes})


def test_it_is_judged_by_its_head_and_beside_that_by_the_nearest_prototype() -> None:
    learner = image_learner("fedtgp")
    cohort = image_cohort(learner)
    # All images are said to be of class 1, which client b has alone.
    metrics = learner.evaluate(cohort, class_guidance({1: 0.0}))
    by_head = learner.task.evaluate(cohort.parameters, cohort.samples)
    assert metrics.items() >= by_head.items()
    assert metrics[Metric("accuracy", rule="global-prototypes")] == [0.5, 1.0]
    before = learner.evaluate(cohort, Guidance())
    assert before[Metric("accuracy", rule="global-prototypes")] == [0.0, 0.0]


def test_it_sends_the_prototypes_of_classes_that_somebody_has() -> None:
    strategy = server()
    assert guidance(strategy) == Guidance()
    round_ = accept(strategy, class_replies(PROTOTYPES, HONEST))
    advice = guidance(strategy)
    assert advice.classes == [0, 1]
    artefact = strategy.findings()[PROTOTYPES]
    assert np.array_equal(artefact["prototypes"], advice.arrays[PROTOTYPES])
    assert artefact["names"].tolist() == ["ant", "bee"]
    wide = np.hypot(4 / 3 + 1, 5 / 3 - 1)  # of (4/3, 5/3) and (−1, 1)
    assert round_.figures["margin"] == pytest.approx(wide)


def test_it_goes_on_from_round_to_round() -> None:
    strategy = server(**{"fedtgp.margin-threshold": 1.0})
    rounds = [accept(strategy, class_replies(PROTOTYPES, HONEST)) for _ in range(5)]
    losses: list[Any] = [round_.figures["server_loss"] for round_ in rounds]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


def test_an_evaluation_on_its_own_gets_the_prototypes_too() -> None:
    """Clients that trained in a round without evaluation are evaluated later."""
    strategy = server()
    accept(strategy, class_replies(PROTOTYPES, HONEST))
    strategy.federation.history.unevaluated.add(ClientKey("a", NODE))
    (message,) = FlowerStrategy(strategy).configure_evaluate(
        1, ArrayRecord(), ConfigRecord(), NO_GRID
    )
    assert read_order(message).guidance.classes == [0, 1]


def test_a_prototype_far_longer_than_the_others_is_refused() -> None:
    strategy = server()
    round_ = accept(strategy, class_replies(PROTOTYPES, {**HONEST, "b": {0: [1e4, 0.0]}}))
    assert refusals(round_)["b"].startswith("its prototypes are not used: the largest is")


def test_where_training_ends_in_no_numbers_what_was_before_stays() -> None:
    strategy = server(**{"fedtgp.server-rate": 1e30})
    accept(strategy, class_replies(PROTOTYPES, HONEST))
    assert_same_state(strategy, server())


# --- the maths ------------------------------------------------------------------------------------


LABELS = torch.tensor([0, 0, 1, 2])
RECEIVED = torch.tensor(
    [[0.0, 0.0], [2.0, 0.0], [1.0, 3.0], [5.0, 0.0]]
)  # means (1, 0) (1, 3) (5, 0)


def network(classes: int = 3, width: int = 2) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    shapes = {"embedding": (classes, width), "hidden.weight": (width, width)}
    shapes |= {"hidden.bias": (width,), "output.weight": (width, width), "output.bias": (width,)}
    drawn = {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}
    return {name: value / width**0.5 for name, value in drawn.items()}


def test_a_prototype_is_made_of_its_classs_vector() -> None:
    """(1, −1) → hidden (1, −1) + (0, 3) = (1, 2), of (−1, 1) negative (−1, 4) → (0, 4)."""
    prototypes = generated(
        {
            "embedding": torch.tensor([[1.0, -1.0], [-1.0, 1.0]]),
            "hidden.weight": torch.eye(2),
            "hidden.bias": torch.tensor([0.0, 3.0]),
            "output.weight": torch.tensor([[1.0, 0.0], [1.0, 2.0]]),
            "output.bias": torch.tensor([0.5, 0.0]),
        }
    )
    assert prototypes.tolist() == [[3.5, 4.0], [4.5, 8.0]]


def test_the_margin_is_the_largest_distance_of_mean_prototypes_but_capped() -> None:
    """The means are 3, 4 and 5 apart."""
    assert adaptive_margin(RECEIVED, LABELS, 100.0) == 5.0
    assert adaptive_margin(RECEIVED, LABELS, 4.5) == 4.5
    assert adaptive_margin(RECEIVED[:2], LABELS[:2], 100.0) == 0.0


def test_the_margin_lengthens_the_distance_to_ones_own() -> None:
    """Distances 1 and 2: with a margin of 3 to one's own, −log e⁻⁴ / (e⁻⁴ + e⁻²) = log(1 + e²)."""
    prototypes, received = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(1, 2)
    for label, margin, exponent in ((0, 3.0, 2.0), (0, 0.0, -1.0), (1, 0.5, 1.5)):
        loss = contrastive_loss(prototypes, received, torch.tensor([label]), margin)
        torch.testing.assert_close(loss, torch.tensor(math.log(1 + math.exp(exponent))))


def test_training_is_torchs_sgd() -> None:
    """Two epochs of two batches beside `torch.optim.SGD` on the same batches."""
    start, oracle = network(), network()
    draws = torch.Generator().manual_seed(1)
    sgd = torch.optim.SGD([value.requires_grad_() for value in oracle.values()], lr=0.1)
    for _ in range(2):
        for batch in torch.randperm(4, generator=draws).split(3):
            sgd.zero_grad()
            hidden = functional.linear(
                oracle["embedding"], oracle["hidden.weight"].T, oracle["hidden.bias"]
            )
            outputs = functional.linear(
                hidden.relu(), oracle["output.weight"].T, oracle["output.bias"]
            )
            far = (RECEIVED[batch][:, None] - outputs).square().sum(dim=2).sqrt()
            far = far + 2.0 * functional.one_hot(LABELS[batch], 3)
            functional.cross_entropy(-far, LABELS[batch]).backward()
            sgd.step()
    after, loss = trained(start, RECEIVED, LABELS, 2.0, 2, 3, 0.1, torch.Generator().manual_seed(1))
    assert loss > 0
    for name, value in oracle.items():
        torch.testing.assert_close(after[name], value.detach())
        assert torch.equal(start[name], network()[name])


def test_an_equal_prototype_has_a_gradient() -> None:
    """Where the distance is 0 it has no slope, and 0 is taken, not NaN."""
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    contrastive_loss(prototypes, prototypes.detach()[:1], torch.tensor([0]), 1.0).backward()
    assert bool(prototypes.grad.isfinite().all())


def test_the_pull_is_the_mean_over_images_also_those_without_a_prototype() -> None:
    """Squares 1, 4 → 2.5 of class 0. Class 1 is unknown and the padded image does not count."""
    representation = torch.tensor([[[1.0, 2.0], [9.0, 9.0], [7.0, 7.0]]], requires_grad=True)
    labels, present = torch.tensor([[0, 1, 0]]), torch.tensor([[1.0, 1.0, 0.0]])
    prototypes, has_prototype = torch.zeros(2, 2), torch.tensor([True, False])
    loss = pull(representation, labels, present, prototypes, has_prototype)
    assert loss.tolist() == [1.25]
    loss.sum().backward()
    assert representation.grad.tolist() == [[[0.5, 1.0], [0.0, 0.0], [0.0, 0.0]]]
