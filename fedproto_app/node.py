"""What a node does with an order: load its shard, train and evaluate cohorts, keep their state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproto_app.data.shard import Shard
from fedproto_app.data.windows import ClientWindows
from fedproto_app.learners.cohort import Cohort, train_cohort
from fedproto_app.learners.learner import Learner
from fedproto_app.optim import CohortAdam
from fedproto_app.settings import Settings
from fedproto_app.store import ClientRecord, ClientStore, flatten, stacked, unflatten
from fedproto_app.tasks.forecasting import CohortSamples
from fedproto_app.wire import Arrays, Order, PerClient, Reply

_PARAMETERS, _FIRST, _SECOND, _STEPS = "parameters", "first", "second", "steps"


class Node:
    """The clients of one shard, and the learner that trains them."""

    def __init__(
        self, settings: Settings, shard: Shard, store: ClientStore, learner: Learner[Any]
    ) -> None:
        self._settings, self._shard, self._store, self._learner = settings, shard, store, learner
        self._device = torch_device(settings.device)

    def train(self, order: Order) -> Reply:
        """Train the clients asked for; evaluate them too if the order says so."""
        start = time.perf_counter()
        result = _Gathered()
        mean = _SampleWeightedMean()
        for windows in self._cohorts(order.clients):
            cohort = self._load(windows, order, upto=order.server_round - 1)
            context = self._learner.context(order, cohort.names, self._device)
            losses = train_cohort(
                self._learner, cohort, context, self._settings, order.server_round
            )
            healthy = _finite_rows(cohort.parameters)
            rows = [row for row, ok in enumerate(healthy) if ok]
            self._save(cohort, rows, order.server_round)
            mean.add(cohort, rows, self._learner)
            sent = self._learner.contribution(context, cohort.names, order.server_round)
            result.add_training(cohort, rows, losses, sent)
            if order.evaluate:
                self._evaluate(cohort, rows, order.server_round, result)
        arrays = {**mean.value(), **result.arrays()}
        return result.reply(arrays, time.perf_counter() - start, self._shard.absent(order.clients))

    def evaluate(self, order: Order) -> Reply:
        """Evaluate the clients' models as they are, with the shared parameters of the order."""
        start = time.perf_counter()
        result = _Gathered()
        received = {name: torch.from_numpy(array) for name, array in order.arrays.items()}
        if received:
            self._store.write_shared(order.server_round, flatten({_PARAMETERS: received}))
        for windows in self._cohorts(order.clients):
            cohort = self._load(windows, order, upto=order.server_round)
            rows = list(range(len(windows)))
            result.add_clients(cohort, rows)
            self._evaluate(cohort, rows, order.server_round, result)
        return result.reply({}, time.perf_counter() - start, self._shard.absent(order.clients))

    def _cohorts(self, clients: Sequence[str]) -> Iterator[list[ClientWindows]]:
        """The clients in cohorts of the set size, those with most batches first."""
        windows = [self._shard.windows[name] for name in clients if name in self._shard.windows]
        windows.sort(key=lambda client: (-len(client.batches), client.name))
        for first in range(0, len(windows), self._settings.cohort_size):
            yield windows[first : first + self._settings.cohort_size]

    def _load(self, windows: Sequence[ClientWindows], order: Order, upto: int) -> Cohort:
        """The clients with their state as of a round and the order's shared parameters."""
        initial = self._learner.initial_parameters()
        own = {n: v for n, v in initial.items() if not self._learner.is_shared(n)}
        states = [self._store.read_state(c.name, upto) or _new_state(own) for c in windows]
        state = stacked(states, self._device) if own else {}
        parameters = {}
        for name in initial:
            if self._learner.is_shared(name):
                received = torch.from_numpy(order.arrays[name]).to(self._device)
                parameters[name] = received.expand(len(windows), *received.shape).clone()
            else:
                parameters[name] = state[f"{_PARAMETERS}/{name}"]
        adam = CohortAdam.fresh(parameters)
        adam.first.update(unflatten(state, _FIRST))
        adam.second.update(unflatten(state, _SECOND))
        adam.steps.update({n: v.cpu() for n, v in unflatten(state, _STEPS).items()})
        return Cohort(parameters, adam, self._learner.task.gather(windows))

    def _save(self, cohort: Cohort, rows: Sequence[int], server_round: int) -> None:
        """Write the personal part of the clients in these rows; the others keep their old state."""
        own = [name for name in cohort.parameters if not self._learner.is_shared(name)]
        if not own:
            return
        groups = {
            _PARAMETERS: cohort.parameters,
            _FIRST: cohort.adam.first,
            _SECOND: cohort.adam.second,
            _STEPS: cohort.adam.steps,
        }
        for row in rows:
            tensors = flatten({g: {n: named[n][row] for n in own} for g, named in groups.items()})
            self._store.write_state(cohort.names[row], server_round, tensors)

    def _evaluate(
        self, cohort: Cohort, rows: Sequence[int], server_round: int, result: _Gathered
    ) -> None:
        """Evaluate, and keep the models whose validation error is their best so far."""
        metrics = self._learner.task.evaluate(cohort.parameters, cohort.samples)
        for row in rows:
            client = cohort.names[row]
            now = {name: values[row] for name, values in metrics.items()}
            record = self._store.record(client)
            first = record.kept_round == 0  # kept even if not finite: the server refuses it by name
            if (
                first
                or self._settings.keep == "last"
                or now["validation-mse"] < record.metrics["validation-mse"]
            ):
                record = ClientRecord(server_round, now)
                self._store.keep(client, record)
            result.add_metrics(now, record)
        self._store.save_records()


