"""Trainable global prototypes (FedTGP; Zhang, Liu, Hua, Cao, AAAI 2024), their maths.

A small network makes the prototype of each class of a learnt vector of that class. Its parameters:
    embedding [C, D], hidden.weight [D, D], hidden.bias [D], output.weight [D, D], output.bias [D]
Shapes: K clients, B images, C classes, D width of the representation, n prototypes that came.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

EMBEDDING, HIDDEN, OUTPUT = "embedding", "hidden.", "output."

Network = Mapping[str, Tensor]


def generated(network: Network) -> Tensor:
    """The global prototypes [C, D]: linear, ReLU, linear."""
    hidden = network[EMBEDDING] @ network[HIDDEN + "weight"] + network[HIDDEN + "bias"]
    return hidden.relu() @ network[OUTPUT + "weight"] + network[OUTPUT + "bias"]


def adaptive_margin(prototypes: Tensor, labels: Tensor, threshold: float) -> float:
    """δ: the largest distance of two classes' mean prototypes, at most the threshold τ.

    prototypes: [n, D]; labels: [n]. 0 where all are of one class.
    """
    classes = sorted(set(labels.tolist()))
    means = torch.stack([prototypes[labels == one].mean(dim=0) for one in classes])
    return min(float(_distances(means, means).max()), threshold)


def contrastive_loss(
    generated_prototypes: Tensor, prototypes: Tensor, labels: Tensor, margin: float
) -> Tensor:
    """The mean cross-entropy of softmax(−φ): φ is the distance of what came to each generated
    prototype, that of its own class lengthened by the margin.

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
    """The network after epochs of SGD on batches of what came, and the last epoch's mean loss.

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
    representation: Tensor, labels: Tensor, present: Tensor, prototypes: Tensor, known: Tensor
) -> Tensor:
    """The mean squared difference of representations and their classes' global prototypes, [K].

    representation: [K, B, D]; labels, present: [K, B]; prototypes: [C, D]; known: [C]. The mean is
    over all images; those of a class without a prototype add 0.
    """
    squared = (representation - prototypes[labels]).square().mean(dim=2)  # (K, B)
    return (squared * present * known[labels]).sum(dim=1) / present.sum(dim=1)


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean, [n, D] and [m, D] → [n, m]; with gradient 0 where two are equal."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
