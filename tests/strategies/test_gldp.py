"""GLDP: what learns when, what is remembered over stages, and the global prototypes by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, Contribution, train_cohort
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from fedproto_app.strategies.gldp import (
    global_relation,
    local_relation,
    local_relation_of_predictions,
)
from tests.helpers.tiny_cohort import global_model
from tests.helpers.tiny_images import at_round, class_guidance, image_cohort, image_learner
from tests.strategies.server_half import accept, class_replies, class_server, guidance


def guidance_with(learner: AnyLearner, shared: list[int] | None = None) -> Guidance:
    """The model, and global prototypes of the classes `shared`, each filled with its number."""
    return class_guidance({label: label for label in shared or []}, global_model(learner))


def train(
    learner: AnyLearner, cohort: Cohort, guidance_with: Guidance
) -> tuple[dict[str, Tensor], Contribution]:
    learner.begin(cohort)
    context = learner.context(guidance_with, cohort)
    losses = train_cohort(learner, cohort, context)
    return losses, learner.contribution(cohort, context)


def test_mu_learns_with_nu_frozen_and_then_the_reverse() -> None:
    phases = [(phase.trainable, phase.epochs) for phase in image_learner().phases()]
    assert phases == [(("encoder.",), 1), (("head.",), 1)]


def test_the_head_learns_from_the_representations_that_mu_ended_with() -> None:
    """One pass over the images serves all epochs of the head: as if each batch were encoded."""
    gldp = image_learner(**{"gldp.head-epochs": 3, "optimizer.learning-rate": 0.1})
    cohort, second_cohort = image_cohort(gldp), image_cohort(gldp)
    train(gldp, cohort, guidance_with(gldp))

    gldp.task.fix_encoder = lambda parameters, samples: samples  # type: ignore[method-assign]
    train(gldp, second_cohort, guidance_with(gldp))
    for name, value in cohort.parameters.items():
        torch.testing.assert_close(value, second_cohort.parameters[name])


def test_local_prototypes_over_two_stages() -> None:
    """Class 0 recurs, 1 does not, 2 is new (GLDP, eq. 9). Nothing moves within a stage."""
    gldp = image_learner(**{"gldp.memory": 0.25})
    cohort = image_cohort(gldp)
    train(gldp, cohort, guidance_with(gldp))
    assert cohort.memory.old_known.sum() == 0  # the first stage has nothing behind it
    train(gldp, at_round(gldp, cohort, 2), guidance_with(gldp))
    assert cohort.memory.old_known.sum() == 0
    first = cohort.memory.new.clone()

    losses, _ = train(gldp, at_round(gldp, cohort, 3), guidance_with(gldp))
    assert cohort.memory.old_known.tolist() == [[1, 1, 0], [0, 1, 0]]
    assert torch.equal(cohort.memory.old, first)
    assert (losses["local-prototypes"] > 0).all()
    second = cohort.memory.new.clone()

    prototypes, has_prototype = gldp._remembered_prototypes(cohort)  # type: ignore[attr-defined]
    assert has_prototype.tolist() == [[True, True, True], [False, True, False]]
    torch.testing.assert_close(prototypes[0, 0], 0.25 * first[0, 0] + 0.75 * second[0, 0])
    assert torch.equal(prototypes[0, 1], first[0, 1])
    assert torch.equal(prototypes[0, 2], second[0, 2])


def test_prototypes_of_the_shared_encoder_are_those_before_training() -> None:
    """Ours: what is kept and sent is made with Θ as received, in every round."""
    gldp = image_learner(**{"gldp.prototype-encoder": "shared", "optimizer.learning-rate": 0.1})
    cohort = image_cohort(gldp)
    before, _ = gldp._current_prototypes(cohort)  # type: ignore[attr-defined]
    _, contribution = train(gldp, cohort, guidance_with(gldp))
    after, _ = gldp._current_prototypes(cohort)  # type: ignore[attr-defined]
    assert not torch.allclose(before, after)
    torch.testing.assert_close(torch.from_numpy(contribution.arrays["prototypes"]), before)
    assert torch.equal(cohort.memory.new, before)


def test_a_cyclic_schedule_remembers_after_every_turn() -> None:
    gldp = image_learner(**{"classification.stage-schedule": "cyclic"})
    cohort = image_cohort(gldp)
    train(gldp, cohort, guidance_with(gldp))
    train(gldp, at_round(gldp, cohort, 2), guidance_with(gldp))
    assert cohort.memory.old_known.tolist() == [[1, 1, 0], [0, 1, 0]]
    train(gldp, at_round(gldp, cohort, 3), guidance_with(gldp))
    assert cohort.memory.old_known.tolist() == [[1, 1, 1], [0, 1, 0]]


def terms(**changes: Any) -> dict[str, Tensor]:
    """The losses of a first round in the second stage, all classes having global prototypes."""
    gldp = image_learner(**changes)
    cohort = image_cohort(gldp)
    train(gldp, cohort, guidance_with(gldp))
    losses, _ = train(gldp, at_round(gldp, cohort, 3), guidance_with(gldp, [0, 1, 2]))
    return losses


def test_lambda_weighs_the_two_relations() -> None:
    balanced, only_global, only_local = (terms(**{"gldp.balance": b}) for b in (0.5, 0.0, 1.0))
    assert (balanced["local-prototypes"] > 0).all()
    assert (balanced["global-prototypes"] > 0).all()
    assert only_global["local-prototypes"].tolist() == [0, 0]
    assert only_local["global-prototypes"].tolist() == [0, 0]
    assert set(terms(**{"gldp.relations": False})) == {"total", "prediction"}


def test_both_readings_of_the_local_relation_are_different_losses() -> None:
    embedding = terms(**{"gldp.balance": 1.0})
    prediction = terms(**{"gldp.balance": 1.0, "gldp.local-relation": "prediction"})
    assert (prediction["local-prototypes"] > 0).all()
    assert not torch.allclose(embedding["local-prototypes"], prediction["local-prototypes"])


def accuracy_by(gldp: AnyLearner, cohort: Cohort, received: Guidance, rule: str) -> list[float]:
    return gldp.evaluate(cohort, received)[Metric("accuracy", rule=rule)]


@pytest.mark.parametrize("inference", ["local-prototypes", "global-prototypes", "head"])
def test_accuracy_is_that_of_the_chosen_inference(inference: str) -> None:
    gldp = image_learner(**{"gldp.inference": inference})
    cohort = image_cohort(gldp)
    received = guidance_with(gldp, [0, 1, 2])
    train(gldp, cohort, received)
    cohort.parameters["head.bias"][:, 2] = 100.0  # a class that neither client has
    metrics = gldp.evaluate(cohort, received)
    local, shared, head = (
        metrics[Metric("accuracy", rule=rule)]
        for rule in ("local-prototypes", "global-prototypes", "head")
    )
    assert head == [0, 0] != shared
    assert local[1] == 1  # a client of one class knows no other
    accuracy = metrics[Metric("accuracy")]
    assert accuracy == metrics[Metric("accuracy", rule=inference)]
    assert metrics[Metric("count/stage-1")] == [2, 1]
    assert metrics[Metric("correct/stage-1")] == [2 * accuracy[0], accuracy[1]]


def test_of_classes_at_hand_the_encoder_in_use_makes_the_prototypes_anew() -> None:
    """What it remembers of them, here nonsense, counts for classes of earlier stages only."""
    gldp = image_learner()
    cohort, received = image_cohort(gldp), guidance_with(gldp)
    before = accuracy_by(gldp, cohort, received, "local-prototypes")
    cohort.memory.new.fill_(1e6)
    cohort.memory.new_known.fill_(1)
    assert accuracy_by(gldp, cohort, received, "local-prototypes") == before
    later = at_round(gldp, cohort, 3)  # client a has no image of class 1 any more
    assert gldp.evaluate(later, received)[Metric("correct/class-1")] == [0, 2]


def test_before_the_first_aggregation_there_are_no_global_prototypes() -> None:
    gldp = image_learner()
    for shared, expected in (([], [0, 0]), ([1], [0.5, 1])):
        received = guidance_with(gldp, shared)
        assert accuracy_by(gldp, image_cohort(gldp), received, "global-prototypes") == expected


# --- the server's half ---------------------------------------------------------------------------


def test_new_recurring_and_absent_classes_over_two_rounds() -> None:
    """C̃ ← 0.25·C̃ + 0.75·mean for class 0. Class 1, which nobody has now, stays. Class 2 is new."""
    strategy = class_server("gldp", {}, **{"gldp.memory": 0.25})
    accept(strategy, class_replies(PROTOTYPES, {"a": {0: [4, 8], 1: [5, 5]}}))
    accept(strategy, class_replies(PROTOTYPES, {"c": {2: [7, 7], 0: [8, 0]}}))
    advice = guidance(strategy)
    assert advice.classes == [0, 1, 2]
    assert advice.arrays[PROTOTYPES].tolist() == [[7, 2], [5, 5], [7, 7]]
    assert strategy.state()["classes"].tolist() == [0, 1, 2]
    assert strategy.findings()["prototypes"]["names"].tolist() == ["ant", "bee", "cat"]


def test_a_node_weighs_by_its_clients_not_by_their_samples() -> None:
    """A plain mean (GLDP, eq. 5): two clients of 9 and 1 samples count 2."""
    assert class_server("gldp").weight(samples=10, clients=2) == 2


# --- the relations --------------------------------------------------------------------------------


def test_the_local_relation_is_the_divergence_from_the_old_to_the_new() -> None:
    """softmax([0, ln 3]) = (1/4, 3/4) and softmax([0, 0]) = (1/2, 1/2)."""
    old = torch.tensor([[[0.0, math.log(3)], [5.0, 5.0]]])
    means = torch.zeros(1, 2, 2)
    has_prototype = torch.tensor([[True, False]])
    expected = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    value = local_relation(means, torch.tensor([[4.0, 4.0]]), old, has_prototype)
    torch.testing.assert_close(value, torch.tensor([expected]))


def test_the_local_relation_is_a_mean_over_the_classes_that_both_stages_have() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(1, 3, 4, generator=generator)
    means = torch.randn(1, 3, 4, generator=generator)
    two_classes = local_relation(
        means, torch.tensor([[1.0, 2.0, 0.0]]), old, torch.ones(1, 3).bool()
    )
    single = [
        local_relation(means, torch.ones(1, 3), old, torch.tensor([[n == 0, n == 1, False]]))
        for n in range(2)
    ]
    torch.testing.assert_close(two_classes, (single[0] + single[1]) / 2)


def test_without_an_old_class_there_is_no_local_relation() -> None:
    means = torch.randn(1, 2, 3, requires_grad=True)
    value = local_relation(
        means, torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2, 3), torch.tensor([[False, True]])
    )
    value.sum().backward()
    assert value.tolist() == [0]
    assert means.grad.abs().sum() == 0


def test_the_relation_of_predictions_by_hand() -> None:
    """Class 0 has an old prototype predicted as (1/4, 3/4) and two images predicted as (1/2, 1/2)
    and (1/4, 3/4): half the divergence of the first. Class 1 has none."""
    third = math.log(3)
    logits = torch.tensor([[[0.0, 0.0], [0.0, third], [9.0, 0.0]]])
    labels, present = torch.tensor([[0, 0, 1]]), torch.ones(1, 3)
    old_logits = torch.tensor([[[0.0, third], [1.0, 2.0]]])
    value = local_relation_of_predictions(
        logits, labels, present, old_logits, torch.tensor([[True, False]])
    )
    expected = (0.25 * math.log(0.5) + 0.75 * math.log(1.5)) / 2
    torch.testing.assert_close(value, torch.tensor([expected]))


def test_the_old_prediction_is_a_target_without_gradient() -> None:
    old_logits = torch.randn(1, 2, 2, requires_grad=True)
    logits = torch.randn(1, 1, 2, requires_grad=True)
    local_relation_of_predictions(
        logits, torch.tensor([[1]]), torch.ones(1, 1), old_logits, torch.ones(1, 2).bool()
    ).sum().backward()
    assert old_logits.grad is None
    assert logits.grad.abs().sum() > 0


def test_the_global_relation_weighs_classes_by_their_share_of_the_images() -> None:
    """Client 0: 2/3 · MSE([2,3],[0,1]) + 1/3 · MSE([10,0],[10,2]) = 2/3 · 4 + 1/3 · 2. Client 1
    has class 1 only, which has no global prototype."""
    means = torch.zeros(2, 4, 2)
    means[0, 0], means[0, 2], means[1, 1] = torch.tensor([[2.0, 3.0], [10.0, 0.0], [3.0, 1.0]])
    counts = torch.tensor([[2.0, 0, 1, 0], [0, 3.0, 0, 0]])
    prototypes = torch.tensor([[0.0, 1.0], [50.0, 50.0], [10.0, 2.0], [1.0, 1.0]])
    has_prototype = torch.tensor([True, False, True, True])
    value = global_relation(means, counts, prototypes, has_prototype)
    torch.testing.assert_close(value, torch.tensor([10 / 3, 0.0]))
