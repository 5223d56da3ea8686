"""An adapter that gives a method's strategy Flower's Strategy interface.

`FlowerStrategy` calls a method's hooks in their order (docs/design.md). The method sees arrays and
the `Round`, and never a message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedproto_app.core.clients import ClientKey, node_keys
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.loading import load
from fedproto_app.core.messages import Arrays, Guidance, Refusal, Reply
from fedproto_app.core.methods import method_named, part_of
from fedproto_app.core.round import ClientReply, Round, SentModel, Total
from fedproto_app.core.sends import Expected
from fedproto_app.core.stored import AnyArray
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.data.shape import DataShape
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.strategies.common.strategy import BaseStrategy, Findings, State
from fedproto_app.tasks.table import make_task
from fedproto_app.trust.fixed_point import BY_CLASS, CLIENTS, Sums


class FlowerStrategy(Strategy):
    """The rounds of a method: train, aggregate, evaluate.

    method: the method's strategy. Its state and findings are the run's. first: the
    strategies of the first phases, one for each of their rounds, from round 1 on. asked: the nodes
    asked in this phase.
    """

    def __init__(self, method: BaseStrategy, first: Sequence[BaseStrategy] = ()) -> None:
        self.method, self._federation, self.first = method, method.federation, first
        self._round: Round | None = None
        self.asked: set[str] = set()

    def method_of(self, server_round: int) -> BaseStrategy:
        """Return the strategy whose hooks a round calls."""
        return [*self.first, self.method][min(server_round - 1, len(self.first))]

    def first_phase_for(self, node: str) -> Arrays:
        """Return a first phase's result for a node that lacks it, and {} for other nodes."""
        return {}

    def answered(self, nodes: Collection[str], server_round: int) -> None:
        """Note which of the nodes asked in this phase (`asked`) gave a usable reply."""

    def initial_arrays(self) -> Arrays:
        """Return the global model before round 1, empty if the method has none."""
        return self.method.initial_arrays()

    def state(self) -> State:
        """Return the arrays for a checkpoint, without the global model."""
        return self.method.state()

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of `state`."""
        self.method.restore(state)

    def findings(self) -> Findings:
        """Return the artefacts of the finished run: arrays by file name."""
        return self.method.findings()

    # --- Flower's calls --------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        method, round_ = self.method_of(server_round), self.round_of(server_round)
        method.model = numpy_arrays(arrays)
        try:
            method.begin(round_)
        finally:
            report(self._federation, round_)
        trained, _ = self._clients()
        clients = method.chosen(method.eligible(trained), round_)
        self.asked = {key.node for key in clients}

        def guide(keys: list[ClientKey]) -> Guidance:
            return self._complete(method.guide(keys, round_), method, keys)

        return self._federation.pipeline.orders(
            clients,
            guide,
            server_round,
            MessageType.TRAIN,
            shared=method.shared_names,
            averaged=method.expected(round_).mean,
            evaluate=method.evaluates_with_training(round_),
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        method, round_ = self.method_of(server_round), self.round_of(server_round)
        pipeline, expected = self._federation.pipeline, method.expected(round_)
        answers = pipeline.read(replies, expected)
        method.answered(self.asked, _clients_of(answers), evaluation=False)
        self.answered({reply.node for reply in answers}, server_round)
        if not method.settings.aggregation.secure:
            arrays = _after_replies(method, answers, expected, round_)
        else:
            arrays = _after_sums(method, pipeline.total, answers, round_)
        report(self._federation, round_)
        return (array_record(arrays) if arrays else None), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        method, round_ = self.method_of(server_round), self.round_of(server_round)
        method.model = numpy_arrays(arrays)
        # With a privacy budget, it is clear only now whether another round can follow.
        round_.evaluated = self._federation.selection.evaluates(server_round)
        try:
            method.conclude(round_)
        finally:
            report(self._federation, round_)
        if not round_.evaluated:
            return []
        trained, receiving = self._clients()
        clients = sorted([*method.to_evaluate(trained, round_), *receiving])
        self.asked = {key.node for key in clients}

        def guide(keys: list[ClientKey]) -> Guidance:
            return self._complete(method.guide_evaluation(keys, round_), method, keys)

        return self._federation.pipeline.orders(
            clients, guide, server_round, MessageType.EVALUATE, shared=method.shared_names
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        answers = self._federation.pipeline.read(replies, Expected())
        self.method_of(server_round).answered(self.asked, _clients_of(answers), evaluation=True)
        self.answered({reply.node for reply in answers}, server_round)
        return None

    def _complete(
        self, guidance: Guidance, method: BaseStrategy, clients: Sequence[ClientKey]
    ) -> Guidance:
        """Add the shared parameters to the guidance, and a first phase's result if it is due."""
        with_model = guidance.with_model(method.shared_for(clients))
        first_phase = {} if method.first_round else self.first_phase_for(clients[0].node)
        return replace(with_model, first_phase=first_phase)

    def summary(self) -> None:
        clients = self._federation.members.clients()
        log(INFO, "\t└──> %s over %d clients", type(self.method).__name__, len(clients))

    def _clients(self) -> tuple[list[ClientKey], list[ClientKey]]:
        """Return the clients that can train, and those without train samples, which are only
        evaluated: they receive models and never send anything."""
        members = self._federation.members
        clients, facts = members.clients(), members.facts
        trained = [key for key in clients if facts[key].samples]
        return trained, [key for key in clients if not facts[key].samples]

    def round_of(self, server_round: int) -> Round:
        """Return the round as the hooks see it, which is the same object in all phases."""
        if self._round is None or self._round.number != server_round:
            facts, names = self._federation.members.facts, self._federation.shape.classes
            evaluated = self._federation.selection.evaluates(server_round)
            self._round = Round(server_round, facts, names, evaluated)
        return self._round


