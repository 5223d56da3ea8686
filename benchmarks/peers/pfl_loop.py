"""FedAvg by Apple's pfl-research, in an environment of its own (`benchmarks.peers.pfl_home`).

    torchrun --nproc-per-node 2 -m benchmarks.peers.pfl_loop CLIENTS.npz ROUNDS LINES.jsonl

Written as in its tutorials: `FederatedAveraging` on a `SimulatedBackend`, each client's batches in
memory, nothing evaluated after the first round, local Adam fused, the server's step the mean.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, distributed

from benchmarks.peers.forecaster import (
    LEARNING_RATE,
    Batch,
    Forecaster,
    batch_loss,
    one_thread,
    read_clients,
)


class PflForecaster(Forecaster):
    """The forecaster with pfl's methods, which adds up the losses of a round."""

    def __init__(self) -> None:
        super().__init__()
        self.totals = torch.zeros(2)  # the sum of losses, and of how many batches

    def loss(self, *batch: Tensor) -> Tensor:
        loss = batch_loss(self, batch)  # type: ignore[arg-type]  # three of them
        self.totals += torch.stack([loss.detach(), torch.ones(())])
        return loss

    def metrics(self, *batch: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(batch_loss(self, batch).item(), 1)}  # type: ignore[arg-type]


class Lines(TrainingProcessCallback):  # type: ignore[misc]  # pfl has no types here
    """Write each round's mean loss over the batches of all clients."""

    def __init__(self, module: PflForecaster, file: Path, clients: int) -> None:
        self._module, self._file, self._clients = module, file, clients

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        distributed.all_reduce(self._module.totals)
        losses, batches = self._module.totals.tolist()
        self._module.totals.zero_()
        if distributed.get_rank() == 0:
            with self._file.open("a") as lines:
                row = {"clients": self._clients, "loss": {"total": losses / batches}}
                lines.write(json.dumps(row) + "\n")
        return False, Metrics()


def shuffled(batches: list[Batch]) -> Dataset:
    """Return a client's batches in a new random order."""
    order = torch.randperm(len(batches)).tolist()
    columns = zip(*(batches[number] for number in order), strict=True)
    return Dataset(raw_data=tuple(torch.cat(column) for column in columns))


def main() -> None:
    clients_file, rounds, lines_file = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    one_thread()
    torch.manual_seed(0)
    clients, module = read_clients(clients_file), PflForecaster()
    torch.manual_seed(1 + distributed.get_rank())  # pfl has started it
    size = len(clients[0][0][0])

    def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr, fused=True)

    data = FederatedDataset(
        lambda user: shuffled(clients[user]),
        get_user_sampler("minimize_reuse", list(range(len(clients)))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=len(clients),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=adam,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=size),
        callbacks=[Lines(module, lines_file, len(clients))],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
