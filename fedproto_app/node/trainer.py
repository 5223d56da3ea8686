"""Carry out an order at a node: train and evaluate cohorts of clients, and store their state."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.errors import FedProtoError, SettingsError
from fedproto_app.core.messages import Arrays, Order, Reply, limited_samples
from fedproto_app.core.metrics import Metric, Model, of_shared
from fedproto_app.core.sends import Sends
from fedproto_app.data.shard import ClientData, Shard
from fedproto_app.maths.steps import shortened_steps
from fedproto_app.node.protection import Protection
from fedproto_app.node.reported import Reporting
from fedproto_app.node.shares import Share
from fedproto_app.node.state_file import MEMORY, PARAMETERS, PERSONAL, StoredStates
from fedproto_app.node.store import ClientRecord, ClientStore, flatten, rows_of
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.learner import (
    AnyLearner,
    Cohort,
    Context,
    Contribution,
    new_cohort,
    train_cohort,
)

DIVERGED = "training diverged; its last good model stays"
_log = logging.getLogger(__name__)
_WEIGHED_TOGETHER = 16  # models that are summed at a time, to limit the memory of the sum

# A stage changes the values that the clients of a cohort send, before they are put into a reply.
Stage: TypeAlias = Callable[[Contribution, Cohort, Order], Contribution]


class Node:
    """The clients of one shard, the learner that trains them, and the store of their state."""

    def __init__(
        self,
        settings: Settings,
        shard: Shard,
        store: ClientStore,
        learner: AnyLearner,
        *,
        tells_classes: bool = True,
        protection: Protection | None = None,
    ) -> None:
        """tells_classes: whether the server may learn how many samples of a class a client has.
        protection: the stage that clips all values that clients send and adds noise to them, or
        None without noise."""
        self._tells_classes = tells_classes
        self.settings, self._shard, self.store, self.learner = settings, shard, store, learner
        self._sent_after_training = [r for r in learner.releases if r.when != "question"]
        self._task = learner.task
        self._required = self._task.required_metrics(settings)
        self._reporting = (
            None
            if settings.privacy.reported == "exact"
            else Reporting(settings, self._task.metrics, self._required, protection)
        )
        self._stages: list[Stage] = [self._limited]
        if settings.limits_steps and learner.sends_mean:
            self._stages.append(_shortened)
        if protection:
            self._stages.append(protection.applied)

    def train(self, order: Order, shares: Iterable[Share]) -> list[Reply]:
        """Train the clients of these cohorts, and evaluate them too if the order says so."""
        self.store.begin(order.server_round)
        replies = self.replies(self._train, order, shares)
        self.store.settle()
        return replies

    def evaluate(self, order: Order, shares: Iterable[Share]) -> list[Reply]:
        """Evaluate the clients' models without training, with the order's shared parameters."""
        self.store.begin(order.server_round)
        self.remember(order)
        replies = self.replies(self._judge, order, shares)
        self.store.settle()
        return replies

    def replies(
        self, work: Callable[[Order, Share], Reply], order: Order, shares: Iterable[Share]
    ) -> list[Reply]:
        """Return the replies of the cohorts, without anything that the server must not learn."""
        of_order = partial(work, order)
        replies = [reply for share in shares for reply in in_halves(of_order, share)]
        reporting = self._reporting
        return [reporting.applied(reply, order) for reply in replies] if reporting else replies

    def remember(self, order: Order) -> None:
        """Store the order's shared parameters, if it has any."""
        shared = {
            name: torch.from_numpy(array)
            for name, array in order.guidance.arrays.items()
            if self.learner.is_shared(name)
        }
        if shared:
            self.store.write_shared(order.server_round, flatten({PARAMETERS: shared}))

    def _train(self, order: Order, share: Share) -> Reply:
        cohort = self.load(share, order, upto=order.server_round - 1)
        self.learner.begin(cohort)
        context = self.learner.context(order.guidance, cohort)
        losses = train_cohort(self.learner, cohort, context)
        outgoing = self._contribution(cohort, context, order)
        # Evaluate before any state changes. If memory runs out, `in_halves` starts over.
        results = self.learner.evaluate(cohort, order.guidance) if order.evaluate else None
        for stage in self._stages:
            outgoing = stage(outgoing, cohort, order)
        rows = [row for row in range(len(cohort.names)) if row not in outgoing.refused]
        reply = new_reply(cohort, rows, share, order)
        if self.learner.sends_mean:
            weights = reply.samples if self.learner.weighs_samples else [1] * len(rows)
            reply.totals, reply.weight = _weighted_sums(outgoing.model, rows, weights), sum(weights)
        self._save(cohort, rows)
        reply.losses = {name: values[rows].tolist() for name, values in losses.items()}
        reply.failed = {cohort.names[row]: why for row, why in sorted(outgoing.refused.items())}
        reply.steps = [outgoing.steps[row] for row in rows] if outgoing.steps else []
        reply.arrays, reply.classes = arrays_of(outgoing, rows)
        reply.noise = outgoing.noise
        if not self.learner.sends_mean:
            reply.arrays |= {
                name: value[rows].cpu().numpy() for name, value in outgoing.model.items()
            }
        if results is not None:
            self._take_in(results, cohort, rows, order, reply, final=not self.learner.shared)
        return reply

    def _contribution(self, cohort: Cohort, context: Context, order: Order) -> Contribution:
        """Return what the clients send before any stage. Diverged clients send nothing."""
        values = [*cohort.parameters.values(), *cohort.memory_tensors().values()]
        finite = _finite_rows(values) if values else []
        diverged = [row for row, is_finite in enumerate(finite) if not is_finite]
        outgoing = self.learner.contribution(cohort, context)
        require_declared(outgoing, self._sent_after_training, self.learner)
        return replace(
            outgoing,
            model=outgoing.model
            or {n: v for n, v in cohort.parameters.items() if self.learner.is_shared(n)},
            refused=dict.fromkeys(diverged, DIVERGED),
        )

    def _limited(self, outgoing: Contribution, cohort: Cohort, order: Order) -> Contribution:
        """Scale down a client's sums over its samples if it has more than `most_samples`."""
        if min(cohort.shares, default=1.0) == 1.0:
            return outgoing
        sums = {
            name
            for release in self.learner.releases
            if release.combine == "sum" or release.clip == "sums"
            for name in (*release.arrays, *release.under_masks)
        }
        factors = np.array(cohort.shares, dtype=np.float32)
        scaled = {
            name: array * factors.reshape(-1, *[1] * (array.ndim - 1))
            for name, array in outgoing.arrays.items()
            if name in sums
        }
        return replace(outgoing, arrays={**outgoing.arrays, **scaled})

    def _judge(self, order: Order, share: Share) -> Reply:
        cohort = self.load(share, order, upto=order.server_round, trains=False)
        guidance = order.guidance
        changed = self.learner.receive(cohort, guidance)
        rows = list(range(len(cohort.names)))
        reply = new_reply(cohort, rows, share, order)
        judged, personal = cohort, self.learner.personalised(cohort, guidance)
        if personal is not None:
            shared = self._reported(self.learner.evaluate(cohort, guidance))
            used = {m: values for m, values in shared.items() if m.model is Model.USED}
            reply.metrics = of_shared(used)
            judged = replace(cohort, parameters=personal)
        results = self.learner.evaluate(judged, guidance)
        # A client that only receives never trains, so its model has to be stored here.
        receiving = [row for row, count in enumerate(cohort.samples.train_samples) if not count]
        self._save(cohort, sorted({*changed, *receiving}))
        if personal is not None:
            self._save_personal(cohort, personal)
        self._take_in(results, judged, rows, order, reply, final=True)
        return reply

    def load(self, share: Share, order: Order, upto: int, *, trains: bool = True) -> Cohort:
        """Return the clients with their state of round `upto` and the order's shared parameters."""
        clients: list[ClientData] = [self._shard.clients[name] for name in share.clients]
        parameters = {}
        for name, value in self.learner.initial_parameters().items():
            shared = self.learner.is_shared(name)
            start = torch.from_numpy(order.guidance.arrays[name]) if shared else value
            on_device = start.to(self._task.device)
            parameters[name] = on_device.expand(len(clients), *on_device.shape).clone()
        samples = self._task.gather(clients, order.server_round)
        cohort = new_cohort(self.learner, parameters, samples, order.server_round, trains=trains)
        declared = [client.train_samples for client in clients]
        cohort.shares = [
            limited_samples(count, order.most_samples) / count if count else 1.0
            for count in declared
        ]
        state = self._state(cohort)
        for places, stored in self.store.read_states(share.clients, upto) if state else ():
            if stored.keys().isdisjoint(state):
                continue  # these clients have been evaluated, but have never trained
            if missing := sorted(state.keys() - stored.keys()):
                client = share.clients[places[0]]
                raise FedProtoError(
                    f"the state of client {client!r} has no {missing[0]!r}; continue with the "
                    "version of fedproto-app that wrote it, or start another run"
                )
            if mismatched := [n for n, t in state.items() if stored[n].shape[1:] != t.shape[1:]]:
                raise FedProtoError(
                    f"the state of client {share.clients[places[0]]!r} is of a model of another "
                    f"size: {mismatched[0]!r} is {list(stored[mismatched[0]].shape[1:])}, but "
                    f"according to the settings {list(state[mismatched[0]].shape[1:])}; did this "
                    "site's width-factor change?"
                )
            devices = {tensor.device for tensor in state.values()}
            indices = {device: torch.tensor(places, device=device) for device in devices}
            for name, tensor in state.items():
                if len(places) == len(clients):  # all clients, in their order
                    tensor.copy_(stored[name])
                else:
                    tensor[indices[tensor.device]] = stored[name].to(tensor.device)
        return cohort

    def _save(self, cohort: Cohort, rows: Sequence[int]) -> None:
        """Save the personal state of the clients that these rows hold. Others keep their state."""
        if rows and (state := self._state(cohort)):
            names = [cohort.names[row] for row in rows]
            personal = {name: rows_of(value, rows) for name, value in state.items()}
            self.store.write_states(names, cohort.server_round, personal)

    def _save_personal(self, cohort: Cohort, models: dict[str, Tensor]) -> None:
        """Write these models [K, …] beside the state that the clients' training continues from."""
        personal = flatten({PERSONAL: models})
        states = self.store.read_states(cohort.names, cohort.server_round)
        stored = {place for block in states for place in block.places}
        states.append(
            StoredStates([row for row in range(len(cohort.names)) if row not in stored], {})
        )
        for places, before in states:
            if places:
                personal_rows = {name: rows_of(value, places) for name, value in personal.items()}
                names = [cohort.names[place] for place in places]
                self.store.write_states(names, cohort.server_round, {**before, **personal_rows})

    def _state(self, cohort: Cohort) -> dict[str, Tensor]:
        """Return the tensors [K, …] that clients keep between rounds."""
        groups = {PARAMETERS: cohort.parameters, **cohort.optimizer.state}
        personal = {
            group: {n: v for n, v in tensors.items() if not self.learner.is_shared(n)}
            for group, tensors in groups.items()
        }
        return flatten({**personal, MEMORY: cohort.memory_tensors()})

    def _take_in(
        self,
        results: Mapping[Metric, list[float]],
        cohort: Cohort,
        rows: Sequence[int],
        order: Order,
        reply: Reply,
        *,
        final: bool,
    ) -> None:
        """Add the cohort's metrics to the reply. Keep a client's final model if its validation
        error is the client's lowest so far.

        final: whether the clients continue with these models instead of the server's average.
        """
        metrics = self._reported(results)
        reply.metrics |= {
            metric if final else replace(metric, model=Model.LOCAL): [values[row] for row in rows]
            for metric, values in metrics.items()
            if metric.model is Model.USED
        }
        if not final:
            return
        criterion = self._task.metrics.validation.metric.name
        for row in rows:
            client = cohort.names[row]
            record = self.store.record(client, before=order.server_round)
            errors = {metric.name: metrics[metric][row] for metric in self._required}
            best = record.metrics.get(criterion, math.nan)
            # The first model is kept even if its error is not finite. The server then refuses it.
            if math.isnan(best) or self.settings.keep == "last" or errors[criterion] < best:
                data = self._shard.clients[client]
                record = ClientRecord(
                    order.server_round,
                    errors,
                    self._task.scale(data),
                    self._private(results, row),
                    self._task.response(data),
                )
                self.store.keep(client, record)
            for name, value in record.metrics.items():
                reply.metrics.setdefault(Metric(name, Model.KEPT), []).append(value)
            reply.kept_rounds.append(record.kept_round)

    def _reported(self, results: Mapping[Metric, list[float]]) -> dict[Metric, list[float]]:
        """Return the metrics that the server may learn."""
        return {
            metric: values
            for metric, values in results.items()
            if not self._task.stays(metric)
            and (self._tells_classes or not self._task.is_of_class(metric))
        }

    def _private(self, results: Mapping[Metric, Sequence[float]], row: int) -> dict[str, float]:
        """Return the metrics of the client's model that never leave the node."""
        return {
            metric.name: values[row]
            for metric, values in results.items()
            if self._task.stays(metric) and metric == Metric(metric.name)
        }


