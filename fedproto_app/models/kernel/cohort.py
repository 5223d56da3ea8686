"""Runs the kernel for a cohort's epoch, client by client, on views of torch's tensors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import scipy.linalg  # noqa: F401  # its BLAS is that of numba
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from fedproto_app.maths.optim import CohortAdam
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import CLOSE, DECODER, PERIODIC, Forecaster
from fedproto_app.models.gru import NAMES
from fedproto_app.models.kernel import cache_folder
from fedproto_app.models.kernel.epoch import ForecasterArrays, Samples, Training, train_epoch
from fedproto_app.models.kernel.gru import Gru, Parameter
from fedproto_app.models.model import ENCODER

_LIBRARIES = ThreadpoolController()


def train_cohort_epoch(
    parameters: Mapping[str, Tensor],
    trained: Sequence[str],
    adam: CohortAdam,
    clients: Sequence[Samples],
    *,
    prefix: str = "",
    anchor: Mapping[str, Tensor] | None = None,
    proximal_mu: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Train the cohort's forecasters in place. Return both losses' means over the steps, [K] each.

    parameters: [K, …] each. Those of the forecaster have the prefix. trained: the names of all
    parameters of the encoder, of the decoder, or of both. clients: each client's samples and
    batches. anchor: parameters without the client axis and the prefix, for the proximal term
    µ/2 · ‖w − anchor‖².
    """
    training = Training(
        encoder=any(name.startswith(prefix + ENCODER) for name in trained),
        head=any(name.startswith(prefix + DECODER) for name in trained),
        rate=adam.learning_rate,
        proximal=proximal_mu,
    )
    gradients = {name: torch.empty_like(value[0]) for name, value in parameters.items()}
    losses = torch.zeros(2, len(clients))
    with _LIBRARIES.limit(limits=1, user_api="blas"):  # the products are too small for several
        for row, samples in enumerate(clients):

            def parameter(name: str, row: int = row) -> Parameter:
                value = parameters[prefix + name][row]
                moments = [
                    moment[prefix + name][row] if prefix + name in trained else value
                    for moment in (adam.first, adam.second)
                ]
                pulled_to = value if anchor is None else anchor[name]
                arrays = (value, gradients[prefix + name], *moments, pulled_to)
                return Parameter(*(array.numpy() for array in arrays))

            close, periodic = (Gru(*(parameter(g + n) for n in NAMES)) for g in (CLOSE, PERIODIC))
            weight, bias = (parameter(DECODER + n) for n in ("weight", "bias"))
            model = ForecasterArrays(close, periodic, weight, bias)
            steps = int(adam.steps[trained[0]][row])
            sums = train_epoch(model, steps, samples, training)
            losses[:, row] = torch.tensor(sums) / max(len(samples.batches), 1)
    for name in trained:
        adam.steps[name] += torch.tensor([len(samples.batches) for samples in clients])
    return losses[0], losses[1]


def prepare() -> str:
    """Compile the kernel for later processes. Return a line about it, "" if it was done before."""
    folder, compiled = cache_folder(), cast("Any", train_epoch)
    if folder is None or compiled.signatures:
        return ""
    start = time.process_time()
    model = Forecaster(2, WindowLayout(1, 1, 1, 1, 0)).initial_parameters(torch.Generator())
    cohort = {name: value.unsqueeze(0) for name, value in model.items()}
    value, window = np.zeros((1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    samples = Samples(window, window, value[:, :0], value, value, np.zeros((1, 1), np.int64))
    train_cohort_epoch(cohort, list(cohort), CohortAdam(cohort, 0.1), [samples])
    if compiled.stats.cache_hits:
        return ""
    seconds = time.process_time() - start
    return f"kernel = 'numba': compiled into {folder} in {seconds:.0f} processor seconds"
