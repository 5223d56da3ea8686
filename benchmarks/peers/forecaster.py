"""The task of all peers: the forecaster, its loss, the clients' windows. Needs torch and numpy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parameters_to_vector

CLOSE, HIDDEN = 3, 128
LEARNING_RATE = 0.001


class Forecaster(nn.Module):
    """Two GRUs over the close and the periodic values, one linear layer: [B, T] → [B, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.close = nn.GRU(1, HIDDEN, batch_first=True)
        self.periodic = nn.GRU(1, HIDDEN, batch_first=True)
        self.decoder = nn.Linear(2 * HIDDEN, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        windows = inputs.unsqueeze(2)
        _, close = self.close(windows[:, :CLOSE])
        _, periodic = self.periodic(windows[:, CLOSE:])
        prediction: Tensor = self.decoder(torch.cat([close[0], periodic[0]], dim=1))
        return prediction


Batch = tuple[Tensor, Tensor, Tensor]  # inputs [B, T], targets [B, 1], present [B, 1] bool


def batch_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error of the present targets."""
    inputs, targets, present = batch
    squared: Tensor = (model(inputs) - targets).square() * present
    return squared.sum() / present.sum().clamp(min=1)


def train_epoch(model: nn.Module, batches: list[Batch]) -> float:
    """Train one epoch of a client's batches in random order with a new Adam, and return the mean
    loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    total = 0.0
    for number in torch.randperm(len(batches)).tolist():
        optimizer.zero_grad()
        loss = batch_loss(model, batches[number])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
    return total / len(batches)


def one_thread() -> None:
    """Use one torch thread, whatever the environment says, and no denormals, as the app's
    workers."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def read_clients(file: Path) -> list[list[Batch]]:
    """Return each client's batches, from the arrays that `benchmarks.stock_flower` wrote."""
    with np.load(file, allow_pickle=False) as arrays:
        read = [torch.from_numpy(arrays[name]) for name in ("inputs", "targets", "present")]
        counts = arrays["counts"].tolist()
    batches = iter(zip(*read, strict=True))
    return [[next(batches) for _ in range(count)] for count in counts]


def run_rounds(train_share: Callable[[Tensor, list[list[Batch]]], Tensor]) -> None:
    """Run FedAvg in this process of several, with the files and rounds of the command line.

    train_share: trains this process's clients from the shared model, and returns the sum of their
        models, followed by the sum of their losses.
    """
    clients_file, rounds, lines_file = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.init_process_group("gloo")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    one_thread()
    torch.manual_seed(0)  # the same first model in every process
    clients = read_clients(clients_file)
    shared = parameters_to_vector(Forecaster().parameters()).detach()
    torch.manual_seed(1 + rank)
    for _ in range(rounds):
        total = train_share(shared, clients[rank::processes])
        distributed.all_reduce(total)
        mean = total / len(clients)
        shared = mean[:-1]
        if rank == 0:
            with lines_file.open("a") as lines:
                row = {"clients": len(clients), "loss": {"total": float(mean[-1])}}
                lines.write(json.dumps(row) + "\n")
    distributed.destroy_process_group()
