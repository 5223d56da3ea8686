"""Prototypes of classes on embeddings made by hand."""

from __future__ import annotations

import pytest
import torch

from fedproto_app.maths.class_prototypes import (
    class_means,
    moving_average,
    nearest_prototype,
    nearness_of_classes,
)

# Client 0 has two images of class 0 and one of class 2, client 1 three of class 1. The fourth
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


def test_the_nearest_known_prototype_scores_highest() -> None:
    representation = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    prototypes = torch.tensor([[[0.0, 1.0], [3.0, 4.0], [0.0, 0.0]]])
    scores = nearness_of_classes(representation, prototypes, torch.tensor([[True, True, False]]))
    expected = [[-1.0, -5.0, -torch.inf], [-(18.0**0.5), 0.0, -torch.inf]]
    torch.testing.assert_close(scores, torch.tensor([expected]))