def in_halves(work: Callable[[Share], Reply], share: Share) -> list[Reply]:
    """Return a cohort's reply, or its halves' replies if the device's memory does not suffice.

    work: carries out the work for a cohort. It must not change any state before its last large
    allocation on the device. Raises MemoryError if even a single client needs too much memory.
    """
    try:
        return [work(share)]
    except torch.OutOfMemoryError:
        if len(share.clients) == 1:
            raise MemoryError(f"{share.clients[0]} alone is too much for the device") from None
    # Continue outside of the handler, whose exception keeps the cohort's tensors alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = -(-len(share.clients) // 2)
    _log.warning(
        "a cohort of %d clients is too large for the device: %d at a time",
        len(share.clients),
        middle,
    )
    halves = share.clients[:middle], share.clients[middle:]
    return [reply for half in halves for reply in in_halves(work, Share(share.place, half))]


def require_declared(
    outgoing: Contribution, releases: Iterable[Sends], learner: AnyLearner, field: str = ""
) -> None:
    """Raise `SettingsError` for arrays that none of these releases of the learner declares.

    field: a further argument of the missing declaration, for the message.
    """
    declared = {name for r in releases for name in (*r.arrays, *r.under_masks)}
    if undeclared := sorted(outgoing.arrays.keys() - declared):
        name = undeclared[0]
        shape = outgoing.arrays[name].shape[1:]
        raise SettingsError(
            f"{type(learner).__name__} sends {name!r} of shape {shape}, which it does not "
            f'declare; its sends() needs Sends("{name}", {{"{name}": {shape}}}{field}) '
            "(docs/extending.md)"
        )


