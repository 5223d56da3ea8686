"""GLDP's local and global relations on embeddings made by hand."""

from __future__ import annotations

import math

import torch

from fedproto_app.strategies.gldp.learner import (
    global_relation,
    local_relation,
    local_relation_of_predictions,
)


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
    assert means.grad is not None
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
    assert logits.grad is not None
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
