"""FedAvg as a plain torch loop: no framework, no messages, no files but the line of a round.

    torchrun --nproc-per-node 2 -m benchmarks.peers.plain_loop CLIENTS.npz ROUNDS LINES.jsonl

Each process trains its share of the clients, one after the other, with fused Adam. One sum over
the processes a round makes the mean of all models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.forecaster import Forecaster, one_thread, read_clients, train_epoch


def main() -> None:
    clients_file, rounds, lines_file = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.init_process_group("gloo")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    one_thread()
    torch.manual_seed(0)  # the same first model in every process
    clients, model = read_clients(clients_file), Forecaster()
    shared = parameters_to_vector(model.parameters()).detach().clone()
    torch.manual_seed(1 + rank)
    for _ in range(rounds):
        total = torch.zeros(len(shared) + 1)  # the models' sum, and the losses'
        for batches in clients[rank::processes]:
            vector_to_parameters(shared.clone(), model.parameters())
            total[-1] += train_epoch(model, batches)
            total[:-1] += parameters_to_vector(model.parameters()).detach()
        distributed.all_reduce(total)
        mean = total / len(clients)
        shared = mean[:-1]
        if rank == 0:
            with lines_file.open("a") as lines:
                row = {"clients": len(clients), "loss": {"total": float(mean[-1])}}
                lines.write(json.dumps(row) + "\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
