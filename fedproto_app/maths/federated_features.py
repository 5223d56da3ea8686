"""Classifier re-training with federated features (Shang, Lu, Huang, Wang, IJCAI 2022), its maths.

A linear classifier on representations of width d is [C, d + 1]: row j holds the weights of class j,
and in its last column their bias. A gradient with respect to it has the same shape.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_NEVER_ZERO = 1e-6  # added to products of norms
_ROUNDING = 1e-3  # of sums in float32
_NO_BIAS = 1e-9  # p of an image that speaks of no feature any more


def logits(classifier: Tensor, features: Tensor) -> Tensor:
    """classifier: [C, d + 1]; features: […, d]. Returns […, C]."""
    return functional.linear(features, classifier[:, :-1], classifier[:, -1])


def class_gradient(classifier: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The gradient of cross-entropy at the classifier, of images that are all of one class.

    classifier: [C, d + 1]; features: […, m, d]; labels: […], the class of each m images; weights:
    […, m], of the images in the mean, summing to 1. Returns […, C, d + 1], the sum over the images
    of w·(p − e_c) ⊗ (feature, 1).
    """
    predicted = logits(classifier, features).softmax(dim=-1)  # (…, m, C)
    target = functional.one_hot(labels, len(classifier)).to(predicted.dtype).unsqueeze(-2)
    residual = (predicted - target) * weights.unsqueeze(-1)
    return residual.transpose(-1, -2) @ _with_ones(features)


def gradient_distance(found: Tensor, wanted: Tensor) -> Tensor:
    """D, the sum of 1 − cosine over the rows of the weights, and over the biases as one more row.

    found, wanted: […, C, d + 1]. Returns […]. A row of zeros is as far as a right angle.
    """
    rows = _cosine(found[..., :-1], wanted[..., :-1])  # (…, C)
    return (1 - rows).sum(dim=-1) + 1 - _cosine(found[..., -1], wanted[..., -1])


def matched_features(
    features: Tensor, classifier: Tensor, labels: Tensor, wanted: Tensor, steps: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Steps of gradient descent on Σ_c D(gradient of the features of class c, wanted gradient).

    features: [n, m, d], those of n classes; labels: [n]; wanted: [n, C, d + 1]. Returns the new
    features and, [2], the sum of D before the first step and before the last.
    """
    weights = features.new_full(features.shape[:2], 1 / features.shape[1])
    distances = []
    for _ in range(steps):
        leaf = features.detach().requires_grad_()
        found = class_gradient(classifier, leaf, labels, weights)
        distance = gradient_distance(found, wanted).sum()
        (slope,) = torch.autograd.grad(distance, [leaf])
        features = leaf.detach() - rate * slope
        distances.append(distance.detach())
    return features, torch.stack([distances[0], distances[-1]])


def retrained(
    classifier: Tensor,
    features: Tensor,
    labels: Tensor,
    epochs: int,
    batch_size: int,
    rate: float,
    generator: torch.Generator,
) -> Tensor:
    """The classifier after epochs of SGD on cross-entropy: [C, d + 1].

    features: [n, d]; labels: [n]. The generator draws the order of each epoch.
    """
    inputs = _with_ones(features)
    targets = functional.one_hot(labels, len(classifier)).to(inputs.dtype)
    classifier = classifier.clone()
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=generator)
        for batch in torch.split(order, batch_size):
            some = inputs[batch]
            residual = (some @ classifier.T).softmax(dim=1) - targets[batch]
            classifier -= (rate / len(some)) * (residual.T @ some)
    return classifier


def batch_weights(images: int, batch_size: int, batches: int, generator: torch.Generator) -> Tensor:
    """[images] weights of the mean over random batches without repetition within a batch.

    Where all images fit into a batch, each counts alike.
    """
    size = min(batch_size, images)
    if size == images:
        return torch.full((images,), 1 / images)
    drawn = [torch.randperm(images, generator=generator)[:size] for _ in range(batches)]
    return torch.bincount(torch.cat(drawn), minlength=images) / (batches * size)


def gradient_fault(gradient: Tensor, label: int) -> str | None:
    """Why this can't be a mean gradient [C, d + 1] of images of one class, or None.

    p − e_c is between −1 and 0 for the class itself, between 0 and 1 for the others, and sums to 0.
    """
    bias = gradient[:, -1]
    others = torch.cat([bias[:label], bias[label + 1 :]])
    if not (-1 - _ROUNDING <= bias[label] <= _ROUNDING and (others >= -_ROUNDING).all()):
        return "its biases' part has the wrong signs or is beyond ±1"
    if bias.sum().abs() > _ROUNDING:
        return f"its biases' part sums to {bias.sum():.3g}, expected 0"
    return None


def feature_norm(gradient: Tensor) -> float:
    """The largest norm of a mean feature that the gradient [C, d + 1] speaks of.

    The row of class j is the sum of w·(p_j − e_cj)·feature, and these factors have one sign and sum
    to the bias's gradient. So row over bias is a mean of features.
    """
    norms, bias = gradient[:, :-1].norm(dim=1), gradient[:, -1].abs()
    return float((norms / (bias + _NO_BIAS)).max())


def _with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], dim=-1)


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """Along the last dimension."""
    norms: Tensor = one.norm(dim=-1) * other.norm(dim=-1)
    return (one * other).sum(dim=-1) / (norms + _NEVER_ZERO)
