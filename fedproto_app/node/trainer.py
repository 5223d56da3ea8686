"""What a node does with an order: train and evaluate cohorts of its clients, keep their state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.messages import Arrays, Order
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.data.shard import ClientData, Shard
from fedproto_app.node.blocks import MEMORY, PARAMETERS, PERSONAL, rows_of
from fedproto_app.node.part_reply import CohortReply, Totals
from fedproto_app.node.protection import UNPROTECTED, Protection, Unprotected
from fedproto_app.node.records import ClientRecord
from fedproto_app.node.shares import Share, in_halves
from fedproto_app.node.state_log import Found
from fedproto_app.node.store import ClientStore, flatten, unflatten
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.cohort import Cohort, new_cohort, train_cohort
from fedproto_app.strategies.common.learner import AnyLearner, Contribution

DIVERGED = "training diverged; its last good model stays"
_WEIGHED_TOGETHER = 16  # clients' models, which bounds the memory that their sum takes


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
        protection: Protection | Unprotected = UNPROTECTED,
    ) -> None:
        """tells_classes: whether the server may learn how many samples of a class a client has.
        protection: what is made of all that clients send."""
        self._tells_classes, self._protection = tells_classes, protection
        self._settings, self._shard, self._store, self._learner = settings, shard, store, learner
        self._task = learner.task
        self._required = self._task.required_metrics(settings)
        store.write_settings(settings.model_dump(by_alias=True, exclude={"output", "nodes"}))

    def train(self, order: Order, shares: Iterable[Share]) -> list[CohortReply]:
        """Train the clients of these cohorts; evaluate them too if the order says so."""
        self._store.begin(order.server_round)
        replies = _each(self._train, order, shares)
        self._store.settle()
        return replies

    def evaluate(self, order: Order, shares: Iterable[Share]) -> list[CohortReply]:
        """Evaluate the clients' models as they are, with the shared parameters of the order."""
        self._store.begin(order.server_round)
        self._remember(order)
        replies = _each(self._judge, order, shares)
        self._store.settle()
        return replies

    def answer(self, order: Order, shares: Iterable[Share]) -> list[CohortReply]:
        """What the clients of these cohorts say to a method's question; their state stays.

        It need not bring the shared parameters. With other arrays it is then about those that an
        earlier question of the round brought, without any about the clients' data alone.
        """
        self._store.begin(order.server_round)
        self._remember(order)
        model = self._learner.initial_parameters()
        if order.arrays and not any(map(self._learner.is_shared, order.arrays)):
            model = unflatten(self._store.read_shared(order.server_round), PARAMETERS)
        unsent = {n: v.numpy() for n, v in model.items() if self._learner.is_shared(n)}
        whole = replace(order, arrays={**unsent, **order.arrays})
        return _each(self._answer, whole, shares)

    def _remember(self, order: Order) -> None:
        """Keep the order's shared parameters, if it brings any."""
        shared = {
            name: torch.from_numpy(array)
            for name, array in order.arrays.items()
            if self._learner.is_shared(name)
        }
        if shared:
            self._store.write_shared(order.server_round, flatten({PARAMETERS: shared}))

    def _train(self, order: Order, share: Share) -> CohortReply:
        cohort = self._load(share, order, upto=order.server_round - 1)
        self._learner.begin(cohort)
        context = self._learner.context(order, cohort)
        losses = train_cohort(self._learner, cohort, context)
        values = [*cohort.parameters.values(), *cohort.memory_tensors().values()]
        rows = [row for row, ok in enumerate(_finite_rows(values)) if ok]
        failed = dict.fromkeys(set(range(len(cohort.names))) - set(rows), DIVERGED)
        sent = self._learner.contribution(cohort, context, order.server_round)
        self._require_declared(sent)
        models = self._learner.model_to_send(cohort)
        # Before anything is counted or kept: it may be too much for the device (`in_halves`).
        found = self._learner.evaluate(cohort, order) if order.evaluate else None
        leaving = self._protection.applied(self._learner, cohort, order, rows, models, sent)
        models, sent = leaving.models, leaving.sent
        failed |= leaving.refused
        rows = [row for row in rows if row not in leaving.refused]
        reply = _reply(cohort, rows, share)
        if self._learner.sends_mean:
            reply.sums, reply.weight = _weighted_sums(self._learner, cohort, models, rows)
        self._save(cohort, rows)
        reply.losses = {name: values[rows].tolist() for name, values in losses.items()}
        reply.failed = {cohort.names[row]: why for row, why in sorted(failed.items())}
        reply.arrays, reply.classes = _sent_by(sent, rows)
        if not self._learner.sends_mean:
            reply.arrays |= {name: value[rows].cpu().numpy() for name, value in models.items()}
        if found is not None:
            self._take_in(found, cohort, rows, order, reply, final=not self._learner.shared)
        return reply

    def _require_declared(self, sent: Contribution, *, question: bool = False) -> None:
        """Raise `SettingsError` for arrays that the method does not declare.

        question: whether they answer one; what is declared for answers goes with no training.
        """
        releases = self._learner.releases
        declared = {n for r in releases if (r.when == "question") == question for n in r.arrays}
        if undeclared := sorted(sent.arrays.keys() - declared):
            name = undeclared[0]
            shape = sent.arrays[name].shape[1:]
            when = ', when="question"' if question else ""
            raise SettingsError(
                f"{type(self._learner).__name__} sends {name!r} of shape {shape}, which it does "
                f'not declare; its sends() needs Sends("{name}", {{"{name}": {shape}}}{when}) '
                "(docs/tutorial-your-method.md)"
            )

    def _judge(self, order: Order, share: Share) -> CohortReply:
        cohort = self._load(share, order, upto=order.server_round, trains=False)
        changed = self._learner.receive(cohort, order)
        rows = list(range(len(cohort.names)))
        reply = _reply(cohort, rows, share)
        judged, personal = cohort, self._learner.personalised(cohort, order)
        if personal is not None:
            shared = self._told(self._learner.evaluate(cohort, order))
            reply.metrics = {replace(one, shared=True): values for one, values in shared.items()}
            judged = replace(cohort, parameters=personal)
        found = self._learner.evaluate(judged, order)
        self._save(cohort, changed)
        if personal is not None:
            self._save_personal(cohort, personal)
        self._take_in(found, judged, rows, order, reply, final=True)
        return reply

    def _answer(self, order: Order, share: Share) -> CohortReply:
        cohort = self._load(share, order, upto=order.server_round, trains=False)
        rows = list(range(len(cohort.names)))
        reply = _reply(cohort, rows, share)
        sent = self._learner.answer(cohort, order)
        self._require_declared(sent, question=True)
        reply.arrays, reply.classes = _sent_by(sent, rows)
        return reply

    def _load(self, share: Share, order: Order, upto: int, *, trains: bool = True) -> Cohort:
        """The clients with their state as of a round and the order's shared parameters."""
        clients: list[ClientData] = [self._shard.clients[name] for name in share.clients]
        parameters = {}
        for name, value in self._learner.initial_parameters().items():
            shared = self._learner.is_shared(name)
            start = torch.from_numpy(order.arrays[name]) if shared else value
            there = start.to(self._task.device)
            parameters[name] = there.expand(len(clients), *there.shape).clone()
        samples = self._task.gather(clients, order.server_round)
        cohort = new_cohort(self._learner, parameters, samples, order.server_round, trains=trains)
        state = self._state(cohort)
        for places, stored in self._store.read_states(share.clients, upto) if state else ():
            if stored.keys().isdisjoint(state):
                continue  # these were judged, and have never trained
            if missing := sorted(state.keys() - stored.keys()):
                client = share.clients[places[0]]
                raise FedProtoError(
                    f"the state of client {client!r} has no {missing[0]!r}: go on with the version "
                    "of fedproto-app that wrote it, or begin another run"
                )
            if other := [n for n, t in state.items() if stored[n].shape[1:] != t.shape[1:]]:
                raise FedProtoError(
                    f"the state of client {share.clients[places[0]]!r} is of a model of another "
                    f"size: {other[0]!r} is {list(stored[other[0]].shape[1:])}, by the settings "
                    f"{list(state[other[0]].shape[1:])}; did this site's width-factor change?"
                )
            at = {one: torch.tensor(places, device=one) for one in _devices(state)}
            for name, tensor in state.items():
                if len(places) == len(clients):  # all, in their order
                    tensor.copy_(stored[name])
                else:
                    tensor[at[tensor.device]] = stored[name].to(tensor.device)
        return cohort

    def _save(self, cohort: Cohort, rows: Sequence[int]) -> None:
        """Write the personal part of the clients in these rows; the others keep their old state."""
        if rows and (state := self._state(cohort)):
            names = [cohort.names[row] for row in rows]
            its = {name: rows_of(value, rows) for name, value in state.items()}
            self._store.write_states(names, cohort.server_round, its)

    def _save_personal(self, cohort: Cohort, models: dict[str, Tensor]) -> None:
        """Write these models [K, …] beside what the clients' training goes on from."""
        own = flatten({PERSONAL: models})
        found = self._store.read_states(cohort.names, cohort.server_round)
        stored = {place for one in found for place in one.places}
        found.append(Found([row for row in range(len(cohort.names)) if row not in stored], {}))
        for places, before in found:
            if places:
                its = {name: rows_of(value, places) for name, value in own.items()}
                names = [cohort.names[place] for place in places]
                self._store.write_states(names, cohort.server_round, {**before, **its})

    def _state(self, cohort: Cohort) -> dict[str, Tensor]:
        """What clients keep between rounds: the cohort's own tensors, [K, …]."""
        groups = {PARAMETERS: cohort.parameters, **cohort.optimizer.state}
        own = {
            group: {n: v for n, v in named.items() if not self._learner.is_shared(n)}
            for group, named in groups.items()
        }
        return flatten({**own, MEMORY: cohort.memory_tensors()})

    def _take_in(
        self,
        found: Mapping[Metric, list[float]],
        cohort: Cohort,
        rows: Sequence[int],
        order: Order,
        reply: CohortReply,
        *,
        final: bool,
    ) -> None:
        """Note what was found of the cohort's models; keep final ones whose validation error is
        their client's best so far.

        final: the models are what the clients go on with, not what the server will average.
        """
        metrics = self._told(found)
        reply.metrics |= {
            metric if final else replace(metric, model=Model.LOCAL): [values[row] for row in rows]
            for metric, values in metrics.items()
        }
        if not final:
            return
        criterion = self._task.criterion.name
        for row in rows:
            client = cohort.names[row]
            record = self._store.record(client, before=order.server_round)
            now = {metric.name: metrics[metric][row] for metric in self._required}
            best = record.metrics.get(criterion, math.nan)
            # The first is kept even if not finite, as the server then refuses it by name.
            if math.isnan(best) or self._settings.keep == "last" or now[criterion] < best:
                scale = self._task.scale(self._shard.clients[client])
                record = ClientRecord(order.server_round, now, scale, self._private(found, row))
                self._store.keep(client, record)
            for name, value in record.metrics.items():
                reply.metrics.setdefault(Metric(name, Model.KEPT), []).append(value)
            reply.kept_rounds.append(record.kept_round)

    def _told(self, found: Mapping[Metric, list[float]]) -> dict[Metric, list[float]]:
        """What the server may learn of what was found."""
        told = {metric: values for metric, values in found.items() if not self._task.stays(metric)}
        if self._tells_classes:
            return told
        return {metric: values for metric, values in told.items() if "/class-" not in metric.name}

    def _private(self, found: Mapping[Metric, Sequence[float]], row: int) -> dict[str, float]:
        """What was found of the client's model and stays here."""
        return {
            metric.name: values[row]
            for metric, values in found.items()
            if self._task.stays(metric) and metric == Metric(metric.name)
        }


