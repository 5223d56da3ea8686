"""The maths of trainable global prototypes (FedTGP; Zhang, Liu, Hua, Cao, AAAI 2024).

A small network computes the prototype of each class from a learnt vector of the class. Parameters:
    embedding [C, D], hidden.weight [D, D], hidden.bias [D], output.weight [D, D], output.bias [D]
Shapes: K clients, B images, C classes, D width of the representation, n received prototypes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

EMBEDDING, HIDDEN, OUTPUT = "embedding", "hidden.", "output."

Network = Mapping[str, Tensor]


def generated(network: Network) -> Tensor:
    """Return the global prototypes [C, D]: linear, ReLU, linear."""
    hidden = network[EMBEDDING] @ network[HIDDEN + "weight"] + network[HIDDEN + "bias"]
    return hidden.relu() @ network[OUTPUT + "weight"] + network[OUTPUT + "bias"]


def adaptive_margin(prototypes: Tensor, labels: Tensor, threshold: float) -> float:
    """Return δ, the largest distance of two classes' mean prototypes, at most the threshold τ.

    prototypes: [n, D]; labels: [n]. 0 where all are of one class.
    """
    classes = sorted(set(labels.tolist()))
    means = torch.stack([prototypes[labels == label].mean(dim=0) for label in classes])
    return min(float(_distances(means, means).max()), threshold)


def contrastive_loss(
    generated_prototypes: Tensor, prototypes: Tensor, labels: Tensor, margin: float
) -> Tensor:
    """Return the mean cross-entropy of softmax(−φ).

    φ is the distance of a received prototype to each generated prototype; the distance to its own
    class's is lengthened by the margin.

    generated_prototypes: [C, D]; prototypes: [n, D]; labels: [n].
    """
    distances = _distances(prototypes, generated_prototypes)  # (n, C)
    lengthened = margin * functional.one_hot(labels, len(generated_prototypes))
    return functional.cross_entropy(-(distances + lengthened), labels)


def trained(
    network: Network,
    prototypes: Tensor,
    labels: Tensor,
    margin: float,
    epochs: int,
    batch_size: int,
    rate: float,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], float]:
    """Return the network after epochs of SGD on the prototypes, and the last epoch's mean loss.

    prototypes: [n, D]; labels: [n]. The generator draws the order of each epoch.
    """
    after, losses = dict(network), [0.0]
    for _ in range(epochs):
        losses = []
        order = torch.randperm(len(labels), generator=generator)
        for batch in torch.split(order, batch_size):
            leaves = {name: value.detach().requires_grad_() for name, value in after.items()}
            loss = contrastive_loss(generated(leaves), prototypes[batch], labels[batch], margin)
            slopes = torch.autograd.grad(loss, list(leaves.values()))
            after = {
                name: value.detach() - rate * slope
                for (name, value), slope in zip(leaves.items(), slopes, strict=True)
            }
            losses.append(loss.item())
    return after, sum(losses) / len(losses)


def pull(
    representation: Tensor,
    labels: Tensor,
    present: Tensor,
    prototypes: Tensor,
    has_prototype: Tensor,
) -> Tensor:
    """Return the mean squared difference of representations and their classes' prototypes, [K].

    representation: [K, B, D]; labels, present: [K, B]; prototypes: [C, D]; has_prototype: [C]. The
    mean is over all images; images of a class without a prototype add 0.
    """
    squared = (representation - prototypes[labels]).square().mean(dim=2)  # (K, B)
    return (squared * present * has_prototype[labels]).sum(dim=1) / present.sum(dim=1)


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Return Euclidean distances, [n, D], [m, D] → [n, m]; gradient 0 at equal points."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
