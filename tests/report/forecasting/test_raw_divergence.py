"""The divergence of clients' raw data, by hand and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from fedproto_app.data.series import ClientSeries
from fedproto_app.report.forecasting.raw_divergence import (
    mean_day,
    rank_correlation,
    raw_divergence,
)
from fedproto_app.settings import DataSettings

# Windows of one value back and one period back: 2 steps of history, then 20 samples, 14 of them
# train, which are 7 batches of 2.
DATA = DataSettings(period=2, close_window=1, periodic_window=1, source="wide-csv")


def client(name: str, even: float, odd: float, start: int = 0, later: float = 0.0) -> ClientSeries:
    """Two values in turn, which differ from sample 14 on, where the validation part begins."""
    values = np.tile([float(even), float(odd)], 11)
    values[2 + 14 :] += later
    return ClientSeries(name, values, start=start)


def test_a_mean_day_is_of_the_train_part_alone_and_by_the_clocks_phase() -> None:
    np.testing.assert_allclose(mean_day(client("a", 1, 3), DATA), [-1, 1], rtol=1e-6)
    np.testing.assert_allclose(mean_day(client("a", 1, 3, later=1e6), DATA), [-1, 1], rtol=1e-6)
    np.testing.assert_allclose(mean_day(client("a", 1, 3, start=1), DATA), [1, -1], rtol=1e-6)
    gaps = client("a", 1, 3)
    gaps.values[2:16:2] = np.nan  # no value of phase 0 to learn from, but in the history
    assert mean_day(gaps, DATA)[0] == 0


def test_divergence_of_data_by_scipy() -> None:
    clients = [client("a", 1, 3), client("b", 3, 1), client("c", 10, 30)]
    softmax = np.exp([1, -1]) / np.exp([1, -1]).sum()
    apart = jensenshannon(softmax, softmax[::-1]) ** 2
    expected = np.array([[0, apart, 0], [apart, 0, apart], [0, apart, 0]])
    np.testing.assert_allclose(raw_divergence(clients, DATA), expected, atol=1e-6)


def test_the_correlation_is_of_ranks_and_of_known_pairs() -> None:
    first = np.array([[0, 1, 2.0], [1, 0, 3], [2, 3, 0]])
    assert rank_correlation(first, first**5) == pytest.approx(1)
    assert rank_correlation(first, 9 - first) == pytest.approx(-1)
    swapped = np.array([[0, 2, 1.0], [2, 0, 3], [1, 3, 0]])  # ranks 1 2 3 against 2 1 3
    assert rank_correlation(first, swapped) == pytest.approx(0.5)
    swapped[0, 1] = swapped[1, 0] = np.nan
    assert rank_correlation(first, swapped) == pytest.approx(1)
    assert rank_correlation(first, np.ones((3, 3))) is None
    assert rank_correlation(first[:2, :2], first[:2, :2]) is None
