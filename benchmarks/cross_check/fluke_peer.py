"""Trains fluke's methods on a split, in its own environment, without the app.

    python -m benchmarks.cross_check.fluke_peer JOBS.json RESULTS.json

JOBS is a list of jobs: `split` and `start` (archives of `benchmarks.cross_check.split`), `seed`,
`rounds`, `batch_size`, `local_epochs`, `learning_rate`, and `methods`, each with a `name`, fluke's
`algorithm` and its `client` and `server` settings. RESULTS has for each job and method the test
accuracies of the clients, in the order of their names: "averaged" after the last average came,
"trained" after the last local training, or "adapted" if the clients made personal models from the
average.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

import benchmarks.cross_check.stand_in  # noqa: F401  before fluke
from benchmarks.cross_check.network import GivenSplit, SmallNetwork, load_start

# isort: split
from fluke import DDict, FlukeENV
from fluke.algorithms.apfl import APFL
from fluke.algorithms.ditto import Ditto
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.fedrep import FedRep
from fluke.algorithms.per_fedavg import PerFedAVG
from fluke.algorithms.pfedme import PFedMe
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.nets import EncoderGlobalHeadLocalNet, EncoderHeadNet

from benchmarks.cross_check.fluke_mended import MendedApfl, MendedPerFedAvg, MendedPFedMe

ALGORITHMS = {
    "FedAVG": FedAVG,
    "FedProx": FedProx,
    "FedRep": FedRep,
    "Ditto": Ditto,
    "APFL": APFL,
    "mended APFL": MendedApfl,
    "PerFedAVG": PerFedAVG,
    "mended PerFedAVG": MendedPerFedAvg,
    "PFedMe": PFedMe,
    "mended PFedMe": MendedPFedMe,
}


class Loaders(GivenSplit):
    """The images that fluke asks for."""

    def assign(self, n_clients: int, batch_size: int) -> Any:
        """Return loaders of the clients' train and test images, and none for the server."""
        train = [self._loader("train", name, batch_size) for name in self.names]
        test = [self._loader("test", name, batch_size) for name in self.names]
        return (train, test), None

    def _loader(self, part: str, name: str, batch_size: int) -> FastDataLoader:
        return FastDataLoader(
            *self.images(part, name),
            num_labels=self.classes,
            batch_size=batch_size,
            shuffle=part == "train",
            skip_singleton=False,  # or a last batch of one image would be left out
        )


class Accuracies:
    """Record the clients' last tests, which fluke numbers −1. phases: names of fluke's phases."""

    def __init__(self, clients: int, phases: Mapping[str, str]) -> None:
        self._phases = phases
        self.found = {kind: [float("nan")] * clients for kind in phases.values()}

    def client_evaluation(
        self, round: int, client_id: int, phase: str, evals: Mapping[str, float], **_: Any
    ) -> None:
        if round == -1:
            self.found[self._phases[phase]][client_id] = evals["accuracy"]


def trained(job: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, list[float]]:
    """Train one method and return its accuracies."""
    environment = FlukeENV()
    environment.set_seed(job["seed"])
    environment.set_eval_cfg(pre_fit=True, post_fit=True, locals=False, server=False)
    split = Loaders(job["split"])
    environment.set_evaluator(ClassificationEval(eval_every=job["rounds"], n_classes=split.classes))

    model = _start(job["start"], split)
    sends_encoder = method["algorithm"] == "FedRep"
    client = {
        "batch_size": job["batch_size"],
        "local_epochs": job["local_epochs"],
        "loss": nn.CrossEntropyLoss,
        "optimizer": {"name": "SGD", "lr": job["learning_rate"]},
        "scheduler": {"step_size": 1, "gamma": 1},
        "model": model,
        **method["client"],
    }
    shared = deepcopy(model.encoder if sends_encoder else model)
    settings = DDict(model=shared, client=client, server=method["server"])
    algorithm = ALGORITHMS[method["algorithm"]](len(split.names), split, settings)
    adapts = method["client"].get("fine_tuning_epochs", 0) > 0
    phases = {"pre-fit": "averaged", "post-fit": "adapted" if adapts else "trained"}
    accuracies = Accuracies(len(split.names), phases)
    for participant in algorithm.clients:
        participant.attach(accuracies)
        if sends_encoder:  # fluke hands all clients one and the same module
            participant.model = EncoderGlobalHeadLocalNet(deepcopy(model))
    algorithm.run(job["rounds"], 1.0)
    return accuracies.found


def _start(path: str, split: GivenSplit) -> EncoderHeadNet:
    """Return the network with the app's initial parameters."""
    network = SmallNetwork(split.shape, split.classes)
    load_start(network, path)
    return EncoderHeadNet(network.encoder, network.head)


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    jobs_file, results_file = arguments
    with open(jobs_file, encoding="utf-8") as file:
        jobs = json.load(file)
    results = [{method["name"]: trained(job, method) for method in job["methods"]} for job in jobs]
    report = {
        "peer": f"fluke {version('fluke-fl')}",
        "torch": torch.__version__,
        "results": results,
    }
    with open(results_file, "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main(sys.argv[1:])
