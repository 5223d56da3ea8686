"""A cohort's epoch with the kernel: views of torch's tensors, client by client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from fedproto_app.maths.optim import CohortAdam
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import CLOSE, DECODER, PERIODIC, Forecaster
from fedproto_app.models.gru import NAMES
from fedproto_app.models.kernel.epoch import ForecasterArrays, Samples, Training, train_epoch
from fedproto_app.models.kernel.gru import Gru, Parameter
from fedproto_app.models.model import ENCODER


class CohortEpoch(NamedTuple):
    """The samples of an epoch of K clients, [K, …] each, see `Samples`.

    batch_counts: the steps of each client, which come first in its batches [S, B].
    """

    close: Tensor
    lagged: Tensor
    beside: Tensor
    targets: Tensor
    present: Tensor
    batches: Tensor
    batch_counts: Sequence[int]

    def of_client(self, row: int) -> Samples:
        """Return a client's samples as views."""
        arrays = [tensor[row].numpy() for tensor in self[:-1]]
        return Samples(*arrays[:-1], arrays[-1][: self.batch_counts[row]])


def train_cohort_epoch(
    parameters: Mapping[str, Tensor],
    trained: Sequence[str],
    adam: CohortAdam,
    epoch: CohortEpoch,
    *,
    prefix: str = "",
    anchor: Mapping[str, Tensor] | None = None,
    proximal_mu: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Train the cohort's forecasters in place, and return both losses' means over the steps, [K].

    parameters: [K, …] each, the forecaster's under this prefix. trained: the names of all
    parameters of the encoder, of the decoder, or of both. anchor: parameters without the client
    axis and the prefix, for the proximal term µ/2 · ‖w − anchor‖².
    """
    training = Training(
        encoder=any(name.startswith(prefix + ENCODER) for name in trained),
        head=any(name.startswith(prefix + DECODER) for name in trained),
        rate=adam.learning_rate,
        proximal=proximal_mu,
    )
    gradients = {name: torch.empty_like(value[0]) for name, value in parameters.items()}
    losses = torch.zeros(2, len(epoch.batch_counts))
    with _libraries().limit(limits=1, user_api="blas"):  # products too small for several threads
        for row, count in enumerate(epoch.batch_counts):

            def parameter(name: str, row: int = row) -> Parameter:
                value = parameters[prefix + name][row]
                moments = [
                    moment[prefix + name][row] if prefix + name in trained else value
                    for moment in (adam.first, adam.second)
                ]
                to = value if anchor is None else anchor[name]
                arrays = (value, gradients[prefix + name], *moments, to)
                return Parameter(*(array.numpy() for array in arrays))

            grus = (Gru(*(parameter(gru + n) for n in NAMES)) for gru in (CLOSE, PERIODIC))
            decoder = (parameter(DECODER + n) for n in ("weight", "bias"))
            model = ForecasterArrays(*grus, *decoder)
            steps = int(adam.steps[trained[0]][row])
            sums = train_epoch(model, steps, epoch.of_client(row), training)
            losses[:, row] = torch.tensor(sums) / max(count, 1)
    for name in trained:
        adam.steps[name] += torch.tensor(epoch.batch_counts)
    return losses[0], losses[1]


def prepare() -> str:
    """Compile the kernel, or read it from numba's cache.

    Returns what to tell the user: the cost of the compilation, or "" if there was none.
    """
    start = time.process_time()
    model = Forecaster(2, WindowLayout(1, 1, 1, 1, 0)).initial_parameters(torch.Generator())
    clients = {name: value.unsqueeze(0) for name, value in model.items()}
    value = torch.zeros(1, 1, 1)
    window, no_calendar = value.unsqueeze(3), value[..., :0]
    epoch = CohortEpoch(window, window, no_calendar, value, value, value.long(), [1])
    train_cohort_epoch(clients, list(clients), CohortAdam(clients, 0.1), epoch)
    seconds = time.process_time() - start
    stats = train_epoch.stats
    if stats.cache_path is None:
        return (
            f"kernel = 'numba': no folder for numba's cache is writable, so each process compiles "
            f"it, in {seconds:.0f} processor seconds (NUMBA_CACHE_DIR names another folder)"
        )
    if stats.cache_hits:
        return ""
    return f"kernel = 'numba': compiled in {seconds:.0f} processor seconds, cached for later runs"


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries of this process, of which numba has chosen SciPy's BLAS."""
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()
