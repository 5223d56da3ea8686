"""FedDA's quasi-global model: what the server learns of its clients' statistics, before round 1."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.messages import Arrays
from fedproto_app.core.randomness import torch_stream
from fedproto_app.data.windows import lookback, time_numbers, window_positions
from fedproto_app.settings import DataSettings
from fedproto_app.strategies.compared.fedda import FedDaSettings
from fedproto_app.tasks.forecasting.samples import Batch
from fedproto_app.tasks.forecasting.task import ForecastingTask


def quasi_global_model(
    task: ForecastingTask, start: Arrays, statistics: NDArray[np.float32], section: FedDaSettings
) -> tuple[Arrays, float]:
    """The model after Adam's epochs on windows of the statistics, and the last epoch's mean loss.

    statistics: [N, W, B], each client's a series of W periods whose first value has phase 0.
    start: the model before, without the client axis. The rate falls to a tenth after half of the
    epochs and again after three quarters.
    """
    seed = task.settings.seed
    inputs, targets = _windows(statistics, task.settings.data)
    drawn = torch.randperm(len(inputs), generator=torch_stream(seed, "fedda", "share"))
    kept = drawn[: max(1, int(section.warm_up_share * len(inputs)))]
    inputs, targets = inputs[kept], targets[kept]

    parameters = {name: torch.tensor(value[None]).requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=section.warm_up_rate)
    epochs, loss = section.warm_up_epochs, 0.0
    falls = [max(1, epochs // 2), max(1, epochs * 3 // 4)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls)
    for epoch in range(epochs):
        order = torch.randperm(len(inputs), generator=torch_stream(seed, "fedda", "order", epoch))
        losses = []
        for rows in torch.split(order, section.warm_up_batch_size):
            batch = _batch(inputs[rows], targets[rows])
            optimizer.zero_grad()
            error = _loss(task, parameters, batch)
            error.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(error.item())
        schedule.step()
        loss = float(np.mean(losses))
    return {name: value.detach()[0].numpy() for name, value in parameters.items()}, loss


def _loss(task: ForecastingTask, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
    prediction = task.predict(parameters, task.represent(parameters, batch), batch)
    return task.loss(prediction, batch).sum()


def _windows(statistics: NDArray[np.float32], settings: DataSettings) -> tuple[Tensor, Tensor]:
    """[n, c + Q·H + j] and [n, H]: samples as of a series, of all clients' statistics together.

    The number of a week stands for that of a day, where models see one.
    """
    series = statistics.reshape(len(statistics), -1)
    firsts = np.arange(lookback(settings), series.shape[1] - settings.horizon + 1)
    values = series[:, window_positions(firsts, settings)]
    times = np.broadcast_to(time_numbers(firsts, settings), (*values.shape[:2], settings.times))
    targets = series[:, firsts[:, None] + np.arange(settings.horizon)]
    inputs = np.concatenate([values, times], axis=2)
    flat = (torch.from_numpy(one.reshape(-1, one.shape[2])) for one in (inputs, targets))
    return next(flat), next(flat)


def _batch(inputs: Tensor, targets: Tensor) -> Batch:
    """Of one client."""
    present = torch.ones_like(targets)
    return Batch(inputs[None], None, targets[None], present[None], torch.zeros(1))
