"""Class prototypes: means, moving averages, and the nearest one (GLDP, eqs. 6, 9, 11 and 13).

Shapes: K clients, B images, C classes, D width of the representation. Prototypes are [K, C, D] with
a row for every class, and `has_prototype` [K, C] bool marks the valid rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def class_means(
    representation: Tensor, labels: Tensor, present: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return C_n, each class's mean representation (GLDP, eq. 6), and T_n, its number of images.

    representation: [K, B, D]. labels: [K, B]. present: [K, B], 0 for an image that does not count.
    C_n is [K, C, D], with gradient, and 0 for a class without images. T_n is [K, C] float.
    """
    member = functional.one_hot(labels, classes).to(representation.dtype) * present.unsqueeze(2)
    counts = member.sum(dim=1)
    sums = torch.bmm(member.transpose(1, 2), representation)
    return sums / counts.clamp(min=1).unsqueeze(2), counts


def moving_average(
    old: Tensor, old_known: Tensor, new: Tensor, new_known: Tensor, memory: float
) -> tuple[Tensor, Tensor]:
    """Return β·old + (1 − β)·new (GLDP, eqs. 9 and 11), and which classes are now known.

    A class known on one side only is taken over unchanged. old, new: […, C, D]. old_known,
    new_known: […, C] bool.
    """
    averaged = memory * old + (1 - memory) * new
    in_both = (old_known & new_known).unsqueeze(-1)
    either = torch.where(new_known.unsqueeze(-1), new, old)
    return torch.where(in_both, averaged, either), old_known | new_known


def nearness_of_classes(
    representation: Tensor, prototypes: Tensor, has_prototype: Tensor
) -> Tensor:
    """Return the negative distance to each class's prototype, [K, n, D], [K, C, D] → [K, n, C].

    The distance is Euclidean. The result is −∞ for a class without a prototype.
    """
    distance = torch.cdist(representation, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return -distance.masked_fill(~has_prototype.unsqueeze(1), torch.inf)


def nearest_prototype(representation: Tensor, prototypes: Tensor, has_prototype: Tensor) -> Tensor:
    """Return the class whose prototype is nearest (GLDP, eq. 13): [K, n, D] → [K, n].

    Ties go to the lowest class, and a client without prototypes gets −1.
    """
    nearest = nearness_of_classes(representation, prototypes, has_prototype).argmax(dim=2)
    return torch.where(has_prototype.any(dim=1, keepdim=True), nearest, -1)
