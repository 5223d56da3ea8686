"""CReFF's maths on cases of one and two values, and against autograd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from fedproto_compared.creff import (
    batch_weights,
    class_gradient,
    feature_norm,
    gradient_distance,
    gradient_fault,
    logits,
    matched_features,
    retrained,
)

ZERO_CLASSIFIER = torch.zeros(2, 2)  # d = 1, C = 2: W = b = 0
FIRST = torch.tensor(0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the server has it: with tensors so small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gradient_of(feature: float) -> torch.Tensor:
    """Return the gradient of one image of class 0, [2, 2]."""
    return class_gradient(ZERO_CLASSIFIER, torch.tensor([[feature]]), FIRST, torch.ones(1))


def test_the_gradient_of_one_image_by_hand() -> None:
    """p = (½, ½), so p − e_0 = (−½, ½), times the feature 2 and times 1."""
    assert gradient_of(2.0).tolist() == [[-1.0, -0.5], [1.0, 0.5]]


def test_gradients_that_point_alike_are_0_apart_and_opposite_weights_4() -> None:
    """s = 1 against 2; s = −1 turns both rows of the weights round, and leaves the biases."""
    real = gradient_of(2.0)
    assert gradient_distance(gradient_of(1.0), real).item() == pytest.approx(0, abs=2e-5)
    assert gradient_distance(gradient_of(-1.0), real).item() == pytest.approx(4, abs=2e-5)
    assert gradient_distance(torch.zeros(2, 2), real).item() == 3  # right angles


def test_the_gradient_is_that_of_autograd() -> None:
    torch.manual_seed(0)
    classifier, features = torch.randn(4, 6), torch.randn(3, 7, 5)
    labels, weights = torch.tensor([2, 0, 3]), torch.rand(3, 7)
    weights /= weights.sum(dim=1, keepdim=True)
    gradient = class_gradient(classifier, features, labels, weights)
    for row in range(3):
        leaf = classifier.clone().requires_grad_()
        losses = functional.cross_entropy(
            logits(leaf, features[row]), labels[row].expand(7), reduction="none"
        )
        (expected,) = torch.autograd.grad((weights[row] * losses).sum(), [leaf])
        torch.testing.assert_close(gradient[row], expected)


def test_features_move_until_their_gradients_point_as_wanted() -> None:
    torch.manual_seed(0)
    classifier, labels = torch.randn(3, 5), torch.tensor([0, 2])
    real = torch.randn(2, 20, 4) + 3
    target = class_gradient(classifier, real, labels, torch.full((2, 20), 1 / 20))
    start = torch.randn(2, 6, 4)
    moved, distances = matched_features(start, classifier, labels, target, 200, 0.1)
    assert distances[1] < 0.1 * distances[0]
    gradient_after = class_gradient(classifier, moved, labels, torch.full((2, 6), 1 / 6))
    assert gradient_distance(gradient_after, target).sum() <= distances[1]
    # One step is the slope of the sum, which each class's features have to themselves.
    one_step, _ = matched_features(start, classifier, labels, target, 1, 0.1)
    alone, _ = matched_features(start[1:], classifier, labels[1:], target[1:], 1, 0.1)
    torch.testing.assert_close(one_step[1:], alone)


def test_a_classifier_is_retrained_as_torchs_sgd_would() -> None:
    """Batches of 3 of 7 features: the last of an epoch has one."""
    torch.manual_seed(0)
    features, labels, start = (
        torch.randn(7, 4),
        torch.tensor([0, 1, 2, 0, 1, 2, 0]),
        torch.zeros(3, 5),
    )
    actual = retrained(start, features, labels, 4, 3, 0.5, torch.Generator().manual_seed(1))
    leaf, orders = start.clone().requires_grad_(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD([leaf], lr=0.5)
    for _ in range(4):
        for batch in torch.randperm(7, generator=orders).split(3):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            functional.cross_entropy(logits(leaf, features[batch]), labels[batch]).backward()
            optimizer.step()
    torch.testing.assert_close(actual, leaf.detach())
    assert not start.any()


def test_a_few_images_count_alike_and_many_as_they_are_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    assert batch_weights(4, 32, 10, generator).tolist() == [0.25] * 4
    drawn = batch_weights(50, 8, 3, generator)
    assert drawn.sum().item() == pytest.approx(1)
    assert set((drawn * 24).round().int().tolist()) <= {0, 1, 2, 3}  # once a batch at most
    assert (drawn > 0).sum() <= 24


def test_a_gradient_tells_the_length_of_its_features() -> None:
    torch.manual_seed(0)
    features = torch.randn(30, 4).abs()
    weights = torch.full((30,), 1 / 30)
    gradient = class_gradient(torch.randn(3, 5), features, torch.tensor(1), weights)
    assert 0.5 < feature_norm(gradient) < features.norm(dim=1).max()
    assert feature_norm(1e10 * gradient) == pytest.approx(feature_norm(gradient), rel=1e-4)
    spoilt = gradient.clone()
    spoilt[:, :-1] *= 1e6
    assert feature_norm(spoilt) > 1e5
    assert gradient_fault(gradient, 1) is None


@pytest.mark.parametrize(
    ("bias", "reason"),
    [
        ([0.5, -0.5, 0.0], "wrong signs"),  # the gradient of class 1
        ([-2.0, 1.0, 1.0], "beyond ±1"),
        ([-0.5, 0.7, -0.2], "wrong signs"),
        ([-0.5, 0.2, 0.2], "sums to -0.1"),
        ([-1e30, 1e30, 0.0], "beyond ±1"),
        ([-0.5, 0.5, 0.0], None),
    ],
)
def test_what_cannot_be_the_gradient_of_class_0(bias: list[float], reason: str | None) -> None:
    gradient = torch.zeros(3, 5)
    gradient[:, -1] = torch.tensor(bias)
    fault = gradient_fault(gradient, 0)
    assert fault is None if reason is None else reason in str(fault)


def test_a_classifier_of_matched_features_tells_the_real_ones_apart() -> None:
    """It has never seen one; of the last class there were 4 images, of the others 40."""
    torch.manual_seed(0)
    centres, labels = 3 * torch.eye(4, 8), torch.arange(4)
    features, classifier = torch.randn(4, 20, 8), torch.randn(4, 9) / 3
    draws = torch.Generator().manual_seed(0)
    for _ in range(3):
        targets = []
        for label, count in enumerate([40, 40, 40, 4]):
            real = centres[label] + torch.randn(count, 8)
            even = torch.full((count,), 1 / count)
            targets.append(class_gradient(classifier, real, torch.tensor(label), even))
        features, _ = matched_features(
            features, classifier, labels, torch.stack(targets), steps=50, rate=0.1
        )
        classifier = retrained(
            torch.zeros(4, 9),
            features.flatten(0, 1),
            labels.repeat_interleave(20),
            60,
            16,
            0.05,
            draws,
        )
    test = centres.unsqueeze(1) + torch.randn(4, 100, 8)
    right = (logits(classifier, test).argmax(dim=2) == labels.unsqueeze(1)).float().mean(dim=1)
    assert right.min() > 0.75, right
    assert right.mean() > 0.85, right
