"""What a node does with an order: load its shard, train and evaluate cohorts, keep their state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedproto_app.errors import SettingsError
from fedproto_app.learners.cohort import Cohort, new_cohort, train_cohort
from fedproto_app.learners.learner import AnyLearner, Contribution
from fedproto_app.messages import Arrays, Order, PerClient, Reply
from fedproto_app.node.store import ClientRecord, ClientStore, flatten
from fedproto_app.settings import Settings
from fedproto_app.tasks.shard import Shard
from fedproto_app.tasks.task import ClientData

_PARAMETERS = "parameters"
_GUIDANCE = "guidance"  # what a method sends besides its shared parameters
_LOCAL = "local-"  # prefix of the metrics of models before they are averaged


class Node:
    """The clients of one shard, and the learner that trains them."""

    def __init__(
        self,
        settings: Settings,
        shard: Shard,
        store: ClientStore,
        learner: AnyLearner,
        *,
        tells_classes: bool = True,
        prepared_in: float = 0.0,
    ) -> None:
        """tells_classes: whether the server may learn how many samples of a class a client has.
        prepared_in: seconds that the order has cost already, part of the node's working time.
        """
        self._tells_classes, self._prepared_in = tells_classes, prepared_in
        self._settings, self._shard, self._store, self._learner = settings, shard, store, learner
        self._task = learner.task
        self._required = self._task.required_metrics(settings)
        store.write_settings(settings.model_dump(by_alias=True, exclude={"output", "nodes"}))

    def train(self, order: Order) -> Reply:
        """Train the clients asked for; evaluate them too if the order says so."""
        start = time.perf_counter() - self._prepared_in
        result = _Gathered()
        mean = _Mean(self._learner)
        for clients in self._cohorts(order):
            cohort = self._load(clients, order, upto=order.server_round - 1)
            self._learner.begin(cohort)
            context = self._learner.context(order, cohort)
            losses = train_cohort(self._learner, cohort, context)
            healthy = _finite_rows(cohort.parameters)
            rows = [row for row, ok in enumerate(healthy) if ok]
            self._save(cohort, rows)
            mean.add(cohort, rows)
            sent = self._learner.contribution(cohort, context, order.server_round)
            result.add_training(cohort, rows, losses, sent)
            if order.evaluate:
                self._evaluate(cohort, rows, order, result, final=not self._learner.shared)
        arrays = {**mean.value(), **result.arrays()}
        return result.reply(arrays, time.perf_counter() - start, self._shard.absent(order.clients))

    def evaluate(self, order: Order) -> Reply:
        """Evaluate the clients' models as they are, with the shared parameters of the order."""
        start = time.perf_counter() - self._prepared_in
        result = _Gathered()
        received: dict[str, dict[str, Tensor]] = {_PARAMETERS: {}, _GUIDANCE: {}}
        for name, array in order.arrays.items():
            group = _PARAMETERS if self._learner.is_shared(name) else _GUIDANCE
            received[group][name] = torch.from_numpy(array)
        if order.classes:
            received[_GUIDANCE]["classes"] = torch.tensor(order.classes)
        if received[_PARAMETERS]:
            self._store.write_shared(order.server_round, flatten(received))
        for clients in self._cohorts(order):
            cohort = self._load(clients, order, upto=order.server_round, trains=False)
            self._save(cohort, self._learner.receive(cohort, order))
            rows = list(range(len(clients)))
            result.add_clients(cohort, rows)
            self._evaluate(cohort, rows, order, result, final=True)
        return result.reply({}, time.perf_counter() - start, self._shard.absent(order.clients))

    def _cohorts(self, order: Order) -> Iterator[list[ClientData]]:
        """The clients in cohorts of the set size, those with most batches first."""
        held = self._shard.clients
        clients = [held[name] for name in order.clients if name in held]
        clients.sort(key=lambda one: (-self._task.steps(one, order.server_round), one.name))
        for first in range(0, len(clients), self._settings.cohort_size):
            yield clients[first : first + self._settings.cohort_size]

    def _load(
        self, clients: Sequence[ClientData], order: Order, upto: int, *, trains: bool = True
    ) -> Cohort:
        """The clients with their state as of a round and the order's shared parameters."""
        initial = self._learner.initial_parameters()
        own = [name for name in initial if not self._learner.is_shared(name)]
        parameters = {}
        for name, value in initial.items():
            start = value if name in own else torch.from_numpy(order.arrays[name])
            there = start.to(self._task.device)
            parameters[name] = there.expand(len(clients), *there.shape).clone()
        samples = self._task.gather(clients, order.server_round)
        cohort = new_cohort(self._learner, parameters, samples, order.server_round, trains=trains)
        for row, client in enumerate(clients if own else []):
            stored = self._store.read_state(client.name, upto) or {}
            for name, tensor in self._state(cohort, row).items() if stored else ():
                tensor.copy_(stored[name])
        return cohort

    def _save(self, cohort: Cohort, rows: Sequence[int]) -> None:
        """Write the personal part of the clients in these rows; the others keep their old state."""
        for row in rows:
            if state := self._state(cohort, row):
                self._store.write_state(cohort.names[row], cohort.server_round, state)

    def _state(self, cohort: Cohort, row: int) -> dict[str, Tensor]:
        """What one client keeps between rounds, as views of the cohort's tensors."""
        groups = {_PARAMETERS: cohort.parameters, **cohort.optimizer.state}
        return flatten(
            {
                group: {n: v[row] for n, v in named.items() if not self._learner.is_shared(n)}
                for group, named in groups.items()
            }
        )

    def _evaluate(
        self,
        cohort: Cohort,
        rows: Sequence[int],
        order: Order,
        result: _Gathered,
        *,
        final: bool,
    ) -> None:
        """Evaluate; of final models keep those whose validation error is their best so far.

        final: the models are what the clients go on with, not what the server will average.
        """
        metrics = self._learner.evaluate(cohort, order)
        if not self._tells_classes:
            metrics = {n: values for n, values in metrics.items() if "/class-" not in n}
        if not final:
            result.add_metrics({_LOCAL + name: values for name, values in metrics.items()}, rows)
            return
        result.add_metrics(metrics, rows)
        criterion = self._task.criterion
        for row in rows:
            client = cohort.names[row]
            record = self._store.record(client, before=order.server_round)
            now = {name: metrics[name][row] for name in self._required}
            first = record.kept_round == 0  # kept even if not finite: the server refuses it by name
            if first or self._settings.keep == "last" or now[criterion] < record.metrics[criterion]:
                scale = self._task.scale(self._shard.clients[client])
                record = ClientRecord(order.server_round, now, scale)
                self._store.keep(client, record)
            result.add_kept(record)
        self._store.save_records()


