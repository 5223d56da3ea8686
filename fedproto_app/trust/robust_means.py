"""Means that bear hostile members: of those whom a client is compared with, and of sums.

Everything that counts is compared with what the others sent; nothing is a client's own word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.maths.class_gaussian import ClassSums, class_means
from fedproto_app.maths.ridge import solve

_MOST_RAISED = 10.0  # how much more than it sent a client's sums may count
_RIDGE = 1e-3  # of the mean square, so that each client's fit exists
Middle = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # [N, …] → […]


def shortened_mean(members: Tensor, flat: Tensor, rows: Tensor) -> Tensor:
    """Each client's own values, moved by the mean of its members' differences from them.

    A difference longer than the median is shortened to the median length. That is of the distances
    to all other clients, members or not: fewer than half of the clients cannot raise it, even if
    all of them are members. So the result is no farther from the client's own values than that.
    Centred clipping (Karimireddy, He and Jaggi, ICML 2021) with the client's own as the centre.

    members: [K, N] bool; flat: [N, D]; rows: [K], the clients' own rows of flat.
    Returns [K, D]; zeros without members.
    """
    made = torch.zeros(len(rows), flat.shape[1], dtype=flat.dtype)
    for place, row in enumerate(rows.tolist()):
        apart = flat.double() - flat[row].double()
        lengths = apart.norm(dim=1)
        others = torch.cat([lengths[:row], lengths[row + 1 :]])
        limit = others.median() if len(others) else lengths.new_zeros(())  # of two, the lower
        of = members[place]
        if of.any():
            factors = (limit / lengths[of].clamp(min=1e-300)).clamp(max=1)
            moved = (factors.unsqueeze(1) * apart[of]).mean(dim=0)
            made[place] = (flat[row].double() + moved).to(flat.dtype)
    return made


def middle_of_members(members: Tensor, flat: Tensor, middle: Middle) -> Tensor:
    """The middle of the member rows of flat: [K, N] bool, [N, D] → [K, D]; zeros without any."""
    made = torch.zeros(len(members), flat.shape[1], dtype=flat.dtype)
    for place, of in enumerate(members):
        if of.any():
            made[place] = torch.from_numpy(middle(flat[of].numpy()))
    return made


def levelled(gram: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of regressors in which every client counts as one with the median of their squares.

    gram: [N, H, d, d]; moment: [N, H, d, 1], float64. The squares are the gram's trace, so how
    many samples a client claims does not matter; its own solution stays the same. One with less
    than a tenth of the median counts less: its moment would be raised beside next to no squares.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1).sum(dim=(1, 2)).clamp(min=1e-30)
    factors = (squares.median() / squares).clamp(max=_MOST_RAISED)[:, None, None, None]
    return gram * factors, moment * factors


def judged(gram: Tensor, moment: Tensor) -> Tensor:
    """[N] how badly each client's fit suits the others' samples; infinite where there is no fit.

    Sums are a validation set: on the samples behind A_k = XᵀX and B_k the squared error of any W
    exceeds that of k's own fit W_k by tr (W − W_k)ᵀ A_k (W − W_k), up to the small ridge. Each
    client is judged by all clients, and the (lower) median of their verdicts counts, which fewer
    than half of them cannot move beyond what an honest one says.

    gram: [N, H, d, d]; moment: [N, H, d, 1]: `levelled`, so that all verdicts have one scale.
    """
    mean_square = gram.diagonal(dim1=-2, dim2=-1).mean(dim=(1, 2)).clamp(min=1e-30)
    ridge = _RIDGE * mean_square[:, None, None, None] * torch.eye(gram.shape[-1]).double()
    fits = solve(gram + ridge, moment, 1e-30)[..., 0]  # (N, H, d)
    there = fits.isfinite().all(dim=(1, 2))
    fits = torch.where(there[:, None, None], fits, 0.0)
    verdicts = [
        torch.einsum("nhd,hde,nhe->n", away, its, away)
        for its, own, ok in zip(gram, fits, there, strict=True)
        if ok
        for away in [fits - own]
    ]
    if not verdicts:
        return torch.full((len(gram),), torch.inf, dtype=torch.float64)
    scores = torch.stack(verdicts).median(dim=0).values
    return torch.where(there, scores, torch.inf)


def robust_class_sums(every: Callable[[], Iterable[ClassSums]], middle: Middle) -> ClassSums:
    """Totals over clients' sums of classes, gram [D, D] each, of which some are hostile.

    A class's mean is the `middle` of the means of the clients that have it. A client counts with at
    most the median number of samples, and with at most the median variance within classes.

    every: all clients' sums, one after the other; called twice, as together they are gigabytes.
    """
    means, counts, spread = [], [], []
    for one in every():
        within = _within(one)
        means.append(class_means(one.moment, one.counts))
        counts.append(one.counts)
        spread.append(within.diagonal().sum() / one.counts.sum().clamp(min=1))
    numbers, variances = torch.stack(counts), torch.stack(spread)
    totals = numbers.sum(dim=1).clamp(min=1)
    seats = (totals.median() / totals).clamp(max=1)
    weights = (seats.unsqueeze(1) * numbers).sum(dim=0)  # (C,)
    centre = torch.zeros_like(means[0])
    for label in weights.nonzero().flatten().tolist():
        have = [its[label] for its, of in zip(means, numbers, strict=True) if of[label] > 0]
        centre[label] = torch.from_numpy(middle(torch.stack(have).float().numpy())).double()
    moment = weights.unsqueeze(1) * centre
    gram = centre.T @ moment
    narrowed = seats * (variances.median() / variances.clamp(min=1e-30)).clamp(max=1)
    for factor, one in zip(narrowed, every(), strict=True):
        gram += factor * _within(one)
    return ClassSums(gram, moment, weights)


def _within(sums: ClassSums) -> Tensor:
    """[D, D] Σ (x − µ_c)(x − µ_c)ᵀ of one client."""
    return sums.gram - class_means(sums.moment, sums.counts).T @ sums.moment
