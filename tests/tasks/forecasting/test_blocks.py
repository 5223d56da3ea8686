"""Which blocks a test part has, and the parts of the MAE in them, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedproto_app.core.metrics import Model
from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import make_windows
from fedproto_app.settings import settings_from
from fedproto_app.tasks.forecasting.blocks import Blocks, block_metrics, blocks_of
from fedproto_app.tasks.forecasting.metrics import (
    BLOCK_METRICS,
    BLOCK_STEPS,
    FIRST_BLOCK,
    MAE,
    MOST_BLOCKS,
    STEP_SECONDS,
    block_metric,
)
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import expected_metrics

HOUR = 3600.0


@pytest.mark.parametrize(
    ("first", "last", "horizon", "period", "seconds", "expected"),
    [
        (100, 435, 24, 24, HOUR, Blocks(HOUR, 24, 4)),  # 14 days, the first from 04:00 on
        (100, 435, 1, 168, HOUR, Blocks(HOUR, 24, 4)),  # a day, however long the period
        (0, 99, 25, 24, HOUR, Blocks(HOUR, 48, 0)),  # no shorter than the horizon
        (0, 24 * 32 - 1, 1, 24, HOUR, Blocks(HOUR, 24, 0)),
        (0, 24 * 32, 1, 24, HOUR, Blocks(HOUR, 48, 0)),  # 33 days
        (-30, 30, 1, 24, 0.0, Blocks(0.0, 24, -2)),  # before 1970
        (0, 20, 1, 7, 86_400.0, Blocks(86_400.0, 1, 0)),
        (0, 20, 1, 52, 604_800.0, Blocks(604_800.0, 1, 0)),  # a step of a week is a block
    ],
)
def test_blocks_are_days_or_doubled(
    first: int, last: int, horizon: int, period: int, seconds: float, expected: Blocks
) -> None:
    assert blocks_of(first, last, horizon, period, seconds) == expected


def test_a_site_tells_no_more_than_whole_blocks() -> None:
    """Blocks of four steps. Of the values 3 … 12, those at 4 … 11 are in whole blocks, and 3 and 12
    belong to the nearest ones. Values 5 … 6 hold no whole block, and are one together."""
    blocks = blocks_of(3, 12, 1, 2, HOUR, least=4)
    assert blocks == Blocks(HOUR, 4, 1, count=2)
    errors = 2.0 ** torch.arange(10)[None, :, None]
    metrics = block_metrics(errors.double(), torch.ones_like(errors).double(), [3], [blocks])
    parts = [metrics[block_metric(n)][0] * 10 for n in range(3)]
    assert parts == pytest.approx([2**5 - 1, 2**10 - 2**5, 0])
    assert blocks_of(5, 6, 1, 2, HOUR, least=4) == Blocks(HOUR, 4, 2, count=1)
    weekly = settings_from({"data.least-periods": 7}).data
    hours = Clock(np.timedelta64(1, "h"), np.timedelta64(0, "h"))
    series = ClientSeries("a", np.arange(90 * 24.0) % 100, start=0, clock=hours)
    assert make_windows(series, weekly).block == 7 * 24


def test_an_error_belongs_to_the_block_of_its_value() -> None:
    """Blocks of two steps. Values at 3, 4, 5 and 6 have the errors 1, 2 and 4 one step ahead, and
    8, 16 and 32 two steps ahead. The first sample is not in the test part."""
    absolute = torch.tensor([[[99.0, 99.0], [1.0, 8.0], [2.0, 16.0], [4.0, 32.0]]])
    test = torch.ones_like(absolute)
    test[:, 0] = 0
    metrics = block_metrics(absolute.double(), test.double(), [2], [Blocks(HOUR, 2, 1)])
    assert [metrics[block_metric(n)][0] * 6 for n in range(4)] == pytest.approx(
        [1, 8 + 2 + 16 + 4, 32, 0]  # 3 | 4, 4, 5, 5 | 6
    )
    assert [metrics[fact] for fact in (STEP_SECONDS, BLOCK_STEPS, FIRST_BLOCK)] == [
        [HOUR],
        [2],
        [1],
    ]


def test_the_same_day_of_two_clients_is_the_same_block_and_the_parts_add_up() -> None:
    """The second client's data begin and end two days later."""
    settings = settings_from({"data.period": 4, "data.periodic-window": 1, "data.horizon": 2})
    clock = Clock(np.timedelta64(6, "h"), np.timedelta64(0, "h"))
    rng = np.random.default_rng(0)
    clients = [
        make_windows(
            ClientSeries(name, rng.normal(size=400), start=start, clock=clock), settings.data
        )
        for name, start in (("a", 1000), ("b", 1008))
    ]
    task = ForecastingTask(settings)
    samples = task.gather(clients, 1)
    forecasts = torch.zeros_like(samples.targets)
    metrics = task.judge(forecasts, samples)
    parts = np.array([metrics[block_metric(number)] for number in range(MOST_BLOCKS)])
    assert parts.sum(axis=0) == pytest.approx(metrics[MAE])
    assert metrics[BLOCK_STEPS] == [4, 4]
    assert metrics[FIRST_BLOCK][1] - metrics[FIRST_BLOCK][0] == 2
    assert task.metrics_fault({metric: values[0] for metric, values in metrics.items()
                               if metric in expected_metrics(settings)}) is None  # fmt: skip


def test_the_server_gets_them_of_the_kept_model_once() -> None:
    expected = expected_metrics(settings_from({}))
    assert len(set(expected)) == len(expected)
    of_blocks = [metric for metric in expected if metric in BLOCK_METRICS]
    assert of_blocks == [*BLOCK_METRICS]
    assert {metric.model for metric in of_blocks} == {Model.KEPT}


@pytest.mark.parametrize(
    ("metric", "value"),
    [(BLOCK_STEPS, 0), (BLOCK_STEPS, 1.5), (FIRST_BLOCK, 1e300), (FIRST_BLOCK, float("nan"))],
)
def test_blocks_that_cannot_be_are_refused(metric: object, value: float) -> None:
    assert "whole number" in str(ForecastingTask.metrics_fault({metric: value}))  # type: ignore[dict-item]
