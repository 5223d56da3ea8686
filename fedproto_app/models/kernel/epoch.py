"""A client's epoch of local training: FUELS's forecaster, the supervised loss and Adam."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.models.kernel import cached, compiled
from fedproto_app.models.kernel.gru import Array, Gru, Parameter, backward, forward, new_tape


class ForecasterArrays(NamedTuple):
    """The arrays of the `Forecaster` in `models/forecaster.py`.

    close, periodic: the GRUs of the newest and of the periodic values. weight, bias: the decoder's,
    [2H + m, horizon] and [horizon].
    """

    close: Gru
    periodic: Gru
    weight: Parameter
    bias: Parameter


class Samples(NamedTuple):
    """A client's samples (see `WindowLayout`) and the steps of the epoch.

    close: [n, T, 1]. lagged: [n, Q, horizon]. beside: [n, m]. targets, present: [n, horizon].
    batches: the indices of each step's samples [S, B], in the order of the steps.
    """

    close: Array
    lagged: Array
    beside: Array
    targets: Array
    present: Array
    batches: NDArray[np.int64]


class Training(NamedTuple):
    """Whether encoder and head are trained, Adam's learning rate, and µ of the proximal term."""

    encoder: bool
    head: bool
    rate: float
    proximal: float


@cached
def train_epoch(
    model: ForecasterArrays, steps: int, samples: Samples, training: Training
) -> tuple[float, float]:
    """Take a step for each batch, and return the sums of the supervised and the proximal loss.

    steps: how many steps Adam has taken before.
    """
    epoch_steps, batch = samples.batches.shape
    hidden, horizon = len(model.close.hh.value), len(model.bias.value)
    close = new_tape(samples.close.shape[1], batch, 1, hidden)
    periodic = new_tape(samples.lagged.shape[1], batch, horizon, hidden)
    features = np.empty((batch, len(model.weight.value)), dtype=np.float32)
    forecasts = np.empty((batch, horizon), dtype=np.float32)
    loss, distance = 0.0, 0.0
    for step in range(epoch_steps):
        numbers = samples.batches[step]
        for b in range(batch):
            close.inputs[:, b] = samples.close[numbers[b]]
            periodic.inputs[:, b] = samples.lagged[numbers[b]]
            features[b, 2 * hidden :] = samples.beside[numbers[b]]
        forward(model.close, close)
        forward(model.periodic, periodic)
        features[:, :hidden] = close.states[-1]
        features[:, hidden : 2 * hidden] = periodic.states[-1]
        np.dot(features, model.weight.value, forecasts)
        loss += _squared_error(forecasts, model.bias.value, samples, numbers)

        number = steps + step + 1
        if training.head:
            np.dot(features.T, forecasts, model.weight.gradient)
            model.bias.gradient[:] = forecasts.sum(axis=0)
        if training.encoder:  # the error passes through the decoder before the decoder's step
            weight = model.weight.value
            backward(model.close, close, np.dot(forecasts, weight[:hidden].T))
            backward(model.periodic, periodic, np.dot(forecasts, weight[hidden : 2 * hidden].T))
            for gru in (model.close, model.periodic):
                distance += _step(gru.ih, number, training) + _step(gru.hh, number, training)
                distance += _step(gru.bias_ih, number, training)
                distance += _step(gru.bias_hh, number, training)
        if training.head:
            distance += _step(model.weight, number, training) + _step(model.bias, number, training)
    return loss, distance


@compiled
def _squared_error(
    forecasts: Array, bias: Array, samples: Samples, numbers: NDArray[np.int64]
) -> float:
    """Return Σ (ŷ − y)² / max(Σ 1, 1) over the present targets. Replace ŷ by the gradient there.

    forecasts: ŷ without its bias, [B, horizon].
    """
    batch, horizon = forecasts.shape
    squares, count = 0.0, np.float32(0)
    for b in range(batch):
        for h in range(horizon):
            present = samples.present[numbers[b], h]
            error = (forecasts[b, h] + bias[h] - samples.targets[numbers[b], h]) * present
            forecasts[b, h] = error
            squares += error * error
            count += present
    count = max(count, np.float32(1))
    forecasts *= np.float32(2) / count
    return float(squares / count)


@compiled
def _step(parameter: Parameter, number: int, training: Training) -> float:
    """Take Adam's step t (Kingma and Ba 2015) with torch's defaults, and return the proximal term.

    g ← g + µ (w − anchor)          the gradient of µ/2 · ‖w − anchor‖² (Li et al. 2020)
    m ← m + 0.1 (g − m)
    v ← 0.999 v + 0.001 g²
    w ← w − η / (1 − 0.9ᵗ) · m / (√v / √(1 − 0.999ᵗ) + 10⁻⁸)
    """
    w, g = parameter.value.reshape(-1), parameter.gradient.reshape(-1)
    m, v = parameter.first.reshape(-1), parameter.second.reshape(-1)
    proximal, squares = np.float32(training.proximal), 0.0
    if proximal:
        anchor = parameter.anchor.reshape(-1)
        for i in range(len(w)):
            apart = w[i] - anchor[i]
            squares += apart * apart
            g[i] += proximal * apart
    size = np.float32(training.rate / (1 - 0.9**number))
    scale = np.float32(1 / np.sqrt(1 - 0.999**number))
    for i in range(len(w)):
        m_i = m[i] + np.float32(0.1) * (g[i] - m[i])
        v_i = np.float32(0.999) * v[i] + np.float32(0.001) * g[i] * g[i]
        m[i], v[i] = m_i, v_i
        w[i] -= size * m_i / (np.sqrt(v_i) * scale + np.float32(1e-8))
    return training.proximal / 2 * squares
