"""Weekly statistics: the standardised means of a client's newest train weeks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import DataError
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows, shortest_length
from fedproto_app.settings import settings_from
from fedproto_app.strategies.compared.fedda.learner import weekly_statistics, weeks_needed
from fedproto_app.tasks.forecasting.task import CohortSamples, ForecastingTask

SETTINGS = settings_from(
    {"data.period": 4, "data.close-window": 2, "data.periodic-window": 2, "data.train-share": 0.8}
)
TASK = ForecastingTask(SETTINGS)


def client(values: np.ndarray, name: str = "a") -> ClientWindows:
    return make_windows(ClientSeries(name, values), SETTINGS.data)


def gathered(*clients: ClientWindows) -> CohortSamples:
    return TASK.gather(list(clients), 1)


def test_by_hand() -> None:
    """Day d of four has the values d + phase / 10. Eight of the 60 values are look-back, 41 train.
    Batch s of the ten has phase 0 of day 3 + s and the other phases of the day before; three weeks
    of three batches are s = 1 … 9."""
    values = np.add.outer(np.arange(15.0), [0.0, 0.1, 0.2, 0.3]).ravel()
    statistics = weekly_statistics(gathered(client(values)), 3, 3)
    means = np.add.outer([2.0, 5.0, 8.0], [3.0, 2.1, 2.2, 2.3])
    expected = (means - means.mean()) / means.std()
    np.testing.assert_allclose(statistics[0], expected, rtol=1e-4)
    assert statistics.square().mean().item() == pytest.approx(1)


def test_nothing_after_the_train_part_counts() -> None:
    values = np.random.default_rng(0).normal(size=60)
    train_end = client(values).train_end + 8
    changed = np.concatenate([values[:train_end], values[train_end:] + 100])
    first, second = (weekly_statistics(gathered(client(v)), 2, 3) for v in (values, changed))
    assert torch.equal(first, second)


def test_missing_values_do_not_count_and_cohorts_equal_their_clients() -> None:
    values = np.random.default_rng(0).normal(size=(2, 80))
    gaps = values[0].copy()
    gaps[20:24] = np.nan
    long, short = client(gaps, "long"), client(values[1][:60], "short")
    statistics = weekly_statistics(gathered(long, short), 3, 3)
    for row, windows in enumerate((long, short)):
        torch.testing.assert_close(statistics[row], weekly_statistics(gathered(windows), 3, 3)[0])
    samples = gathered(long)
    guessed = replace(samples, targets=torch.where(samples.present > 0, samples.targets, 1e6))
    assert torch.equal(weekly_statistics(guessed, 3, 3), weekly_statistics(samples, 3, 3))


def test_a_constant_client_has_zeros_and_a_short_one_is_an_error() -> None:
    samples = gathered(client(np.full(60, 7.0)))
    assert not weekly_statistics(samples, 3, 3).any()
    with pytest.raises(DataError, match="client 'a' trains on 10 periods, not on 12"):
        weekly_statistics(samples, 4, 3)


@pytest.mark.parametrize(
    ("changes", "weeks"), [({}, 4), ({"periodic_window": 1}, 2), ({"horizon": 24}, 4)]
)
def test_as_many_weeks_as_hold_a_window_are_needed(changes: dict[str, int], weeks: int) -> None:
    data = settings_from({}).data.model_copy(update=changes)
    assert weeks_needed(data) == weeks
    length = shortest_length(data, 7 * weeks)
    rng = np.random.default_rng(0)
    windows = [
        make_windows(ClientSeries("a", rng.normal(size=n)), data) for n in (length, length - 1)
    ]
    assert [len(client_windows.batches) for client_windows in windows] == [7 * weeks, 7 * weeks - 1]