def _finite_rows(values: Iterable[Tensor]) -> list[bool]:
    """Return for each client whether all of its values are finite. values: [K, …] each."""
    flat = [value.reshape(len(value), -1) for value in values]
    # If a sum is finite, all its terms are. Computing the sum is sixty times as fast.
    finite = torch.stack([value.sum(dim=1).isfinite() for value in flat]).all(dim=0)
    if not finite.all():  # the sum of finite terms may overflow
        finite = torch.stack([value.isfinite().all(dim=1) for value in flat]).all(dim=0)
    flags: list[bool] = finite.tolist()
    return flags


def new_reply(cohort: Cohort, rows: Sequence[int], share: Share, order: Order) -> Reply:
    samples = [limited_samples(count, order.most_samples) for count in cohort.samples.train_samples]
    names = [cohort.names[row] for row in rows]
    return Reply(names, [samples[row] for row in rows], place=share.place)


def _shortened(outgoing: Contribution, cohort: Cohort, order: Order) -> Contribution:
    """Limit how far each model has moved from the order's model.

    A longer step is scaled down to the longest allowed.
    """
    start = order.guidance.arrays
    if not (outgoing.model and outgoing.model.keys() <= start.keys()):
        return outgoing
    model, steps = shortened_steps(outgoing.model, start, order.longest_step)
    return replace(outgoing, model=model, steps=steps)