def _after_replies(
    method: BaseStrategy, answers: Sequence[Reply], expected: Expected, round_: Round
) -> Arrays | None:
    """Give the method the clients' replies, and return the new shared parameters."""
    mean = method.average(sent_models(answers, expected), round_)
    accept(method, [r for answer in answers for r in client_replies(answer, expected)], round_)
    return method.renewed(mean, round_) if mean else mean


def _after_sums(
    method: BaseStrategy, sums: Sums | None, answers: Sequence[Reply], round_: Round
) -> Arrays | None:
    """Give the method the masked sums of these replies, and return the new shared parameters."""
    if sums is None:
        return None
    mean, fault = method.mean_of(sums, answers)
    if fault:
        refusal = Refusal("", "", f"masked sum of all nodes: {fault}")
        method.federation.history.refuse(refusal)
        return None
    method.received.take_total(_total_of(sums))
    method.update(round_)
    return method.renewed(mean, round_) if mean else None


def _total_of(sums: Sums) -> Total:
    by_class = sums.counts.get(BY_CLASS, np.zeros(0, np.int64))
    groups = {name: _total_of(of_group) for name, of_group in sums.groups.items()}
    return Total(sums.values, int(sums.counts[CLIENTS]), by_class, groups)


def accept(method: BaseStrategy, replies: Sequence[ClientReply], round_: Round) -> None:
    """Validate a round's replies, and update the method's state with the valid ones."""
    faults = {r.key: why for r in replies if (why := method.fault(r, round_))}
    good = [reply for reply in replies if reply.key not in faults]
    faults |= method.outliers(good)
    round_.refused |= faults
    method.received.take([reply for reply in good if reply.key not in faults])
    method.update(round_)


def report(federation: Federation, round_: Round) -> None:
    """Record the method's refusals and figures of the round."""
    for key, reason in round_.refused.items():
        federation.history.refuse(Refusal(key.node, key.client, reason))
    round_.refused.clear()
    if round_.figures:
        federation.history.note(round_.figures)


def _clients_of(answers: Sequence[Reply]) -> list[ClientKey]:
    return [key for reply in answers for key in node_keys(reply.node, reply.names)]


def sent_models(answers: Sequence[Reply], expected: Expected) -> list[SentModel]:
    """Return each node's mean model, or each client's model if nodes do not average."""
    models = []
    for reply in answers:
        if expected.mean:
            key, arrays = ClientKey("", reply.node), {n: reply.arrays[n] for n in expected.mean}
            models.append(SentModel(key, sum(reply.samples), len(reply.names), arrays))
            continue
        for row, key in enumerate(node_keys(reply.node, reply.names)):
            arrays = {name: reply.arrays[name][row] for name in expected.models}
            models.append(SentModel(key, reply.samples[row], 1, arrays))
    return models


def client_replies(reply: Reply, expected: Expected) -> Iterator[ClientReply]:
    """Yield the reply of each of a node's clients, without the model."""
    start = 0
    names = [name for name in expected.per_client if name not in expected.models]
    classes_of = reply.classes or [[]] * len(reply.names)
    rows = zip(node_keys(reply.node, reply.names), reply.samples, classes_of, strict=True)
    for row, (key, samples, classes) in enumerate(rows):
        arrays = {name: reply.arrays[name][row] for name in names}
        of_classes = slice(start, start + len(classes))
        arrays |= {name: reply.arrays[name][of_classes] for name in expected.per_class}
        yield ClientReply(key, samples, arrays, classes)
        start = of_classes.stop


def make_strategy(settings: Settings, federation: Federation) -> FlowerStrategy:
    """Return the server half of the method that the settings choose.

    Raise `SettingsError` if the method cannot work with the user's module.
    """
    method = method_named(settings.method)
    _require_fitting_model(settings, federation.shape)
    of_method = part_of(method, "strategy", settings.task)
    strategy: BaseStrategy = of_method(settings, federation)
    phases = settings.first_phases
    if not phases:
        return FlowerStrategy(strategy)
    all_phases = load(phases[0].strategy, "the strategy of all phases")
    of_all: FlowerStrategy = all_phases(settings, federation, strategy)
    return of_all


def _require_fitting_model(settings: Settings, shape: DataShape) -> None:
    learner = make_learner(settings, make_task(settings, shape))
    if not learner.task.model.splits and learner.needs_representation:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} works with "
            "the representation, so the module needs two children named encoder and head"
        )
