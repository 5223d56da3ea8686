"""The forecasting task: predict the next H values from windows of the client's series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sizes
from fedproto_app.data.scale import TrainedSeries
from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import ClientWindows
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.maths.ridge import clipped_samples, sums
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import (
    DECODER,
    Forecaster,
    LinearForecaster,
    projector_parameters,
)
from fedproto_app.models.model import Model
from fedproto_app.models.module import ModuleShape
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.forecasting.blocks import Blocks, block_metrics, blocks_of
from fedproto_app.tasks.forecasting.intervals import interval_metrics, is_half_width
from fedproto_app.tasks.forecasting.metrics import (
    BLOCK_FACTS,
    BLOCK_METRICS,
    COVERAGES,
    DIVISORS,
    FIRST_BLOCK,
    FORECASTING,
    LARGEST_COUNT,
    MAE,
    MAE_UNITS,
    MEAN_SIZE,
    MSE,
    RMSE_UNITS,
    SEASONAL_DIFFERENCE,
    VALIDATION_MSE,
    is_step,
    step_metric,
)
from fedproto_app.tasks.task import Task, at_once, in_padded, shuffled

if TYPE_CHECKING:
    from fedproto_app.models.kernel.epoch import Samples

EVALUATED_AT_ONCE = 2048  # samples per client, to bound the memory of evaluation

LARGEST_ERROR = 1e30  # so that the sum over any number of clients is finite
SMALLEST_DIVISOR = 1e-30
_DIVISORS = frozenset(metric.name for metric in DIVISORS)
_SHARES = frozenset(metric.name for metric in COVERAGES)
_WHOLE_NUMBERS = frozenset(metric.name for metric in BLOCK_FACTS[1:])
_OF_BLOCKS = frozenset(metric.name for metric in BLOCK_METRICS)


@dataclass(frozen=True)
class Batch:
    """One training step's samples of the first k clients of a cohort.

    inputs: [k, B, …], see `WindowLayout`. augmented: the same, temporally shifted, or None if not
    requested. targets, present: [k, B, H]. age: [k], how many newer batches each client has.
    """

    inputs: Tensor
    augmented: Tensor | None
    targets: Tensor
    present: Tensor
    age: Tensor


@dataclass(frozen=True)
class CohortSamples:
    """The samples of K clients, padded to the longest client and the largest number of batches.

    Clients are in falling order of their number of batches, so the clients that still train at
    step s are the first `active(s)`.
    """

    clients: Sequence[ClientWindows]
    names: list[str]
    inputs: Tensor  # [K, n, …], see `WindowLayout`
    targets: Tensor  # [K, n, H]
    present: Tensor  # [K, n, H] float, 0 where the target is missing or padding
    batches: Tensor  # [K, S, B] int64 sample numbers, or 0 in padding
    batch_counts: list[int]
    is_validation: Tensor  # [K, n, H] float
    is_test: Tensor  # [K, n, H] float
    blocks: list[Blocks]  # of each client's test part
    train_samples: list[int]  # as clients declare them, their weights in sample-weighted means
    explained: Tensor | None  # [K, n, H], what has been taken off the targets

    def active(self, step: int) -> int:
        """Return how many clients have more than `step` batches."""
        return sum(count > step for count in self.batch_counts)


class ForecastingTask(Task[ClientWindows, CohortSamples, Batch]):
    """Forecast H values at once, with FUELS's encoder and decoder or the user's module."""

    head = DECODER
    metrics = FORECASTING
    evaluates_local = False

    @classmethod
    def required_metrics(cls, settings: Settings) -> tuple[Metric, ...]:
        """Return the metrics, which include the kept model's error in each block of the test part
        and, for a horizon of several steps, the MSE of each step."""
        steps = settings.data.horizon
        each_step = (step_metric(step) for step in range(steps if steps > 1 else 0))
        return (*super().required_metrics(settings), *each_step, *BLOCK_METRICS)

    @staticmethod
    def sample_multiple(settings: Settings) -> int:
        return settings.data.period  # batches are whole periods

    @classmethod
    def metrics_fault(cls, metrics: Mapping[Metric, float]) -> str | None:
        for metric, value in metrics.items():
            is_declared = metric.name in cls.metrics.names or metric.name in _OF_BLOCKS
            if metric.rule or not (is_declared or is_step(metric.name)):
                return f"{str(metric)[:80]!r} is no metric of forecasts"
            if is_step(metric.name) and isnan(value):
                continue  # no test target so many steps ahead
            if metric.name in _WHOLE_NUMBERS:
                least = 1 if metric != FIRST_BLOCK else -LARGEST_COUNT  # before 1970: below 0
                if not (least <= value <= LARGEST_COUNT and value == int(value)):
                    return f"{metric} = {value:g} is no whole number that is possible"
            elif metric.name == VALIDATION_MSE.name and isnan(value):
                continue  # a young client without a validation target
            elif not 0 <= value <= LARGEST_ERROR:
                return f"its metrics are not finite and positive: {metric} = {value:g}"
            if metric.name in _DIVISORS and 0 < value < SMALLEST_DIVISOR:
                return f"its metrics are too small to divide by: {metric} = {value:g}"
            if metric.name in _SHARES and value > 1:
                return f"{metric} = {value:g} is not a share"
        return None

    @staticmethod
    def stays(metric: Metric) -> bool:
        """Return True for half widths of intervals, which stay with the client."""
        return is_half_width(metric.name)

    @staticmethod
    def shape_fault(shape: DataShape) -> str | None:
        is_series = shape == DataShape(columns=shape.columns, step=shape.step)
        return None if is_series else "its data are no series"

    def default_model(self) -> Model:
        """Return FUELS's forecaster, or the method's special model."""
        if special := self.special_model(self.layout):
            return special
        model_settings = self.settings.model
        hidden = model_settings.scaled(model_settings.representation_dim // 2)
        return Forecaster(model_settings.representation_dim, self.layout, hidden)

    @property
    def layout(self) -> WindowLayout:
        """The layout of a sample's inputs."""
        return window_layout(self.settings.data)

    def naive_forecasts(self) -> Tensor:
        """Return three forecasts that need no training: the last value, the seasonal naive forecast
        and the mean of the last periods. They are weights [3, 1 + Q] of the newest value and of the
        values at the Q distances."""
        data = self.settings.data
        periods = [
            number
            for number, distance in enumerate(data.distances, start=1)
            if distance in data.periodic_distances
        ]
        weights = torch.zeros(3, 1 + len(data.distances), dtype=torch.float64)
        weights[0, 0] = 1
        weights[1, periods[-1]] = 1  # the longest distance is first
        weights[2, periods] = 1 / len(periods)
        return weights.to(self.device)

    def module_shape(self) -> ModuleShape:
        """Return the shape for a user's module, see `WindowLayout.with_beside`."""
        layout = self.layout
        window = layout.values + layout.beside_width
        return ModuleShape(window, layout.horizon, (window,), self.head)

    def sizes(self) -> Sizes:
        data = self.settings.data
        layout = self.layout
        return replace(
            super().sizes(),
            period=data.period,
            horizon=layout.horizon,
            regressors=layout.regressor_width,
            known=len(self.shape.columns),
        )

    def initial_parameters(self, prototype_dim: int = 0) -> dict[str, Tensor]:
        """Return the model's parameters, and a projector's if prototype_dim > 0.

        The projector is drawn last, so that methods with and without a projector start from the
        same model.
        """
        generator = torch_stream(self.settings.seed, "initial parameters")
        return {
            **self.model.initial_parameters(generator),
            **projector_parameters(self.representation_dim, prototype_dim, generator),
        }

    def steps(self, client: ClientWindows, server_round: int) -> int:
        return len(client.batches)

    def scale(self, client: ClientWindows) -> dict[str, float]:
        """Return the numbers of the client's `TrainedSeries`."""
        return TrainedSeries(client.scale, client.end, client.clock).numbers()

    def response(self, client: ClientWindows) -> dict[str, list[Any]]:
        """Return the numbers of the response that was taken off the client's series, and the names
        of the columns that it responds to."""
        if client.response is None:
            return {}
        return {**client.response.numbers(), "columns": list(client.series.columns)}

    def gather(self, clients: Sequence[ClientWindows], server_round: int) -> CohortSamples:
        counts = [len(client.batches) for client in clients]
        assert counts == sorted(counts, reverse=True), "cohort out of order"
        length = max(len(client.targets) for client in clients)
        horizon, period = clients[0].targets.shape[1], clients[0].batches.shape[1]
        size = len(clients)
        inputs = torch.empty(0)
        targets, present = torch.zeros(2, size, length, horizon)
        validation, test = torch.zeros(2, size, length, 1)
        batches = torch.zeros(size, counts[0], period, dtype=torch.int64)
        for row, client in enumerate(clients):
            n, of_client = len(client.targets), torch.from_numpy(client.inputs)
            if row == 0:
                inputs = of_client.new_zeros(size, length, of_client.shape[1])
            inputs[row, :n] = of_client
            targets[row, :n] = torch.from_numpy(client.targets)
            present[row, :n] = torch.from_numpy(client.present)
            validation[row, client.validation] = 1
            test[row, client.validation_end : n] = 1
            batches[row, : counts[row]] = torch.from_numpy(client.batches)
        device = self.device
        return CohortSamples(
            clients=clients,
            names=[client.name for client in clients],
            inputs=inputs.to(device),
            targets=targets.to(device),
            present=present.to(device),
            batches=batches.to(device),
            batch_counts=counts,
            is_validation=(validation * present).to(device),
            is_test=(test * present).to(device),
            blocks=[_blocks_of_client(client) for client in clients],
            train_samples=[client.train_samples for client in clients],
            explained=_explained(clients, targets.to(device)),
        )

    def batches(
        self,
        samples: CohortSamples,
        generators: Sequence[torch.Generator],
        augmentation_low: float | None = None,
    ) -> Iterator[Batch]:
        """Yield an epoch: each client's batches in a random order, their rows in order of phase.

        augmentation_low: if given, also yield the temporally shifted view (Liu et al. 2022)
        x̂_k = a·x_k + (1 − a)·x_{k+1}, with a ~ U(augmentation_low, 1) drawn for each sample.
        """
        counts = samples.batch_counts
        order, _ = shuffled(counts, counts[0], generators)
        keep = None
        if augmentation_low is not None:
            keep = torch.ones(samples.batches.shape)
            for row, (count, generator) in enumerate(zip(counts, generators, strict=True)):
                keep[row, :count].uniform_(augmentation_low, 1.0, generator=generator)
            keep = keep.to(self.device)
        age = torch.tensor(counts).unsqueeze(1) - 1 - order
        order, age = order.to(self.device), age.to(self.device)
        clients = torch.arange(len(counts), device=self.device).unsqueeze(1)
        for step in range(counts[0]):
            k = samples.active(step)
            rows = clients[:k]
            numbers = samples.batches[rows[:, 0], order[:k, step]]  # (k, B) sample numbers
            inputs = samples.inputs[rows, numbers]
            augmented = None
            if keep is not None:
                share = keep[rows[:, 0], order[:k, step]].unsqueeze(2)  # (k, B, 1)
                augmented = share * inputs + (1 - share) * samples.inputs[rows, numbers + 1]
                # The numbers of a time are categories and cannot be mixed.
                self.layout.split(augmented)[1].copy_(self.layout.split(inputs)[1])
            yield Batch(
                inputs,
                augmented,
                samples.targets[rows, numbers],
                samples.present[rows, numbers],
                age[:k, step],
            )

    def kernel_epoch(
        self, samples: CohortSamples, generators: Sequence[torch.Generator]
    ) -> list[Samples]:
        """Return the epoch of `batches` for the compiled kernel, client by client."""
        from fedproto_app.models.kernel.epoch import Samples  # numba is an extra

        blocks = self.layout.blocks(samples.inputs)
        close, lagged = blocks.close.unsqueeze(3).contiguous(), blocks.lagged.contiguous()
        beside = blocks.beside()
        counts = samples.batch_counts
        order, _ = shuffled(counts, counts[0], generators)
        batches = samples.batches[torch.arange(len(counts)).unsqueeze(1), order]  # [K, S, B]
        return [
            Samples(
                close[row].numpy(),
                lagged[row].numpy(),
                beside[row].numpy(),
                samples.targets[row].numpy(),
                samples.present[row].numpy(),
                batches[row, :count].numpy(),
            )
            for row, count in enumerate(counts)
        ]

    def represent(self, parameters: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return self.encode(parameters, batch.inputs)

    def encode(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the representation r, [k, B, d_r], of inputs [k, B, …]."""
        if self.settings.model.module:
            inputs = self.layout.with_beside(inputs)
        with self.mixed_precision():
            return self.model.encode(parameters, inputs).float()

    def predict(
        self, parameters: Mapping[str, Tensor], representation: Tensor, batch: Batch | None = None
    ) -> Tensor:
        """Return the forecast ŷ, [k, B, H], of representations [k, B, d_r]."""
        return self._decode(parameters, representation, None if batch is None else batch.inputs)

    def forecast(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the forecast ŷ, [k, B, H], of inputs [k, B, …]."""
        return self._decode(parameters, self.encode(parameters, inputs), inputs)

    def _decode(
        self, parameters: Mapping[str, Tensor], representation: Tensor, inputs: Tensor | None
    ) -> Tensor:
        if self.model.sees_beside and self.layout.beside_width:
            assert inputs is not None, "the decoder sees the calendar of a sample"
            beside = self.layout.blocks(inputs).beside()
            representation = torch.cat([representation, beside], dim=2)
        return self.model.predict(parameters, representation)

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each client, [k], for predictions [k, B, H] (A, eq. 4)."""
        return prediction_loss(prediction, batch.targets, batch.present)

    def regression_sums(
        self, samples: CohortSamples, clip: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return XᵀX [K, H, d, d] and Xᵀy [K, H, d, 1] over train samples, for each step ahead.

        clip: the largest length of a sample (x, y). Longer samples are shortened. None: no limit.
        """
        weights, sums_by_step = self.train_targets(samples), []
        for step, regressors in enumerate(self.layout.each_regressors(samples.inputs)):
            pair = regressors, samples.targets[..., step, None]
            pair = pair if clip is None else clipped_samples(*pair, clip)
            sums_by_step.append(sums(*pair, weights[..., step]))
        grams, moments = zip(*sums_by_step, strict=True)
        return torch.stack(grams, dim=1), torch.stack(moments, dim=1)

    @torch.no_grad()
    def training_error(self, parameters: Mapping[str, Tensor], samples: CohortSamples) -> Tensor:
        """Return the MSE on each client's train samples, [K], for methods without batches."""
        forecasts = self._forecasts(parameters, samples)
        return prediction_loss(forecasts, samples.targets, self.train_targets(samples))

    def train_targets(self, samples: CohortSamples) -> Tensor:
        """Return a mask [K, n, H], 1 for the present targets of the samples that are in batches."""
        clients, length, _ = samples.present.shape
        real = in_padded(samples.batch_counts, samples.batches.shape[1], self.device)
        # Padding marks a place after the last sample, which is cut off below.
        marked = torch.where(real.unsqueeze(2) > 0, samples.batches, length).flatten(start_dim=1)
        used = samples.present.new_zeros(clients, length + 1).scatter_(1, marked, 1.0)
        return used[:, :length, None] * samples.present

    @torch.no_grad()
    def evaluate(
        self, parameters: Mapping[str, Tensor], samples: CohortSamples
    ) -> dict[Metric, list[float]]:
        """Return the validation and test errors of each client, see `judge`."""
        first = _first_judged(samples)
        return self.judge(self._forecasts(parameters, samples, first), samples, first)

    @torch.no_grad()
    def validation_error(self, parameters: Mapping[str, Tensor], samples: CohortSamples) -> Tensor:
        """Return the MSE on each client's validation samples, [K], which selects models."""
        first = _first_judged(samples)
        forecasts = self._forecasts(parameters, samples, first)
        return prediction_loss(
            forecasts.double(), samples.targets[:, first:], samples.is_validation[:, first:]
        )

    def _forecasts(
        self, parameters: Mapping[str, Tensor], samples: CohortSamples, first: int = 0
    ) -> Tensor:
        """Return the forecasts [K, n - first, H] for the samples from `first` on."""
        size = at_once(EVALUATED_AT_ONCE, len(samples.names))
        chunks = torch.split(samples.inputs[:, first:], size, dim=1)
        return torch.cat([self.forecast(parameters, inputs) for inputs in chunks], dim=1)

    def judge(
        self, forecasts: Tensor, samples: CohortSamples, first: int = 0
    ) -> dict[Metric, list[float]]:
        """Return each client's metrics for forecasts [K, n - first, H] of samples from `first` on.

        MSE and MAE are on the standardised scale. RMSE and MAE are also given in the data's units,
        as are the divisors of MASE and WAPE. The MAE is also split by the blocks of the test part.
        For a horizon of several steps there is the MSE of each step, NaN for a step without any
        test target. Half widths for later forecasts, which stay at the node (`stays`), are added.
        """
        error = (forecasts - samples.targets[:, first:]).double()
        validation, test = samples.is_validation[:, first:], samples.is_test[:, first:]

        def mean(values: Tensor, mask: Tensor) -> Tensor:
            masked, count = (values * mask).flatten(start_dim=1), mask.flatten(start_dim=1)
            return (masked.sum(dim=1) / count.sum(dim=1)).cpu()

        squared, absolute = error.square(), error.abs()
        mse, mae = mean(squared, test), mean(absolute, test)
        scales = [client.scale for client in samples.clients]
        std = _figures(scale.std for scale in scales)
        values = {
            VALIDATION_MSE: mean(squared, validation),
            MSE: mse,
            MAE: mae,
            RMSE_UNITS: mse.sqrt() * std,
            MAE_UNITS: mae * std,
            SEASONAL_DIFFERENCE: _divisor(_figures(scale.seasonal_difference for scale in scales)),
            MEAN_SIZE: _divisor(mean(_in_units(samples, first).abs(), test)),
        }
        metrics = {metric: value.tolist() for metric, value in values.items()}
        metrics |= interval_metrics(error, validation, test)
        firsts = [client.start + first for client in samples.clients]
        metrics |= block_metrics(absolute, test, firsts, samples.blocks)
        for step in range(error.shape[2] if error.shape[2] > 1 else 0):
            metrics[step_metric(step)] = mean(squared[..., step], test[..., step]).tolist()
        return metrics


def window_layout(data: DataSettings) -> WindowLayout:
    """Return the layout of the samples that `data.windows` builds with these settings."""
    return WindowLayout(
        data.close_window, len(data.distances), data.horizon, data.period, data.times
    )


def linear_model(settings: Settings, layout: WindowLayout) -> LinearForecaster:
    """Return the model of the methods with closed-form solutions."""
    return LinearForecaster(layout)


def _first_judged(samples: CohortSamples) -> int:
    """Return the number of the first sample in any client's validation or test part."""
    is_judged = (samples.is_validation + samples.is_test).amax(dim=2)
    return int(is_judged.argmax(dim=1).min())


def _blocks_of_client(client: ClientWindows) -> Blocks:
    step = 0.0 if client.clock is None else client.clock.step_seconds
    first, last = client.first_test, client.end - 1
    horizon, period = client.targets.shape[1], client.batches.shape[1]
    return blocks_of(first, last, horizon, period, step, client.block)


def _explained(clients: Sequence[ClientWindows], targets: Tensor) -> Tensor | None:
    """Return what has been taken off the clients' targets [K, n, H], or None if nothing has."""
    if all(client.explained is None for client in clients):
        return None
    explained = torch.zeros_like(targets)
    for row, client in enumerate(clients):
        if client.explained is not None:
            explained[row, : len(client.explained)] = torch.from_numpy(client.explained)
    return explained


def _figures(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _in_units(samples: CohortSamples, first: int) -> Tensor:
    """Return the targets [K, n - first, H] of samples from `first` on, in the data's units."""
    targets = samples.targets[:, first:].double()
    if samples.explained is not None:
        targets = targets + samples.explained[:, first:]
    scales = [client.scale for client in samples.clients]
    moments = ([scale.std for scale in scales], [scale.mean for scale in scales])
    std, mean = (_figures(moment).to(targets.device)[:, None, None] for moment in moments)
    return targets * std + mean


def _divisor(sizes: Tensor) -> Tensor:
    """Return the sizes, or 0 where a size cannot be used as a divisor."""
    usable = (sizes >= SMALLEST_DIVISOR) & (sizes <= LARGEST_ERROR)
    return torch.where(usable, sizes, 0.0)


def mean_day(samples: CohortSamples) -> Tensor:
    """Return the mean of each client's train targets by phase, [K, p], or 0 if all are missing."""
    rows = torch.arange(len(samples.names), device=samples.targets.device)[:, None, None]
    targets = samples.targets[rows, samples.batches][..., 0]  # (K, S, p)
    real = in_padded(samples.batch_counts, samples.batches.shape[1], targets.device)
    present = samples.present[rows, samples.batches][..., 0] * real.unsqueeze(2)
    return (targets * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)


TASK_CLASSES: dict[str, type[ForecastingTask]] = {"forecasting": ForecastingTask}
