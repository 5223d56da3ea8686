"""GLDP, eqs. 6 to 11 and 13 on embeddings made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedproto_app.maths.class_prototypes import (
    class_means,
    global_relation,
    local_relation,
    local_relation_of_predictions,
    moving_average,
    nearest_prototype,
)

# Client 0 has two images of class 0 and one of class 2, client 1 three of class 1; its fourth
# row is padding. Nobody has class 3.
EMBEDDED = torch.tensor(
    [
        [[1.0, 2.0], [3.0, 4.0], [10.0, 0.0], [0.0, 0.0]],
        [[0.0, 0.0], [3.0, 3.0], [6.0, 0.0], [99.0, 99.0]],
    ]
)
LABELS = torch.tensor([[0, 0, 2, 3], [1, 1, 1, 0]])
PRESENT = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]])


def test_prototypes_are_the_means_of_the_images_that_are_there() -> None:
    means, counts = class_means(EMBEDDED, LABELS, PRESENT, 4)
    assert counts.tolist() == [[2, 0, 1, 0], [0, 3, 0, 0]]
    assert means[0].tolist() == [[2, 3], [0, 0], [10, 0], [0, 0]]
    assert means[1].tolist() == [[0, 0], [3, 1], [0, 0], [0, 0]]


def test_a_prototype_passes_its_gradient_to_its_images_in_equal_parts() -> None:
    embedded = EMBEDDED.clone().requires_grad_()
    means, _ = class_means(embedded, LABELS, PRESENT, 4)
    means[1, 1, 0].backward()
    assert embedded.grad is not None
    torch.testing.assert_close(embedded.grad[1, :, 0], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]))
    assert embedded.grad[0].abs().sum() == 0


def test_moving_averages_over_three_stages_with_recurring_and_new_classes() -> None:
    """β = 0.25. Class 0 recurs in stage 3, class 1 comes in stage 2, class 2 in stage 3."""
    old, has_prototype = torch.zeros(1, 3, 1), torch.zeros(1, 3, dtype=torch.bool)
    for new in ([8.0, 0, 0], [0, 5.0, 0], [4.0, 0, 2.0]):
        stage = torch.tensor(new).view(1, 3, 1)
        old, has_prototype = moving_average(old, has_prototype, stage, stage.squeeze(2) > 0, 0.25)
    assert old.flatten().tolist() == [0.25 * 8 + 0.75 * 4, 5, 2]
    assert has_prototype.tolist() == [[True, True, True]]


def test_the_global_average_needs_no_client_axis() -> None:
    old, new = torch.tensor([[2.0], [7.0]]), torch.tensor([[4.0], [9.0]])
    average, has_prototype = moving_average(
        old, torch.tensor([True, True]), new, torch.tensor([True, False]), 0.5
    )
    assert average.tolist() == [[3], [7]]  # a class that no selected client has stays as it is
    assert has_prototype.tolist() == [True, True]


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
    means, counts = class_means(EMBEDDED, LABELS, PRESENT, 4)
    prototypes = torch.tensor([[0.0, 1.0], [50.0, 50.0], [10.0, 2.0], [1.0, 1.0]])
    has_prototype = torch.tensor([True, False, True, True])
    value = global_relation(means, counts, prototypes, has_prototype)
    torch.testing.assert_close(value, torch.tensor([10 / 3, 0.0]))


NEAR = torch.tensor([[[0.0, 0.0], [4.0, 0.0], [1.0, 0.0]]])


@pytest.mark.parametrize(
    ("has_prototype", "expected"),
    [
        ([True, True, True], [0, 1, 2]),
        ([True, True, False], [0, 1, 0]),
        ([False, True, False], [1, 1, 1]),
        ([False, False, False], [-1, -1, -1]),
    ],
)
def test_the_nearest_known_prototype(has_prototype: list[bool], expected: list[int]) -> None:
    assert nearest_prototype(NEAR, NEAR, torch.tensor([has_prototype])).tolist() == [expected]


def test_of_equally_near_prototypes_the_lowest_class_is_taken() -> None:
    image = torch.zeros(1, 1, 2)
    prototypes = torch.tensor([[[9.0, 0.0], [0.0, 3.0], [3.0, 0.0], [0.0, -3.0]]])
    assert nearest_prototype(image, prototypes, torch.ones(1, 4).bool()).tolist() == [[1]]


def test_clients_do_not_see_each_others_prototypes() -> None:
    def nearest_of(rows: slice) -> tuple[Tensor, Tensor]:
        means, counts = class_means(EMBEDDED[rows], LABELS[rows], PRESENT[rows], 4)
        return nearest_prototype(EMBEDDED[rows], means, counts > 0), means

    together = nearest_of(slice(None))
    for k in range(2):
        alone = nearest_of(slice(k, k + 1))
        assert torch.equal(together[0][k], alone[0][0])
        assert torch.equal(together[1][k], alone[1][0])
