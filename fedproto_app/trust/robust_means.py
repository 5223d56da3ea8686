"""Robust means of a client's group, and robust totals of sums.

All weights come from comparisons between clients, never from a client's own claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.maths.class_gaussian import ClassSums, class_means
from fedproto_app.maths.ridge import solve

_MOST_RAISED = 10.0  # largest factor by which a client's sums are scaled up
_RIDGE = 1e-3  # times the mean square, so that each client's fit exists
Middle = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # [N, …] → […]


def shortened_mean(members: Tensor, flat: Tensor, rows: Tensor) -> Tensor:
    """Return each client's values, moved by the mean of its members' differences from them.

    A difference longer than the median distance to all other clients, members or not, is shortened
    to it. Fewer than half of the clients cannot raise this median, even if all are members, and the
    result is no farther from the client's own values. This is centred clipping (Karimireddy, He and
    Jaggi, ICML 2021) with the client's values as the centre.

    members: [K, N] bool; flat: [N, D]; rows: [K], the clients' own rows of flat.
    Returns [K, D]; zeros without members.
    """
    means = torch.zeros(len(rows), flat.shape[1], dtype=flat.dtype)
    for place, row in enumerate(rows.tolist()):
        apart = flat.double() - flat[row].double()
        lengths = apart.norm(dim=1)
        distances = torch.cat([lengths[:row], lengths[row + 1 :]])
        limit = distances.median() if len(distances) else lengths.new_zeros(())  # of two, the lower
        chosen = members[place]
        if chosen.any():
            factors = (limit / lengths[chosen].clamp(min=1e-300)).clamp(max=1)
            moved = (factors.unsqueeze(1) * apart[chosen]).mean(dim=0)
            means[place] = (flat[row].double() + moved).to(flat.dtype)
    return means


def middle_of_members(members: Tensor, flat: Tensor, middle: Middle) -> Tensor:
    """Return the middle of each client's member rows, [K, D]; zeros without members.

    members: [K, N] bool; flat: [N, D].
    """
    middles = torch.zeros(len(members), flat.shape[1], dtype=flat.dtype)
    for place, chosen in enumerate(members):
        if chosen.any():
            middles[place] = torch.from_numpy(middle(flat[chosen].numpy()))
    return middles


def levelled(gram: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """Scale every client's sums so that their squares equal the median over clients.

    gram: [N, H, d, d]; moment: [N, H, d, 1], float64. The squares are the gram's trace, so the
    number of samples that a client claims does not matter; its own solution is unchanged. A client
    with less than a tenth of the median is scaled up by `_MOST_RAISED` only: a large moment beside
    almost no squares would otherwise dominate.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1).sum(dim=(1, 2)).clamp(min=1e-30)
    factors = (squares.median() / squares).clamp(max=_MOST_RAISED)[:, None, None, None]
    return gram * factors, moment * factors


def judged(gram: Tensor, moment: Tensor) -> Tensor:
    """Return the excess error [N] of each client's fit on the other clients' samples.

    Sums are a validation set: on the samples of client k, with A_k = XᵀX and its fit W_k, the
    squared error of any W exceeds the error of W_k by tr (W − W_k)ᵀ A_k (W − W_k), up to the small
    ridge. Each client is judged by all clients, and the lower median of their verdicts counts,
    which fewer than half of them cannot move beyond an honest client's verdict. A client without a
    finite fit gets infinity.

    gram: [N, H, d, d]; moment: [N, H, d, 1], both `levelled`, so that all verdicts have one scale.
    """
    mean_square = gram.diagonal(dim1=-2, dim2=-1).mean(dim=(1, 2)).clamp(min=1e-30)
    ridge = _RIDGE * mean_square[:, None, None, None] * torch.eye(gram.shape[-1]).double()
    fits = solve(gram + ridge, moment, 1e-30)[..., 0]  # (N, H, d)
    solvable = fits.isfinite().all(dim=(1, 2))
    fits = torch.where(solvable[:, None, None], fits, 0.0)
    verdicts = [
        torch.einsum("nhd,hde,nhe->n", away, client_gram, away)
        for client_gram, client_fit, ok in zip(gram, fits, solvable, strict=True)
        if ok
        for away in [fits - client_fit]
    ]
    if not verdicts:
        return torch.full((len(gram),), torch.inf, dtype=torch.float64)
    scores = torch.stack(verdicts).median(dim=0).values
    return torch.where(solvable, scores, torch.inf)


def robust_class_sums(clients_sums: Callable[[], Iterable[ClassSums]], middle: Middle) -> ClassSums:
    """Return robust totals of clients' sums of classes, gram [D, D] each.

    A class's mean is the `middle` of the means of the clients that have it. A client counts with at
    most the median number of samples, and with at most the median variance within classes.

    clients_sums: yields all clients' sums; called twice, because together they take gigabytes.
    """
    means, counts, spread = [], [], []
    for sums in clients_sums():
        within = _within(sums)
        means.append(class_means(sums.moment, sums.counts))
        counts.append(sums.counts)
        spread.append(within.diagonal().sum() / sums.counts.sum().clamp(min=1))
    numbers, variances = torch.stack(counts), torch.stack(spread)
    totals = numbers.sum(dim=1).clamp(min=1)
    seats = (totals.median() / totals).clamp(max=1)
    weights = (seats.unsqueeze(1) * numbers).sum(dim=0)  # (C,)
    centre = torch.zeros_like(means[0])
    for label in weights.nonzero().flatten().tolist():
        have = [
            client_means[label]
            for client_means, client_counts in zip(means, numbers, strict=True)
            if client_counts[label] > 0
        ]
        centre[label] = torch.from_numpy(middle(torch.stack(have).float().numpy())).double()
    moment = weights.unsqueeze(1) * centre
    gram = centre.T @ moment
    narrowed = seats * (variances.median() / variances.clamp(min=1e-30)).clamp(max=1)
    for factor, sums in zip(narrowed, clients_sums(), strict=True):
        gram += factor * _within(sums)
    return ClassSums(gram, moment, weights)


def _within(sums: ClassSums) -> Tensor:
    """Return Σ (x − µ_c)(x − µ_c)ᵀ of one client, [D, D]."""
    return sums.gram - class_means(sums.moment, sums.counts).T @ sums.moment
