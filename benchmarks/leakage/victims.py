"""The arrays that clients send: FUELS's from the wire, the others' from their learners."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MessageType
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.in_process import conducted
from benchmarks.pages import data_root
from benchmarks.parts import output_in
from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.wire import ARRAYS, ReplyFields, numpy_arrays, read_record
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.learner import (
    AnyLearner,
    Cohort,
    make_learner,
    new_cohort,
    train_cohort,
)
from fedproto_app.tasks.forecasting.task import CohortSamples, ForecastingTask

Vectors = NDArray[np.float64]
REAL = {"milano": "milano_internet_hourly.csv.gz", "electricity": "electricity_2014_hourly.csv.gz"}


def data_settings(name: str) -> tuple[str, dict[str, Any]]:
    """Return the data's description and settings: the real set, else the embedded set."""
    file = data_root() / REAL.get(name, "")
    if name in REAL and file.is_file():
        return name, {"data.source": "wide-csv", "data.path": str(file), "data.max-steps": 720}
    return "synthetic-traffic", {"data.synthetic.clients": 24, "data.synthetic.days": 30}


class Victims:
    """The clients of one data set, all whose windows have batches of whole days."""

    def __init__(self, data: dict[str, Any], rounds: int) -> None:
        self.rounds = rounds
        self._base = {
            **data,
            "model.representation-dim": 32,
            "fuels.prototype-dim": 16,
            "optimizer.learning-rate": 0.005,
            "rounds": rounds,
        }
        settings = self.settings("fedavg")
        windows = [make_windows(series, settings.data) for series in load_series(settings.data)]
        self.windows = sorted(windows, key=lambda client: (-len(client.batches), client.name))
        self.names = [client.name for client in self.windows]

    def settings(self, method: str, **more: Any) -> Settings:
        return settings_from({**self._base, **AT_ONCE, "method": method, **more})

    def learner(self, method: str, **more: Any) -> AnyLearner:
        settings = self.settings(method, **more)
        return make_learner(settings, ForecastingTask(settings))

    def cohort(
        self, learner: AnyLearner, windows: Sequence[ClientWindows], model: dict[str, Tensor]
    ) -> Cohort:
        parameters = {n: v.expand(len(windows), *v.shape).clone() for n, v in model.items()}
        samples = learner.task.gather(list(windows), 1)
        return new_cohort(learner, parameters, samples, server_round=1)

    def halved(self, world: int) -> Victims:
        """Return the same clients with a random half of their train days, or with the other
        half."""
        half = copy(self)
        half.windows = []
        for client in self.windows:
            drawn = numpy_stream(0, "half of the days", client.name).permutation(
                len(client.batches)
            )
            batches = np.sort(drawn[world::2])
            half.windows.append(replace(client, batches=client.batches[batches]))
        return half

    def samples(self, **more: Any) -> CohortSamples:
        """Return all clients' samples. more: changed settings of the data, for other windows."""
        learner = self.learner("fedavg", **more)
        windows = self.windows
        if more:
            settings = learner.task.settings
            series = {client.name: client for client in load_series(settings.data)}
            windows = [make_windows(series[name], settings.data) for name in self.names]
        samples_of_all: CohortSamples = learner.task.gather(windows, 1)
        return samples_of_all

    def fedavg(
        self, clients: Sequence[int], rounds: int
    ) -> tuple[dict[str, Tensor], Vectors, Vectors]:
        """Run FedAvg. Return the last model, and each client's first and last update, [N, d]."""
        learner = self.learner("fedavg")
        windows = [self.windows[client] for client in clients]
        model, updates = learner.initial_parameters(), []
        for _ in range(rounds):
            cohort = self.cohort(learner, windows, model)
            train_cohort(learner, cohort, learner.context(Guidance(), cohort))
            steps = [(cohort.parameters[n] - v).flatten(start_dim=1) for n, v in model.items()]
            updates.append(torch.cat(steps, dim=1).double().numpy())
            weights = torch.tensor(cohort.samples.train_samples).float()
            model = {
                n: torch.tensordot(weights / weights.sum(), v, dims=1)
                for n, v in cohort.parameters.items()
            }
        return model, updates[0], updates[-1]

    def prototypes(self) -> Vectors:
        """Return FUELS's prototypes of the last round as the server received them, [N, p · d_p]."""
        with tempfile.TemporaryDirectory() as place:
            settings = self.settings("fuels", **output_in(Path(place)))
            grid = _Listening(settings, nodes_sharing(settings.data, 1, Path(place) / "state"))
            conducted(grid, settings)
        return np.stack([grid.prototypes[name] for name in self.names])


class _Listening(LocalGrid):
    """prototypes: each client's last prototype, flat."""

    prototypes: dict[str, Vectors]

    def __init__(self, settings: Settings, configs: Sequence[dict[str, Any]]) -> None:
        super().__init__(settings, configs)
        self.prototypes = {}

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.message_type == MessageType.TRAIN and reply is not None:
            rows = numpy_arrays(reply.content.array_records[ARRAYS])["prototypes"]
            names = read_record(reply.content, ReplyFields).names
            self.prototypes |= {
                n: row.astype(np.float64).ravel() for n, row in zip(names, rows, strict=True)
            }
        return reply