def _weighted_sums(
    models: Mapping[str, Tensor], rows: Sequence[int], weights: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    """Return the weighted sums of the shared parameters over the clients in these rows.

    The sum is formed client by client, because torch's order in a sum over an axis depends
    on the memory layout. It is formed on the models' device for all parameters at once, and copied
    from there once.
    """
    if not (models and rows):
        return {}
    parts = [value.reshape(len(value), -1) for value in models.values()]
    factors = torch.tensor(weights, dtype=torch.float64, device=parts[0].device).unsqueeze(1)

    def terms() -> Iterator[Tensor]:
        for first in range(0, len(rows), _WEIGHED_TOGETHER):
            chunk = slice(first, first + _WEIGHED_TOGETHER)
            flat = torch.cat([rows_of(part, rows[chunk]) for part in parts], dim=1)
            yield from flat.double() * factors[chunk]

    total = reduce(torch.add, terms()).cpu().numpy()
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    sums = zip(models.items(), np.split(total, ends), strict=True)
    return {name: flat.reshape(value.shape[1:]) for (name, value), flat in sums}


def arrays_of(outgoing: Contribution, rows: Sequence[int]) -> tuple[Arrays, list[list[int]]]:
    """Return the arrays that the clients in these rows send, and the classes of the array rows."""
    if outgoing.present is None:
        return {name: array[list(rows)] for name, array in outgoing.arrays.items()}, []
    present = outgoing.present.cpu()
    classes: list[list[int]] = [present[row].nonzero().flatten().tolist() for row in rows]
    arrays = {
        name: np.concatenate(
            [array[row][labels] for row, labels in zip(rows, classes, strict=True)]
        )
        for name, array in outgoing.arrays.items()
        if rows
    }
    return arrays, classes