def torch_device(name: str) -> torch.device:
    """The device of the `device` setting; "auto" takes a GPU if there is one.

    Raises `SettingsError` for a GPU that is not there.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if there else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= there:
        raise SettingsError(f"device = {name!r}: this machine has {there} CUDA GPUs")
    return device


def _finite_rows(parameters: dict[str, Tensor]) -> list[bool]:
    """Which clients' parameters are all finite."""
    finite = [value.reshape(len(value), -1).isfinite().all(dim=1) for value in parameters.values()]
    return [bool(ok) for ok in torch.stack(finite).all(dim=0)]


class _Mean:
    """The mean of the clients' shared parameters, as the learner weighs them, in float64."""

    def __init__(self, learner: AnyLearner) -> None:
        self._learner = learner
        self._sums: dict[str, Tensor] = {}
        self._weight = 0

    def add(self, cohort: Cohort, rows: Sequence[int]) -> None:
        samples = cohort.samples.train_samples
        weights = [samples[row] if self._learner.weighs_samples else 1 for row in rows]
        self._weight += sum(weights)
        for name, value in cohort.parameters.items():
            if self._learner.is_shared(name):
                for row, weight in zip(rows, weights, strict=True):
                    term = value[row].double() * weight
                    self._sums[name] = self._sums[name] + term if name in self._sums else term

    def value(self) -> Arrays:
        return {n: (total / self._weight).float().cpu().numpy() for n, total in self._sums.items()}


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
    classes: list[list[int]] = field(default_factory=list)

    def add_clients(self, cohort: Cohort, rows: Sequence[int]) -> None:
        self.names += [cohort.names[row] for row in rows]
        self.samples += [cohort.samples.train_samples[row] for row in rows]

    def add_training(
        self, cohort: Cohort, rows: Sequence[int], losses: dict[str, Tensor], sent: Contribution
    ) -> None:
        self.add_clients(cohort, rows)
        for name, values in losses.items():
            self.losses.setdefault(name, []).extend(values[list(rows)].tolist())
        for row in sorted(set(range(len(cohort.names))) - set(rows)):
            self.failed[cohort.names[row]] = "training diverged; its last good model stays"
        if sent.present is None:
            self.sent.append({name: array[list(rows)] for name, array in sent.arrays.items()})
            return
        for row in rows:
            (classes,) = sent.present[row].nonzero(as_tuple=True)
            self.classes.append(classes.tolist())
            self.sent.append({n: array[row][self.classes[-1]] for n, array in sent.arrays.items()})

    def add_metrics(self, metrics: dict[str, list[float]], rows: Sequence[int]) -> None:
        """Take in the metrics of one cohort; counts that it does not have are 0."""
        before = len(self.names) - len(rows)
        for name in metrics:
            self.metrics.setdefault(name, [0.0] * before)
        for name, gathered in self.metrics.items():
            if not name.startswith("kept-"):
                values = metrics.get(name)
                gathered += [values[row] if values else 0.0 for row in rows]

    def add_kept(self, kept: ClientRecord) -> None:
        for name, value in kept.metrics.items():
            self.metrics.setdefault("kept-" + name, []).append(value)
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
            classes=self.classes,
        )