def _each(
    work: Callable[[Order, Share], CohortReply], order: Order, shares: Iterable[Share]
) -> list[CohortReply]:
    return [reply for share in shares for reply in in_halves(work, order, share)]


def _devices(tensors: Mapping[str, Tensor]) -> set[torch.device]:
    return {value.device for value in tensors.values()}


def _finite_rows(values: Iterable[Tensor]) -> list[bool]:
    """Which clients' values [K, …] are all finite."""
    flat = [value.reshape(len(value), -1) for value in values]
    # A sum is finite only if all that is summed is, and is sixty times as fast to find.
    finite = torch.stack([value.sum(dim=1).isfinite() for value in flat]).all(dim=0)
    if not finite.all():  # or finite numbers were huge
        finite = torch.stack([value.isfinite().all(dim=1) for value in flat]).all(dim=0)
    found: list[bool] = finite.tolist()
    return found


def _reply(cohort: Cohort, rows: Sequence[int], share: Share) -> CohortReply:
    samples = cohort.samples.train_samples
    names = [cohort.names[row] for row in rows]
    return CohortReply(names, [samples[row] for row in rows], place=share.place)


def _weighted_sums(
    learner: AnyLearner, cohort: Cohort, models: Mapping[str, Tensor], rows: Sequence[int]
) -> tuple[Totals, int]:
    """The clients' shared parameters, summed as the learner weighs them, and the weights' sum.

    Client by client: sums of a whole axis have an order that depends on its memory. They are made
    where the models are, of all parameters at once, and copied once.
    """
    samples = cohort.samples.train_samples
    weights = [samples[row] if learner.weighs_samples else 1 for row in rows]
    if not (models and rows):
        return {}, sum(weights)
    parts = [value.reshape(len(value), -1) for value in models.values()]
    factors = torch.tensor(weights, dtype=torch.float64, device=parts[0].device).unsqueeze(1)

    def terms() -> Iterator[Tensor]:
        for first in range(0, len(rows), _WEIGHED_TOGETHER):
            some = slice(first, first + _WEIGHED_TOGETHER)
            flat = torch.cat([rows_of(part, rows[some]) for part in parts], dim=1)
            yield from flat.double() * factors[some]

    total = reduce(torch.add, terms()).cpu().numpy()
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    sums = zip(models.items(), np.split(total, ends), strict=True)
    return {name: one.reshape(value.shape[1:]) for (name, value), one in sums}, sum(weights)


def _sent_by(sent: Contribution, rows: Sequence[int]) -> tuple[Arrays, list[list[int]]]:
    """What the clients in these rows send, and the classes of its rows by class."""
    if sent.present is None:
        return {name: array[list(rows)] for name, array in sent.arrays.items()}, []
    present = sent.present.cpu()
    classes: list[list[int]] = [present[row].nonzero().flatten().tolist() for row in rows]
    arrays = {
        name: np.concatenate([array[row][its] for row, its in zip(rows, classes, strict=True)])
        for name, array in sent.arrays.items()
        if rows
    }
    return arrays, classes
