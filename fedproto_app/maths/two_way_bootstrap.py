"""Confidence interval of the median ratio of two errors if both clients and days are samples.

Clients forecast the same days, so their errors are not independent: a holiday is hard for all of
them. A bootstrap over clients alone treats the days as fixed and is too narrow. Here clients and
days are drawn independently of each other (the pigeonhole bootstrap, Owen 2007, *The pigeonhole
bootstrap*, Annals of Applied Statistics 1(2)). Every drawn client is judged on the same drawn days,
which keeps the dependence between clients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DRAWS, LEVEL = 2000, 95  # bootstrap draws, and the interval's level in percent
_AT_ONCE = 2**21  # how many numbers are computed at once, to bound the memory

Floats = NDArray[np.float64]


def median_ratio_interval(errors: Floats, rival: Floats, draws: int = DRAWS) -> tuple[float, float]:
    """Return the percentile interval of the median over clients of errors / rival.

    errors, rival: [K, D], the sum of each client's errors on each day, 0 on days on which the
    client has no values. A client whose errors are missing has an infinite row, so its ratio is
    infinite. If there is one column, only clients are drawn.
    """
    clients, days = rival.shape
    rng = np.random.default_rng(0)
    weights = rng.multinomial(days, np.full(days, 1 / days), size=draws).T.astype(np.float64)
    drawn = rng.integers(clients, size=(clients, draws))
    fails: NDArray[np.bool_] = ~np.isfinite(errors.sum(axis=1))
    finite = np.where(fails[:, None], 0.0, errors)
    medians = np.empty(draws)
    step = max(1, _AT_ONCE // clients)
    for first in range(0, draws, step):
        part = slice(first, first + step)
        ratios = ratios_of(finite @ weights[:, part], rival @ weights[:, part])
        ratios[fails] = np.inf
        medians[part] = _medians(np.take_along_axis(ratios, drawn[:, part], axis=0))
    medians.sort()
    outside = round(draws * (1 - LEVEL / 100) / 2)
    return float(medians[outside]), float(medians[-1 - outside])


def ratios_of(errors: Floats, rival: Floats) -> Floats:
    """Return errors / rival: infinite if only the rival is 0, NaN if both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return errors / rival


def _medians(ratios: Floats) -> Floats:
    """Return the median of each column of [K, B]. A client that has no drawn day is left out."""
    missing = np.isnan(ratios)
    if not missing.any():
        medians: Floats = np.median(ratios, axis=0)
        return medians
    ratios[:, missing.all(axis=0)] = 1.0
    of_present: Floats = np.nanmedian(ratios, axis=0)
    return of_present
