"""Train FedProto by PFLlib, which is imported from a checkout.

    python -m benchmarks.peers.pfllib_fedproto CHECKOUT JOB.json RESULT.json

PFLlib writes its own results to ``../results``. JOB: `split` and `start`
(archives of `benchmarks.cross_check.split`), `seed`, `rounds`, `local_epochs`, `batch_size`,
`learning_rate`, `weight`. RESULT: each client's test accuracy after the last round by PFLlib's own
rule, the nearest prototype, and by its head, in the order of the clients' names, and the seconds.
"""

from __future__ import annotations

import json
import random
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.cross_check.network import GivenSplit, SmallCnn, load_start

# Settings that PFLlib reads and this run does not use.
UNUSED = {
    "random_join_ratio": False,
    "few_shot": 0,
    "time_select": False,
    "time_threthold": 1e4,
    "goal": "test",
    "save_folder_name": "items",
    "top_cnt": 100,
    "auto_break": False,
    "client_drop_rate": 0.0,
    "train_slow_rate": 0.0,
    "send_slow_rate": 0.0,
    "dlg_eval": False,
    "dlg_gap": 100,
    "batch_num_per_client": 2,
    "num_new_clients": 0,
    "fine_tuning_epoch_new": 0,
    "learning_rate_decay": False,
    "learning_rate_decay_gamma": 1.0,
}


class Split(GivenSplit):
    """Replaces PFLlib's reader of files, which are pickles."""

    def read(
        self, dataset: str, idx: int, is_train: bool = True, few_shot: int = 0
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the client's images and labels."""
        images, labels = self.images("train" if is_train else "test", self.names[idx])
        return list(zip(images, labels, strict=True))


class TwoParts(nn.Module):
    """The network with the names of PFLlib's parts."""

    def __init__(self, network: SmallCnn) -> None:
        super().__init__()
        self.base, self.head = network.encoder, network.head


def trained(checkout: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """Train once and return the accuracies."""
    sys.path.insert(0, str(checkout / "system"))
    split = Split(job["split"])
    for reads in ("flcore.clients.clientbase", "flcore.servers.serverbase"):
        vars(import_module(reads))["read_client_data"] = split.read
    torch.manual_seed(job["seed"])
    np.random.seed(job["seed"])  # noqa: NPY002  PFLlib draws from it
    random.seed(job["seed"])

    network = SmallCnn((1, 8, 8), split.classes)
    load_start(network, job["start"])
    arguments = Namespace(
        algorithm="FedProto",
        dataset="digits",
        device="cpu",
        model=TwoParts(network),
        num_classes=split.classes,
        num_clients=len(split.names),
        join_ratio=1.0,
        global_rounds=job["rounds"] - 1,  # it counts from 0 to this
        eval_gap=job["rounds"],  # before the first round alone
        local_epochs=job["local_epochs"],
        batch_size=job["batch_size"],
        local_learning_rate=job["learning_rate"],
        lamda=job["weight"],
        **UNUSED,
    )
    start = time.perf_counter()
    server = import_module("flcore.servers.serverproto").FedProto(arguments, 0)
    server.train()
    seconds = time.perf_counter() - start
    by_prototype = [client.test_metrics() for client in server.clients]
    return {
        "prototypes": [right / count for right, count, _ in by_prototype],
        "head": [_by_head(client) for client in server.clients],
        "seconds": seconds,
    }


@torch.no_grad()
def _by_head(client: Any) -> float:
    hits = [
        client.model.head(client.model.base(images)).argmax(dim=1) == labels
        for images, labels in client.load_test_data()
    ]
    return float(torch.cat(hits).double().mean())


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    checkout, job_file, result_file = map(Path, arguments)
    result = trained(checkout, json.loads(job_file.read_text(encoding="utf-8")))
    result_file.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
