"""How different clients' own data are, beside the divergence of their prototypes (P, Fig. 8).

P does not say how a data set becomes a distribution. Here it is made as a prototype's row is: the
softmax of the mean day of the train part, p values on the client's standardised scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import make_windows
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.settings import DataSettings


def raw_divergence(
    series: Sequence[ClientSeries], settings: DataSettings
) -> NDArray[np.floating[Any]]:
    """The Jensen-Shannon divergence of every two clients' train parts, [N, N] float32 in nats."""
    days = np.stack([mean_day(one, settings) for one in series])
    return pairwise_divergence(torch.from_numpy(days).unsqueeze(1)).numpy()


def mean_day(series: ClientSeries, settings: DataSettings) -> NDArray[np.float64]:
    """The mean of each phase over the train batches, [p] on the standardised scale.

    A phase without a present value is 0, the mean of the train part.
    """
    windows = make_windows(series, settings)
    values = windows.targets[windows.batches, 0].astype(np.float64)  # (S, p), one step ahead
    there = windows.present[windows.batches, 0]
    sums = (values * there).sum(axis=0)
    return np.asarray(sums / there.sum(axis=0).clip(min=1))


def rank_correlation(
    first: NDArray[np.floating[Any]], second: NDArray[np.floating[Any]]
) -> float | None:
    """Spearman's correlation of two symmetric [N, N] matrices over the pairs of two clients.

    Pairs that are NaN in one of them are left out; None where it is not defined.
    """
    from scipy.stats import spearmanr

    pairs = np.triu_indices(len(first), k=1)
    left, right = first[pairs], second[pairs]
    known = np.isfinite(left) & np.isfinite(right)
    left, right = left[known], right[known]
    if len(left) < 2 or not np.ptp(left) or not np.ptp(right):
        return None
    return float(spearmanr(left, right).statistic)
