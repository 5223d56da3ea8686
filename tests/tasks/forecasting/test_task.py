"""Batches, the temporally shifted view, and the metrics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.settings import Settings, settings_from
from fedproto_app.tasks.forecasting.metrics import MASE, WAPE, step_metric
from fedproto_app.tasks.forecasting.task import ForecastingTask

SETTINGS = settings_from(
    {
        "data.period": 4,
        "data.close-window": 2,
        "data.periodic-window": 2,
        "model.representation-dim": 4,
    }
)


def windows(length: int, name: str = "a", settings: Settings = SETTINGS) -> ClientWindows:
    values = np.random.default_rng(len(name)).normal(size=length)
    return make_windows(ClientSeries(name, values), settings.data)


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + i) for i in range(count)]


def test_an_epoch_visits_every_batch_once_with_rows_in_phase_order() -> None:
    task = ForecastingTask(SETTINGS)
    long, short = windows(60, "long"), windows(40, "shorter")
    samples = task.gather([long, short], 1)
    batches = list(task.batches(samples, generators(2)))
    assert [len(batch.targets) for batch in batches] == [2] * 5 + [1] * (len(long.batches) - 5)
    for row, client in enumerate((long, short)):
        client_batches = [batch for batch in batches if len(batch.targets) > row]
        ages = sorted(int(batch.age[row]) for batch in client_batches)
        assert ages == list(range(len(client.batches)))
        for batch in client_batches:
            rows = client.batches[len(client.batches) - 1 - int(batch.age[row])]
            np.testing.assert_array_equal(batch.inputs[row], client.inputs[rows])
            np.testing.assert_array_equal(batch.targets[row], client.targets[rows])


def test_a_missing_target_has_no_part_in_the_loss() -> None:
    task = ForecastingTask(SETTINGS)
    values = np.random.default_rng(0).normal(size=40)
    values[12] = np.nan
    samples = task.gather([make_windows(ClientSeries("a", values), SETTINGS.data)], 1)
    batches = list(task.batches(samples, generators(1)))
    [holed] = [batch for batch in batches if not batch.present.all()]
    assert holed.present.sum() == holed.present.numel() - 1
    loss = task.loss(holed.targets + 2, holed)
    off = holed.targets + torch.where(holed.present > 0, 2.0, 100.0)
    assert loss.tolist() == task.loss(off, holed).tolist() == [pytest.approx(4)]


def test_the_order_of_batches_is_shuffled_and_seeded() -> None:
    task = ForecastingTask(SETTINGS)
    samples = task.gather([windows(100)], 1)

    def ages(seed: int) -> list[int]:
        return [int(batch.age[0]) for batch in task.batches(samples, generators(1, seed))]

    assert ages(0) == ages(0)
    assert ages(0) != ages(1)
    assert ages(0) != sorted(ages(0), reverse=True)


def test_the_shifted_view_mixes_in_the_next_sample() -> None:
    task = ForecastingTask(SETTINGS)
    client = windows(60)
    samples = task.gather([client], 1)
    shares = []
    for batch in task.batches(samples, generators(1), augmentation_low=0.8):
        assert batch.augmented is not None
        numbers = client.batches[len(client.batches) - 1 - int(batch.age[0])]
        inputs, following = (torch.from_numpy(client.inputs[n]) for n in (numbers, numbers + 1))
        share = ((batch.augmented[0] - following) / (inputs - following)).mean(dim=1, keepdim=True)
        torch.testing.assert_close(batch.augmented[0], share * inputs + (1 - share) * following)
        shares += share.flatten().tolist()
    assert 0.8 - 1e-4 <= min(shares) < 0.85
    assert 0.95 < max(shares) <= 1 + 1e-4


def test_evaluation_by_hand() -> None:
    task = ForecastingTask(SETTINGS)
    client, shorter = windows(60), windows(40, "shorter")
    parameters = {n: torch.zeros(2, *v.shape) for n, v in task.initial_parameters().items()}
    parameters["decoder.bias"] += 0.5  # a forecast of 0.5 whatever comes
    metrics = task.evaluate(parameters, task.gather([client, shorter], 1))
    for row, client_windows in enumerate((client, shorter)):
        error = client_windows.targets.astype(float) - 0.5
        validation, test = (
            error[client_windows.train_end : client_windows.validation_end],
            error[client_windows.validation_end :],
        )
        expected = {
            Metric("validation-mse"): (validation**2).mean(),
            Metric("mse"): (test**2).mean(),
            Metric("mae"): abs(test).mean(),
            Metric("rmse-units"): np.sqrt((test**2).mean()) * client_windows.scale.std,
            Metric("mae-units"): abs(test).mean() * client_windows.scale.std,
            Metric("seasonal-difference"): client_windows.scale.seasonal_difference,
            Metric("mean-size"): abs(client_windows.scale.original(test + 0.5)).mean(),
        }
        reported = {metric: metrics[metric][row] for metric in expected}
        assert reported == pytest.approx(expected)


def test_the_divisors_of_mase_and_wape_by_hand() -> None:
    """Train part 1 2 4 2 3 8: at period 2 its differences are 3 0 1 6, their mean 2.5. Test part
    4 −6, forecast 5 −8: MASE 1.5 / 2.5 = 0.6, WAPE 3 / 10 = 0.3."""
    data = {"close-window": 1, "periodic-window": 1, "train-share": 0.5, "validation-share": 0.25}
    settings = settings_from({"data.period": 2, **{f"data.{key}": v for key, v in data.items()}})
    values = np.array([1.0, 2, 4, 2, 3, 8, 5, 5, 4, -6])
    client = make_windows(ClientSeries("a", values), settings.data)
    task = ForecastingTask(settings)
    forecasts = (torch.tensor([5.0, 5, 5, -8]) - client.scale.mean) / client.scale.std
    judged = task.judge(forecasts[None, :, None], task.gather([client], 1), first=4)
    kept_metrics = {replace(metric, model=Model.KEPT): value for metric, (value,) in judged.items()}
    assert kept_metrics[Metric("seasonal-difference", Model.KEPT)] == 2.5
    assert kept_metrics[Metric("mean-size", Model.KEPT)] == pytest.approx(5)
    assert MASE.value(kept_metrics) == pytest.approx(0.6)
    assert WAPE.value(kept_metrics) == pytest.approx(0.3)


def test_a_constant_train_part_has_nothing_to_divide_by() -> None:
    values = np.r_[np.full(50, 0.1), np.zeros(10)]
    client = make_windows(ClientSeries("a", values), SETTINGS.data)
    task = ForecastingTask(SETTINGS)
    samples = task.gather([client], 1)
    judged = task.judge(torch.zeros_like(samples.targets), samples)
    assert judged[Metric("seasonal-difference")] == [0.0]
    small = replace(client, scale=replace(client.scale, seasonal_difference=1e-31))
    judged = task.judge(torch.zeros_like(samples.targets), task.gather([small], 1))
    assert judged[Metric("seasonal-difference")] == [0.0]


def test_a_step_without_test_targets_has_no_error() -> None:
    """The test part 1 . . 2 of three steps: samples 1 . . and . . 2 have nothing at step 2."""
    settings = settings_from({"data.period": 2, "data.horizon": 3, "data.close-window": 1})
    values = np.random.default_rng(0).normal(size=60)
    values[-3:-1] = np.nan
    windows = make_windows(ClientSeries("a", values), settings.data)
    windows = replace(windows, validation_end=len(windows.targets) - 2)
    assert windows.present[windows.test].tolist() == [[True, False, False], [False, False, True]]
    task = ForecastingTask(settings)
    samples = task.gather([windows], 1)
    judged = task.judge(samples.targets + torch.tensor([1.0, 5, 3]), samples)
    steps = [judged[step_metric(step)][0] for step in range(3)]
    assert steps == [pytest.approx(1), pytest.approx(np.nan, nan_ok=True), pytest.approx(9)]
    assert judged[Metric("mse")] == [pytest.approx(5)]
    other_steps = {m: v for m, v in judged.items() if m != step_metric(1)}
    assert np.isfinite(list(other_steps.values())).all()  # half widths are of the validation part
    reported = {metric: value for metric, (value,) in judged.items() if not task.stays(metric)}
    kept = {replace(metric, model=Model.KEPT): value for metric, value in reported.items()}
    assert task.metrics_fault(kept) is None


def test_clients_start_alike_and_a_projector_does_not_change_the_rest() -> None:
    task = ForecastingTask(SETTINGS)
    plain, projected = task.initial_parameters(), task.initial_parameters(prototype_dim=3)
    repeated = ForecastingTask(SETTINGS).initial_parameters(prototype_dim=3)
    assert all(torch.equal(value, repeated[name]) for name, value in projected.items())
    assert set(projected) - set(plain) == {"projector.weight", "projector.bias"}
    assert projected["projector.weight"].shape == (4, 3)
    assert all(torch.equal(value, projected[name]) for name, value in plain.items())
