"""Trains fluke's methods on a split; runs in an environment of its own, which knows no app.

    python -m benchmarks.cross_check.fluke_peer JOBS.json RESULTS.json

JOBS is a list of jobs: `split` and `start`, the archives of `benchmarks.cross_check.split`, the
`seed`, `rounds`, `batch_size`, `local_epochs` and `learning_rate`, and a name and `algorithm` with
fluke's own `client` and `server` settings for each method. RESULTS has a table for each job: for each
method test accuracies of the clients in the order of their names, "trained" of the models as local
training left them and "averaged" after the clients got the last average.

fluke imports ResNets from torchvision, of which the registry has no build for the CPU alone. None
is used here, so an empty stand-in takes its place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torchmetrics  # noqa: F401  looks for torchvision, so it must come before the stand-in
from torch import Tensor, nn

from benchmarks.cross_check.network import SmallNetwork


def _stand_in_for_torchvision() -> None:
    models = ModuleType("torchvision.models")
    for name in ("resnet18", "resnet34", "resnet50"):
        setattr(models, name, None)
    sys.modules.setdefault("torchvision", ModuleType("torchvision"))
    sys.modules.setdefault("torchvision.models", models)


_stand_in_for_torchvision()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.apfl import APFL, APFLClient  # noqa: E402
from fluke.algorithms.ditto import Ditto  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.algorithms.fedprox import FedProx  # noqa: E402
from fluke.algorithms.fedrep import FedRep  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from fluke.nets import EncoderGlobalHeadLocalNet, EncoderHeadNet  # noqa: E402

PHASES = {"post-fit": "trained", "pre-fit": "averaged"}


class MendedApflClient(APFLClient):
    """APFL as Deng et al. 2020, Algorithm 1, has it.

    fluke 0.8.1 takes the loss of a copy of the mixture, so its gradient never reaches the personal
    model v, and then puts the mixture in the place of v. Here v learns, from the mixture of the
    models before this step, and stays what it is.
    """

    def fit(self, override_local_epochs: int = 0) -> float:
        own = getattr(self, "own", None) or deepcopy(self.personalized_model)
        self.own = own
        share, rate = self.hyper_params.lam, self._optimizer_cfg.optimizer_cfg["lr"]
        for _ in range(override_local_epochs or self.hyper_params.local_epochs):
            for images, labels in self.train_set:
                mixture = _mixed(own, self.model, share)
                output = torch.func.functional_call(self.model, mixture, images)
                loss = self.hyper_params.loss_fn(output, labels)
                steps = torch.autograd.grad(loss, list(own.parameters()))
                _descend(self.model, self.hyper_params.loss_fn(self.model(images), labels), rate)
                with torch.no_grad():
                    for parameter, step in zip(own.parameters(), steps, strict=True):
                        parameter -= rate * step
        mixture = {name: value.detach() for name, value in _mixed(own, self.model, share).items()}
        self.personalized_model.load_state_dict(mixture)
        return 0.0


class MendedApfl(APFL):
    def get_client_class(self) -> type:
        return MendedApflClient


def _mixed(own: nn.Module, shared: nn.Module, share: float) -> dict[str, Tensor]:
    """share · v + (1 − share) · w, whose gradient reaches v alone."""
    return {
        name: share * value + (1 - share) * shared.get_parameter(name).detach()
        for name, value in own.named_parameters()
    }


def _descend(model: nn.Module, loss: Tensor, rate: float) -> None:
    steps = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, step in zip(model.parameters(), steps, strict=True):
            parameter -= rate * step


ALGORITHMS = {
    "FedAVG": FedAVG,
    "FedProx": FedProx,
    "FedRep": FedRep,
    "Ditto": Ditto,
    "APFL": APFL,
    "mended APFL": MendedApfl,
}


class GivenSplit:
    """What fluke asks for its clients' images: here they are dealt already."""

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as arrays:
            self._arrays = dict(arrays)
        self.names = np.unique(self._arrays["client_train"])
        self.classes = len(self._arrays["classes"])
        self.shape = self._arrays["x_train"].shape[1:]

    def assign(self, n_clients: int, batch_size: int) -> Any:
        """Loaders of the clients' train and test images, and none for the server."""
        train = [self._loader("train", name, batch_size) for name in self.names]
        test = [self._loader("test", name, batch_size) for name in self.names]
        return (train, test), None

    def _loader(self, split: str, name: str, batch_size: int) -> FastDataLoader:
        rows = self._arrays[f"client_{split}"] == name
        pixels = torch.from_numpy(self._arrays[f"x_{split}"][rows]).float()
        return FastDataLoader(
            (pixels / 255 - 0.5) / 0.25,  # between −2 and 2, as the app shows images to a module
            torch.from_numpy(self._arrays[f"y_{split}"][rows]),
            num_labels=self.classes,
            batch_size=batch_size,
            shuffle=split == "train",
            skip_singleton=False,  # or a last batch of one image would be left out
        )


class Accuracies:
    """Listens to the clients' last evaluations, which fluke numbers −1."""

    def __init__(self, clients: int) -> None:
        self.found = {kind: [float("nan")] * clients for kind in PHASES.values()}

    def client_evaluation(
        self, round: int, client_id: int, phase: str, evals: Mapping[str, float], **_: Any
    ) -> None:
        if round == -1:
            self.found[PHASES[phase]][client_id] = evals["accuracy"]


def trained(job: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, list[float]]:
    """The accuracies of one method."""
    environment = FlukeENV()
    environment.set_seed(job["seed"])
    environment.set_eval_cfg(pre_fit=True, post_fit=True, locals=False, server=False)
    split = GivenSplit(job["split"])
    environment.set_evaluator(ClassificationEval(eval_every=job["rounds"], n_classes=split.classes))

    model = _start(job["start"], split)
    shared = model.encoder if method["algorithm"] == "FedRep" else model
    client = {
        "batch_size": job["batch_size"],
        "local_epochs": job["local_epochs"],
        "loss": nn.CrossEntropyLoss,
        "optimizer": {"name": "SGD", "lr": job["learning_rate"]},
        "scheduler": {"step_size": 1, "gamma": 1},
        "model": model,
        **method["client"],
    }
    settings = DDict(model=deepcopy(shared), client=client, server=method["server"])
    algorithm = ALGORITHMS[method["algorithm"]](len(split.names), split, settings)
    if method["algorithm"] == "FedRep":  # fluke hands all clients one and the same module
        for one in algorithm.clients:
            one.model = EncoderGlobalHeadLocalNet(deepcopy(model))
    accuracies = Accuracies(len(split.names))
    for one in algorithm.clients:
        one.attach(accuracies)
    algorithm.run(job["rounds"], 1.0)
    return accuracies.found


def _start(path: str, split: GivenSplit) -> EncoderHeadNet:
    """The network with the parameters that the app starts from."""
    network = SmallNetwork(split.shape, split.classes)
    with np.load(path, allow_pickle=False) as arrays:
        network.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
    return EncoderHeadNet(network.encoder, network.head)


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    jobs_file, results_file = arguments
    with open(jobs_file, encoding="utf-8") as file:
        jobs = json.load(file)
    results = [
        {method["name"]: trained(job, method) for method in job["methods"]} for job in jobs
    ]
    told = {"peer": f"fluke {version('fluke-fl')}", "torch": torch.__version__, "results": results}
    with open(results_file, "w", encoding="utf-8") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main(sys.argv[1:])
