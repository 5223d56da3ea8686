"""The forecasting task: the next H values, from windows of a client's own series."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.loading import load
from fedproto_app.core.method import for_task
from fedproto_app.core.methods import method_named
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sizes
from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import ClientWindows
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.maths.ridge import clipped_samples, sums
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import DECODER, Forecaster, projector_parameters
from fedproto_app.models.model import Model
from fedproto_app.models.module import ModuleShape
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting.intervals import COVERAGES, interval_metrics, is_half_width
from fedproto_app.tasks.forecasting.intervals import NAMES as OF_INTERVALS
from fedproto_app.tasks.forecasting.samples import Batch, CohortSamples
from fedproto_app.tasks.task import Task, at_once, in_padded

EVALUATED_AT_ONCE = 2048  # samples a client, which bounds the memory that evaluation takes

LARGEST_ERROR = 1e30  # the sum over any number of clients is still finite
# What MASE and WAPE divide by, in the data's units. A client that has nothing to divide by tells 0:
# so every client tells every metric, and what a server divides is finite.
DIVISORS = ("seasonal-difference", "mean-size")
SMALLEST_DIVISOR = 1e-30
NAMES = ("validation-mse", "mse", "mae", "rmse-units", "mae-units", *DIVISORS)
TOLD = (*NAMES, *OF_INTERVALS)
METRICS = tuple(Metric(name) for name in TOLD)
_OF_A_STEP = "mse/step-"


class ForecastingTask(Task[ClientWindows, CohortSamples, Batch]):
    """Forecasting of H values at once, with FUELS's encoder and decoder or the user's module."""

    head = DECODER
    criterion = Metric("validation-mse")
    evaluates_local = False

    @staticmethod
    def required_metrics(settings: Settings) -> tuple[Metric, ...]:
        """Of several steps ahead also the MSE of each."""
        steps = settings.data.horizon
        return (*METRICS, *(step_metric(step) for step in range(steps if steps > 1 else 0)))

    @staticmethod
    def sample_multiple(settings: Settings) -> int:
        return settings.data.period  # batches are whole periods

    @staticmethod
    def metrics_fault(metrics: Mapping[Metric, float]) -> str | None:
        for metric, value in metrics.items():
            if (metric.name not in TOLD and not _is_of_a_step(metric.name)) or metric.rule:
                return f"{str(metric)[:80]!r} is no metric of forecasts"
            if not 0 <= value <= LARGEST_ERROR:
                return f"its metrics are not finite and positive: {metric} = {value:g}"
            if metric.name in DIVISORS and 0 < value < SMALLEST_DIVISOR:
                return f"its metrics are too small to divide by: {metric} = {value:g}"
            if metric.name in COVERAGES and value > 1:
                return f"{metric} = {value:g} is no share"
        return None

    @staticmethod
    def stays(metric: Metric) -> bool:
        """Half widths of intervals are a client's own."""
        return is_half_width(metric.name)

    @staticmethod
    def shape_fault(shape: DataShape) -> str | None:
        return None if shape == DataShape() else "its data are no series"

    def own_model(self) -> Model:
        """FUELS's forecaster, or that of a method that has its own."""
        if named := for_task(method_named(self.settings.method).model, self.settings.task):
            make = load(named, f"the model of {self.settings.method}")
            made: Model = make(self.settings, self.layout)
            return made
        model = self.settings.model
        hidden = model.scaled(model.representation_dim // 2)
        return Forecaster(model.representation_dim, self.layout, hidden)

    @property
    def layout(self) -> WindowLayout:
        """Of the samples."""
        data = self.settings.data
        return WindowLayout(
            data.close_window, len(data.distances), data.horizon, data.period, data.times
        )

    def naive_forecasts(self) -> Tensor:
        """[3, 1 + Q] three forecasts that need no training, as weights of the newest value and of
        those at the Q distances: the last value, seasonal naive, the mean of the last periods."""
        data = self.settings.data
        periods = [
            number
            for number, distance in enumerate(data.distances, start=1)
            if distance % data.period == 0 and distance <= data.period * data.periodic_window
        ]
        weights = torch.zeros(3, 1 + len(data.distances), dtype=torch.float64)
        weights[0, 0] = 1
        weights[1, periods[-1]] = 1  # the longest distance is first
        weights[2, periods] = 1 / len(periods)
        return weights.to(self.device)

    def module_shape(self) -> ModuleShape:
        """A user's module gets the values of a sample and the calendar of its first target."""
        layout = self.layout
        window = layout.width - layout.times + layout.calendar_width
        return ModuleShape(window, layout.horizon, (window,), self.head)

    def sizes(self) -> Sizes:
        data = self.settings.data
        layout = self.layout
        return replace(
            super().sizes(),
            period=data.period,
            horizon=layout.horizon,
            regressors=layout.regressor_width,
        )

    def initial_parameters(self, prototype_dim: int = 0) -> dict[str, Tensor]:
        """Also a projector if prototype_dim > 0. It is drawn last, so that a method with a
        projector starts from the same model as one without."""
        generator = torch_stream(self.settings.seed, "initial parameters")
        return {
            **self.model.initial_parameters(generator),
            **projector_parameters(self.representation_dim, prototype_dim, generator),
        }

    def steps(self, client: ClientWindows, server_round: int) -> int:
        return len(client.batches)

    def scale(self, client: ClientWindows) -> dict[str, float]:
        """The scale's mean and deviation; in seconds the step of the clock, or where there is
        none the count at which the data ended."""
        scale = {"mean": client.mean, "std": client.std}
        if client.clock is not None:
            scale["step"] = float(client.clock.step / np.timedelta64(1, "s"))
        else:
            scale["end"] = float(client.end)
        return scale

    def gather(self, clients: Sequence[ClientWindows], server_round: int) -> CohortSamples:
        counts = [len(client.batches) for client in clients]
        assert counts == sorted(counts, reverse=True), "cohort out of order"
        length = max(len(client.targets) for client in clients)
        width, horizon = clients[0].inputs.shape[1], clients[0].targets.shape[1]
        size, period = len(clients), clients[0].batches.shape[1]
        inputs = torch.zeros(size, length, width)
        targets, present = torch.zeros(2, size, length, horizon)
        validation, test = torch.zeros(2, size, length, 1)
        batches = torch.zeros(size, counts[0], period, dtype=torch.int64)
        for row, client in enumerate(clients):
            n = len(client.targets)
            inputs[row, :n] = torch.from_numpy(client.inputs)
            targets[row, :n] = torch.from_numpy(client.targets)
            present[row, :n] = torch.from_numpy(client.present)
            validation[row, client.validation] = 1
            test[row, client.validation_end : n] = 1
            batches[row, : counts[row]] = torch.from_numpy(client.batches)
        to = self.device
        return CohortSamples(
            names=[client.name for client in clients],
            inputs=inputs.to(to),
            targets=targets.to(to),
            present=present.to(to),
            batches=batches.to(to),
            batch_counts=counts,
            is_validation=(validation * present).to(to),
            is_test=(test * present).to(to),
            std=_figures(client.std for client in clients),
            mean=_figures(client.mean for client in clients),
            seasonal_difference=_figures(client.seasonal_difference for client in clients),
            starts=[client.start for client in clients],
            lengths=[len(client.targets) for client in clients],
        )

    def batches(
        self,
        samples: CohortSamples,
        generators: Sequence[torch.Generator],
        augmentation_low: float | None = None,
    ) -> Iterator[Batch]:
        """One epoch: each client's batches in an order of its own, rows in their phase order.

        augmentation_low: if given, also make the temporally shifted view (Liu et al. 2022)
        x̂_k = a·x_k + (1 − a)·x_{k+1}, a ~ U(augmentation_low, 1) drawn per sample.
        """
        counts = samples.batch_counts
        order = torch.zeros(len(counts), counts[0], dtype=torch.int64)
        for row, (count, generator) in enumerate(zip(counts, generators, strict=True)):
            order[row, :count] = torch.randperm(count, generator=generator)
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
            who = clients[:k]
            picked = samples.batches[who[:, 0], order[:k, step]]  # (k, B) sample numbers
            inputs = samples.inputs[who, picked]
            augmented = None
            if keep is not None:
                share = keep[who[:, 0], order[:k, step]].unsqueeze(2)  # (k, B, 1)
                augmented = share * inputs + (1 - share) * samples.inputs[who, picked + 1]
                if times := self.layout.times:  # these are names of times, not amounts
                    augmented[..., -times:] = inputs[..., -times:]
            yield Batch(
                inputs,
                augmented,
                samples.targets[who, picked],
                samples.present[who, picked],
                age[:k, step],
            )

    def represent(self, parameters: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return self.encode(parameters, batch.inputs)

    def encode(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """r: [k, B, c + Q·H + j] → [k, B, d_r]."""
        if self.settings.model.module:
            inputs = self.layout.with_calendar(inputs)
        with self.mixed_precision():
            return self.model.encode(parameters, inputs).float()

    def predict(
        self, parameters: Mapping[str, Tensor], representation: Tensor, batch: Batch | None = None
    ) -> Tensor:
        """ŷ: [k, B, d_r] → [k, B, H]."""
        return self._decode(parameters, representation, None if batch is None else batch.inputs)

    def forecast(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """ŷ: [k, B, c + Q·H + j] → [k, B, H]."""
        return self._decode(parameters, self.encode(parameters, inputs), inputs)

    def _decode(
        self, parameters: Mapping[str, Tensor], representation: Tensor, inputs: Tensor | None
    ) -> Tensor:
        if self.model.sees_calendar and self.layout.times:
            assert inputs is not None, "the decoder sees the calendar of a sample"
            calendar = self.layout.calendar(inputs)
            representation = torch.cat([representation, calendar], dim=2)
        return self.model.predict(parameters, representation)

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """[k, B, H] → [k] (A, eq. 4)."""
        return prediction_loss(prediction, batch.targets, batch.present)

    def regression_sums(
        self, samples: CohortSamples, clip: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """XᵀX [K, H, d, d] and Xᵀy [K, H, d, 1] of the clients' train samples, step by step.

        clip: the most length of a sample (x, y); None: any.
        """
        weights, made = self.train_targets(samples), []
        for step, regressors in enumerate(self.layout.each_regressors(samples.inputs)):
            pair = regressors, samples.targets[..., step, None]
            pair = pair if clip is None else clipped_samples(*pair, clip)
            made.append(sums(*pair, weights[..., step]))
        grams, moments = zip(*made, strict=True)
        return torch.stack(grams, dim=1), torch.stack(moments, dim=1)

    @torch.no_grad()
    def training_error(self, parameters: Mapping[str, Tensor], samples: CohortSamples) -> Tensor:
        """The MSE of each client's train samples, [K], for methods that train without batches."""
        forecasts = self._forecasts(parameters, samples)
        return prediction_loss(forecasts, samples.targets, self.train_targets(samples))

    def train_targets(self, samples: CohortSamples) -> Tensor:
        """[K, n, H], 1 for the present targets of the samples that are in batches."""
        clients, length, _ = samples.present.shape
        real = in_padded(samples.batch_counts, samples.batches.shape[1], self.device)
        # What is no batch marks a place behind the samples.
        marked = torch.where(real.unsqueeze(2) > 0, samples.batches, length).flatten(start_dim=1)
        used = samples.present.new_zeros(clients, length + 1).scatter_(1, marked, 1.0)
        return used[:, :length, None] * samples.present

    @torch.no_grad()
    def evaluate(
        self, parameters: Mapping[str, Tensor], samples: CohortSamples
    ) -> dict[Metric, list[float]]:
        """Validation and test errors of each client, see `judge`."""
        first = _first_validated(samples)
        return self.judge(self._forecasts(parameters, samples, first), samples, first)

    @torch.no_grad()
    def validation_error(self, parameters: Mapping[str, Tensor], samples: CohortSamples) -> Tensor:
        """The MSE of each client's validation samples alone, [K]: what a choice may go by."""
        first = _first_validated(samples)
        forecasts = self._forecasts(parameters, samples, first)
        return prediction_loss(
            forecasts.double(), samples.targets[:, first:], samples.is_validation[:, first:]
        )

    def _forecasts(
        self, parameters: Mapping[str, Tensor], samples: CohortSamples, first: int = 0
    ) -> Tensor:
        """[K, n - first, H] of the samples from one on."""
        size = at_once(EVALUATED_AT_ONCE, len(samples.names))
        chunks = torch.split(samples.inputs[:, first:], size, dim=1)
        return torch.cat([self.forecast(parameters, inputs) for inputs in chunks], dim=1)

    def judge(
        self, forecasts: Tensor, samples: CohortSamples, first: int = 0
    ) -> dict[Metric, list[float]]:
        """`METRICS` of the forecasts [K, n - first, H] of the samples from `first` on, a list over
        the clients each.

        MSE and MAE on the standardised scale, RMSE and MAE also in the data's units, and what MASE
        and WAPE divide the latter by. Of several steps ahead also the MSE of each. Besides, half
        widths for what comes after (`stays`).
        """
        error = (forecasts - samples.targets[:, first:]).double()
        validation, test = samples.is_validation[:, first:], samples.is_test[:, first:]

        def mean(values: Tensor, mask: Tensor) -> Tensor:
            kept, count = (values * mask).flatten(start_dim=1), mask.flatten(start_dim=1)
            return (kept.sum(dim=1) / count.sum(dim=1)).cpu()

        squared, absolute = error.square(), error.abs()
        mse, mae = mean(squared, test), mean(absolute, test)
        values = (
            mean(squared, validation),
            mse,
            mae,
            mse.sqrt() * samples.std,
            mae * samples.std,
            _divisor(samples.seasonal_difference),
            _divisor(mean(_in_units(samples, first).abs(), test)),
        )
        told = {Metric(name): value.tolist() for name, value in zip(NAMES, values, strict=True)}
        told |= interval_metrics(error, validation, test)
        for step in range(error.shape[2] if error.shape[2] > 1 else 0):
            of_step = mean(squared[..., step], test[..., step])
            told[step_metric(step)] = torch.where(of_step.isnan(), mse, of_step).tolist()
        return told


def _first_validated(samples: CohortSamples) -> int:
    """The first sample that is of some client's validation part."""
    return int(samples.is_validation.amax(dim=2).argmax(dim=1).min())


def _figures(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _in_units(samples: CohortSamples, first: int) -> Tensor:
    """The targets [K, n - first, H] from a sample on, in the data's units."""
    targets = samples.targets[:, first:].double()
    std, mean = (one.to(targets.device)[:, None, None] for one in (samples.std, samples.mean))
    return targets * std + mean


def _divisor(sizes: Tensor) -> Tensor:
    """0 for what nothing can be divided by."""
    usable = (sizes >= SMALLEST_DIVISOR) & (sizes <= LARGEST_ERROR)
    return torch.where(usable, sizes, 0.0)


def step_metric(step: int) -> Metric:
    """The test MSE of the values so many steps after the first one forecast."""
    return Metric(f"{_OF_A_STEP}{step + 1}")


def _is_of_a_step(name: str) -> bool:
    number = name.removeprefix(_OF_A_STEP)
    return number != name and re.fullmatch("[1-9][0-9]{0,3}", number) is not None
