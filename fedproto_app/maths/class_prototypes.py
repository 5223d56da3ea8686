"""GLDP's class prototypes, each equation in one function (GLDP, eqs. 6 to 11 and 13).

Paper: "Global-Local Dynamic Prototype" framework for spatio-temporal heterogeneity (docs/gldp.md
names what it leaves open). Shapes: K clients, B images, C classes, D width of the representation.
Prototypes are [K, C, D] with a row for every class; `has_prototype` [K, C] bool marks the valid
rows. A value per client is [K].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def class_means(
    representation: Tensor, labels: Tensor, present: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return C_n, each class's mean representation (GLDP, eq. 6), and T_n, its number of images.

    representation: [K, B, D]; labels: [K, B]; present: [K, B], 0 for an image that does not count.
    Returns [K, C, D] with gradient, zeros for a class without images, and [K, C] float.
    """
    member = functional.one_hot(labels, classes).to(representation.dtype) * present.unsqueeze(2)
    counts = member.sum(dim=1)
    sums = torch.bmm(member.transpose(1, 2), representation)
    return sums / counts.clamp(min=1).unsqueeze(2), counts


def moving_average(
    old: Tensor, old_known: Tensor, new: Tensor, new_known: Tensor, memory: float
) -> tuple[Tensor, Tensor]:
    """Return β·old + (1 − β)·new (GLDP, eqs. 9 and 11); a class on one side only is unchanged.

    old, new: […, C, D]; old_known, new_known: […, C] bool. Returns the same two, updated.
    """
    averaged = memory * old + (1 - memory) * new
    in_both = (old_known & new_known).unsqueeze(-1)
    either = torch.where(new_known.unsqueeze(-1), new, old)
    return torch.where(in_both, averaged, either), old_known | new_known


def local_relation(means: Tensor, counts: Tensor, old: Tensor, old_known: Tensor) -> Tensor:
    """Return L_LP in the embedding space (GLDP, eq. 7): KL(softmax(Ĉ_n) ‖ softmax(C_n)), [K].

    Mean over the classes that have images here and an old local prototype; 0 if there is none.
    """
    log_old, log_new = old.log_softmax(dim=2), means.log_softmax(dim=2)
    divergence = (log_old.exp() * (log_old - log_new)).sum(dim=2)  # (K, C)
    return _mean(divergence, old_known & (counts > 0))


def local_relation_of_predictions(
    logits: Tensor, labels: Tensor, present: Tensor, old_logits: Tensor, old_known: Tensor
) -> Tensor:
    """Return L_LP of predictions (GLDP, eq. 8): KL(p(Ĉ_n) ‖ p(x)) over images x of class n, [K].

    Mean over a class's images, then over the classes with an old local prototype. logits:
    [K, B, C]; old_logits: [K, C, C], the head's logits for the prototypes, without gradient.
    """
    log_target = old_logits.detach().log_softmax(dim=2)
    index = labels.unsqueeze(2).expand(-1, -1, logits.shape[2])
    log_target = log_target.gather(1, index)  # (K, B, C), of each image's own class
    divergence = (log_target.exp() * (log_target - logits.log_softmax(dim=2))).sum(dim=2)
    by_class, counts = class_means(divergence.unsqueeze(2), labels, present, old_known.shape[1])
    return _mean(by_class.squeeze(2), old_known & (counts > 0))


def global_relation(
    means: Tensor, counts: Tensor, prototypes: Tensor, has_prototype: Tensor
) -> Tensor:
    """Return L_GP = Σ_n (T_n / T)·MSE(C_n, C̃_n) over classes with a prototype (GLDP, eq. 10), [K].

    prototypes: [C, D] and has_prototype: [C], the same for all clients. T counts all images,
    including images of classes without a global prototype.
    """
    distance = (means - prototypes).square().mean(dim=2)  # (K, C)
    share = counts / counts.sum(dim=1, keepdim=True)
    return (share * distance * has_prototype).sum(dim=1)


def nearest_prototype(representation: Tensor, prototypes: Tensor, has_prototype: Tensor) -> Tensor:
    """Return the class whose prototype is nearest (GLDP, eq. 13): [K, n, D] → [K, n].

    The distance is Euclidean; ties go to the lowest class. −1 for a client without prototypes.
    """
    distance = torch.cdist(
        representation, prototypes, compute_mode="donot_use_mm_for_euclid_dist"
    )  # (K, n, C)
    distance = distance.masked_fill(~has_prototype.unsqueeze(1), torch.inf)
    nearest = distance.argmin(dim=2)
    return torch.where(has_prototype.any(dim=1, keepdim=True), nearest, -1)


def nearness_of_classes(
    representation: Tensor, prototypes: Tensor, has_prototype: Tensor
) -> Tensor:
    """Return the negative distance to each class's prototype, [K, n, D], [K, C, D] → [K, n, C].

    has_prototype: [C] bool; −∞ for a class without a prototype.
    """
    distance = torch.cdist(representation, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return -distance.masked_fill(~has_prototype, torch.inf)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the classes in the mask, 0 without any: [K, C] → [K]."""
    masked = torch.where(mask, values, 0.0)
    return masked.sum(dim=1) / mask.sum(dim=1).clamp(min=1)