def torch_device(name: str) -> torch.device:
    """The device of the `device` setting; "auto" takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _new_state(own: dict[str, Tensor]) -> dict[str, Tensor]:
    return flatten(
        {
            _PARAMETERS: own,
            _FIRST: {name: torch.zeros_like(value) for name, value in own.items()},
            _SECOND: {name: torch.zeros_like(value) for name, value in own.items()},
            _STEPS: {name: torch.zeros((), dtype=torch.int64) for name in own},
        }
    )


def _finite_rows(parameters: dict[str, Tensor]) -> list[bool]:
    """Which clients' parameters are all finite."""
    finite = [value.flatten(start_dim=1).isfinite().all(dim=1) for value in parameters.values()]
    return [bool(ok) for ok in torch.stack(finite).all(dim=0)]


class _SampleWeightedMean:
    """The sample-weighted mean of the clients' shared parameters, summed in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weight = 0

    def add(self, cohort: Cohort, rows: Sequence[int], learner: Learner[Any]) -> None:
        weights = [_train_samples(cohort.samples, row) for row in rows]
        self._weight += sum(weights)
        for name, value in cohort.parameters.items():
            if learner.is_shared(name):
                for row, weight in zip(rows, weights, strict=True):
                    term = value[row].double() * weight
                    self._sums[name] = self._sums[name] + term if name in self._sums else term

    def value(self) -> Arrays:
        return {n: (total / self._weight).float().cpu().numpy() for n, total in self._sums.items()}


def _train_samples(samples: CohortSamples, row: int) -> int:
    return samples.batch_counts[row] * samples.batches.shape[2]


@dataclass
class _Gathered:
    """A reply in the making, client by client."""

    names: list[str] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    losses: PerClient = field(default_factory=dict)
    metrics: PerClient = field(default_factory=dict)
    kept_rounds: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    sent: list[Arrays] = field(default_factory=list)

    def add_clients(self, cohort: Cohort, rows: Sequence[int]) -> None:
        self.names += [cohort.names[row] for row in rows]
        self.samples += [_train_samples(cohort.samples, row) for row in rows]

    def add_training(
        self, cohort: Cohort, rows: Sequence[int], losses: dict[str, Tensor], sent: Arrays
    ) -> None:
        self.add_clients(cohort, rows)
        for name, values in losses.items():
            self.losses.setdefault(name, []).extend(values[list(rows)].tolist())
        self.sent.append({name: array[list(rows)] for name, array in sent.items()})
        for row in sorted(set(range(len(cohort.names))) - set(rows)):
            self.failed[cohort.names[row]] = "training diverged; its last good model stays"

    def add_metrics(self, now: dict[str, float], kept: ClientRecord) -> None:
        for prefix, values in (("", now), ("kept-", kept.metrics)):
            for name, value in values.items():
                self.metrics.setdefault(prefix + name, []).append(value)
        self.kept_rounds.append(kept.kept_round)

    def arrays(self) -> Arrays:
        names = self.sent[0] if self.sent else {}
        return {name: np.concatenate([sent[name] for sent in self.sent]) for name in names}

    def reply(self, arrays: Arrays, seconds: float, absent: dict[str, str]) -> Reply:
        return Reply(
            names=self.names,
            samples=self.samples,
            losses=self.losses,
            metrics=self.metrics,
            kept_rounds=self.kept_rounds,
            failed={**self.failed, **absent},
            arrays=arrays,
            seconds=seconds,
        )
