"""Divergence of clients' data, to compare with the divergence of their prototypes (P, Fig. 8).

P does not say how to turn a data set into a distribution. We do it as for a row of a prototype: the
softmax of the mean day of the train part, p values on the client's standardised scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import make_windows
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.settings import DataSettings


def raw_divergence(series: Sequence[ClientSeries], settings: DataSettings) -> NDArray[np.floating]:
    """Return the Jensen-Shannon divergence of every two train parts, [N, N] float32 in nats."""
    days = np.stack([mean_day(client, settings) for client in series])
    return pairwise_divergence(torch.from_numpy(days).unsqueeze(1)).numpy()


def mean_day(series: ClientSeries, settings: DataSettings) -> NDArray[np.float64]:
    """Return the mean of each phase over the train batches, [p] on the standardised scale.

    A phase without a present value is 0, the mean of the train part.
    """
    windows = make_windows(series, settings)
    values = windows.targets[windows.batches, 0].astype(np.float64)  # (S, p), one step ahead
    present = windows.present[windows.batches, 0]
    sums = (values * present).sum(axis=0)
    return np.asarray(sums / present.sum(axis=0).clip(min=1))


def rank_correlation(first: NDArray[np.floating], second: NDArray[np.floating]) -> float | None:
    """Return Spearman's correlation of two symmetric [N, N] matrices over the pairs of clients.

    Pairs that are NaN in either matrix are left out, or None where the correlation is undefined.
    """
    from scipy.stats import spearmanr

    pairs = np.triu_indices(len(first), k=1)
    first_values, second_values = first[pairs], second[pairs]
    finite = np.isfinite(first_values) & np.isfinite(second_values)
    first_values, second_values = first_values[finite], second_values[finite]
    if len(first_values) < 2 or not np.ptp(first_values) or not np.ptp(second_values):
        return None
    return float(spearmanr(first_values, second_values).statistic)
