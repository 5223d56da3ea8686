"""The forecasting task: one value ahead, from windows of a client's own series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedproto_app.data.shape import DataShape
from fedproto_app.data.windows import ClientWindows
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.metrics import Metric
from fedproto_app.models.forecaster import DECODER, Forecaster, projector_parameters
from fedproto_app.models.module_checks import ModuleShape
from fedproto_app.randomness import torch_stream
from fedproto_app.settings import Settings
from fedproto_app.tasks.task import Task

EVALUATED_AT_ONCE = 2048  # samples a client, which bounds the memory that evaluation takes

LARGEST_ERROR = 1e30  # the sum over any number of clients is still finite
NAMES = ("validation-mse", "mse", "mae", "rmse-units", "mae-units")
METRICS = tuple(Metric(name) for name in NAMES)


@dataclass(frozen=True)
class Batch:
    """One training step's samples of the first k clients of a cohort.

    inputs: [k, B, c + q]; augmented: the same, temporally shifted, or None if nobody asked;
    targets, present: [k, B]; age: [k], how many batches of the client are newer than this one.
    """

    inputs: Tensor
    augmented: Tensor | None
    targets: Tensor
    present: Tensor
    age: Tensor


@dataclass(frozen=True)
class CohortSamples:
    """The samples of K clients, padded to the longest client and most batches.

    Clients stand in falling order of their number of batches, so the clients that still train at
    step s are the first `active(s)` ones.
    """

    names: list[str]
    inputs: Tensor  # [K, n, c + q]
    targets: Tensor  # [K, n]
    present: Tensor  # [K, n] float, 0 where the target is missing or padding
    batches: Tensor  # [K, S, B] int64 sample numbers; 0 in padding
    batch_counts: list[int]
    is_validation: Tensor  # [K, n] float
    is_test: Tensor  # [K, n] float
    std: Tensor  # [K] float64, the data's units per unit of the standardised scale

    @property
    def train_samples(self) -> list[int]:
        """Each client's samples in its batches, its weight in sample-weighted means."""
        return [count * self.batches.shape[2] for count in self.batch_counts]

    def active(self, step: int) -> int:
        """How many clients have more than `step` batches."""
        return sum(count > step for count in self.batch_counts)


class ForecastingTask(Task[ClientWindows, CohortSamples, Batch]):
    """One-step-ahead forecasting, with FUELS's encoder and decoder or the user's module."""

    head = DECODER
    criterion = Metric("validation-mse")
    evaluates_local = False

    @staticmethod
    def required_metrics(settings: Settings) -> tuple[Metric, ...]:
        return METRICS

    @staticmethod
    def sample_multiple(settings: Settings) -> int:
        return settings.data.period  # batches are whole periods

    @staticmethod
    def metrics_fault(metrics: Mapping[Metric, float]) -> str | None:
        for metric, value in metrics.items():
            if metric.name not in NAMES or metric.rule:
                return f"{str(metric)[:80]!r} is no metric of forecasts"
            if not 0 <= value <= LARGEST_ERROR:
                return f"its metrics are not finite and positive: {metric} = {value:g}"
        return None

    @staticmethod
    def shape_fault(shape: DataShape) -> str | None:
        return None if shape == DataShape() else "its data are no series"

    def own_model(self) -> Forecaster:
        return Forecaster(self.settings.model.representation_dim, self.settings.data.close_window)

    def module_shape(self) -> ModuleShape:
        window = self.settings.data.close_window + self.settings.data.periodic_window
        return ModuleShape(window, 1, (window,), self.head)

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
        """The scale's mean and deviation; in seconds the step of the clock, where there is one."""
        scale = {"mean": client.mean, "std": client.std}
        if client.clock is not None:
            scale["step"] = float(client.clock.step / np.timedelta64(1, "s"))
        return scale

    def gather(self, clients: Sequence[ClientWindows], server_round: int) -> CohortSamples:
        counts = [len(client.batches) for client in clients]
        assert counts == sorted(counts, reverse=True), "cohort out of order"
        length = max(len(client.targets) for client in clients)
        width = clients[0].inputs.shape[1]
        size, period = len(clients), clients[0].batches.shape[1]
        inputs = torch.zeros(size, length, width)
        targets, present = torch.zeros(size, length), torch.zeros(size, length)
        validation, test = torch.zeros(size, length), torch.zeros(size, length)
        batches = torch.zeros(size, counts[0], period, dtype=torch.int64)
        for row, client in enumerate(clients):
            n = len(client.targets)
            inputs[row, :n] = torch.from_numpy(client.inputs)
            targets[row, :n] = torch.from_numpy(client.targets)
            present[row, :n] = torch.from_numpy(client.present)
            validation[row, client.train_end : client.validation_end] = 1
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
            std=torch.tensor([client.std for client in clients], dtype=torch.float64),
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
        """r: [k, B, c + q] → [k, B, d_r]."""
        return self.model.encode(parameters, inputs)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        """ŷ: [k, B, d_r] → [k, B]."""
        return self.model.predict(parameters, representation).squeeze(2)

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """[k, B] → [k] (A, eq. 4)."""
        return prediction_loss(prediction, batch.targets, batch.present)

    @torch.no_grad()
    def evaluate(
        self, parameters: Mapping[str, Tensor], samples: CohortSamples
    ) -> dict[Metric, list[float]]:
        """Validation and test errors of each client, `METRICS` each a list over the clients.

        MSE and MAE on the standardised scale, RMSE and MAE also in the data's units.
        """
        first = int(samples.is_validation.argmax(dim=1).min())  # no train sample is needed here
        chunks = torch.split(samples.inputs[:, first:], EVALUATED_AT_ONCE, dim=1)
        forecasts = [self.predict(parameters, self.encode(parameters, x)) for x in chunks]
        error = (torch.cat(forecasts, dim=1) - samples.targets[:, first:]).double()
        validation, test = samples.is_validation[:, first:], samples.is_test[:, first:]

        def mean(values: Tensor, mask: Tensor) -> Tensor:
            return ((values * mask).sum(dim=1) / mask.sum(dim=1)).cpu()

        mse, mae = mean(error.square(), test), mean(error.abs(), test)
        values = (
            mean(error.square(), validation),
            mse,
            mae,
            mse.sqrt() * samples.std,
            mae * samples.std,
        )
        return {metric: value.tolist() for metric, value in zip(METRICS, values, strict=True)}
