"""One split of images that both sides read: dealt by the app, written as the app's own npz."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.images.clients import ClientImages
from fedproto_app.data.shard import Shard
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.table import load_shard, make_task

NETWORK = "benchmarks.cross_check.network:SmallNetwork"
FEWEST = 0.25  # share of its train images that the first client keeps; the last keeps all

Arrays = Mapping[str, NDArray[np.generic]]
Changes = Mapping[str, object]


def deal(clients: int, seed: int) -> Shard:
    """Return the digits, dealt to clients with different mixes of classes, in one stage."""
    settings = settings_from(
        {
            "task": "classification",
            "method": "fedavg",
            "keep": "last",
            "seed": seed,
            "data.source": "digits",
            "data.partition.scheme": "dirichlet",
            "data.partition.clients": clients,
            "data.partition.stages": 1,
            "data.partition.imbalance-factor": 1.0,
            "data.partition.validation-share": 0.0,
        }
    )
    return load_shard(settings, 0, 1)


def train_images(images: int, number: int, clients: int) -> int:
    """Return how many train images a client keeps: shares from `FEWEST` to 1, evenly spaced.

    The app deals all clients equally many. Equal numbers would hide an average without weights.
    """
    share = FEWEST + (1 - FEWEST) * number / max(1, clients - 1)
    return max(1, round(images * share))


def archive(shard: Shard, seed: int) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of `image-npz`: every client's images, in unequal numbers."""
    clients = {name: shard.clients[name] for name in sorted(shard.clients)}
    parts: dict[str, list[NDArray[np.generic]]] = {}
    for number, (name, client) in enumerate(clients.items()):
        assert isinstance(client, ClientImages)
        train, test = client.stages[0].train, client.stages[0].test
        order = numpy_stream(seed, "cross-check", name).permutation(len(train))
        train_rows = np.sort(order[: train_images(len(train), number, len(clients))])
        for split, images, rows in (
            ("train", train, train_rows),
            ("test", test, np.arange(len(test))),
        ):
            parts.setdefault(f"x_{split}", []).append(images.pixels[rows])
            parts.setdefault(f"y_{split}", []).append(images.labels[rows])
            parts.setdefault(f"client_{split}", []).append(np.full(len(rows), name))
    arrays = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    return {**arrays, "classes": np.array(shard.shape.classes)}


def write(arrays: Arrays, path: Path) -> None:
    """Write an npz archive without objects."""
    np.savez(path, allow_pickle=False, **arrays)


def largest_client(arrays: Arrays) -> int:
    """Return the largest number of a client's train images."""
    _, counts = np.unique(arrays["client_train"], return_counts=True)
    return int(counts.max())


def data_settings(path: Path, seed: int) -> dict[str, object]:
    """Return the settings of a run on the archive at this path."""
    return {
        "task": "classification",
        "seed": seed,
        "keep": "last",
        "data.source": "image-npz",
        "data.path": str(path),
        "data.name": "cross-check",
        "data.partition.scheme": "given",
        "data.partition.validation-share": 0.0,
        "model.module": NETWORK,
        "classification.augment": False,
    }


def training_settings(job: Mapping[str, Any], folder: Path) -> dict[str, object]:
    """Return the settings of our run of a job: plain SGD, evaluated after the last round."""
    return {
        **data_settings(Path(job["split"]), job["seed"]),
        "rounds": job["rounds"],
        "local-epochs": job["local_epochs"],
        "evaluate-every": job["rounds"],
        "cohort-size": 20,
        "classification.batch-size": job["batch_size"],
        "optimizer.name": "sgd",
        "optimizer.learning-rate": job["learning_rate"],
        "optimizer.momentum": 0.0,
        "output.dir": str(folder),
        "output.pictures": False,
    }


def start(path: Path, seed: int) -> dict[str, NDArray[np.generic]]:
    """Return the initial parameters of every client of a run on this archive, by name."""
    settings = settings_from({**data_settings(path, seed), "method": "fedavg"})
    task = make_task(settings, load_shard(settings, 0, 1).shape)
    learner = make_learner(settings, task)
    return {name: value.numpy() for name, value in learner.initial_parameters().items()}
