"""FedAvg as a plain torch loop: no framework, no messages, no files but the line of a round.

    torchrun --nproc-per-node 2 -m benchmarks.peers.plain_loop CLIENTS.npz ROUNDS LINES.jsonl

Each process trains its share of the clients, one after the other, with fused Adam. One sum over
the processes a round makes the mean of all models.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.forecaster import Batch, Forecaster, run_rounds, train_epoch


def train_share(shared: Tensor, clients: list[list[Batch]]) -> Tensor:
    """Return the sum of the clients' models after an epoch, followed by the sum of their losses."""
    model, total = Forecaster(), torch.zeros(len(shared) + 1)
    for batches in clients:
        vector_to_parameters(shared.clone(), model.parameters())
        total[-1] += train_epoch(model, batches)
        total[:-1] += parameters_to_vector(model.parameters()).detach()
    return total


if __name__ == "__main__":
    run_rounds(train_share)
