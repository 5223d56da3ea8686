"""The server half of a method, beyond Flower's Strategy interface.

`BaseStrategy` translates Flower's calls, so a method's code sees arrays, `Round` and its settings
but never a message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from logging import INFO
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey, node_keys
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.loading import load
from fedproto_app.core.messages import Arrays, Guidance, Refusal, Reply
from fedproto_app.core.methods import method_named, part_of
from fedproto_app.core.round import ClientReply, Received, Round, Total
from fedproto_app.core.sends import Expected, Sends, Sizes
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.data.shape import DataShape
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation, Guide
from fedproto_app.strategies.common.learner import AnyLearner, make_learner
from fedproto_app.tasks.table import make_task
from fedproto_app.trust.averaging import Averaging
from fedproto_app.trust.fixed_point import BY_CLASS, CLIENTS, Sums


class Saved(Protocol):
    """What a checkpoint keeps."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a checkpoint, without the global model."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the arrays of `state`."""


class MethodStrategy(Saved, Protocol):
    """A Flower strategy with state for checkpoints."""

    def initial_arrays(self) -> Arrays:
        """Return the global model before round 1, empty if the method has none."""

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the artefacts of the finished run: arrays by file name."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]: ...

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]: ...

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]: ...

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None: ...


class BaseStrategy(Strategy):
    """A round of a method: train, aggregate, evaluate. Methods override what they need.

    section: the method's settings; subclasses name the class. learner: the method's client half,
    which declares what clients send. sizes: sizes of the data and the model, which give the
    declared arrays their shapes. releases: the declarations. received: the clients' arrays.
    averaging: the aggregation rule. model: the shared parameters at the start of the phase.
    saved: the parts of the state that checkpoints keep, by default `received`.
    """

    settings: Settings
    section: Any
    learner: AnyLearner
    sizes: Sizes

    def __init__(
        self, settings: Settings, section: Any, federation: Federation | None = None
    ) -> None:
        """federation: None if no node is asked, as in a test that calls only `update` and
        `guide`."""
        self.settings, self.section, self._federation = settings, section, federation
        task = make_task(settings, federation.shape if federation else DataShape())
        self.averaging = federation.averaging if federation else Averaging(settings.aggregation)
        self.learner = make_learner(settings, task, self.first_round(settings))
        self.sizes = task.sizes()
        self.received = Received(self.releases, self.averaging.rows)
        self.saved: Sequence[Saved] = [self.received]
        self.model: Arrays = {}
        self._round: Round | None = None
        self._asked: set[str] = set()  # the nodes asked in this phase

    @property
    def federation(self) -> Federation:
        assert self._federation is not None, "this strategy has no nodes to ask"
        return self._federation

    def first_round(self, settings: Settings) -> int:
        """Return the first round after pretraining."""
        return settings.pretraining_rounds + 1

    @property
    def releases(self) -> Sequence[Sends]:
        return self.learner.sends(self.section, self.sizes)

    def expected(self, server_round: int) -> Expected:
        """Return the arrays of a reply to an order to train."""
        return Expected.of(
            self.releases,
            self.sizes,
            nodes_average=self.learner.sends_mean,
            evaluates=self.round_of(server_round).evaluated,
        )

    # --- hooks of a method ------------------------------------------------------------------------

    def initial_arrays(self) -> Arrays:
        """Return the parameters that the server shares before round 1."""
        return {}

    def begin(self, round_: Round) -> None:
        """Change `model` before the round's clients are chosen."""

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Return the clients that the method can train."""
        return clients

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Return the clients to train in a round."""
        return self.federation.selection.choose(eligible, server_round)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """Return the parameters that go to these clients of one node."""
        return self.model

    def shared_names(self) -> Collection[str]:
        """Return the names of guidance arrays that are the same for all clients."""
        return ()

    def evaluates_with_training(self, round_: Round) -> bool:
        """Return whether clients are evaluated right after training, in the same message."""
        return False

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Return the guidance for these clients of one node when they train."""
        return Guidance()

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Return why a client's arrays cannot be true, or None."""
        return None

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Return why some of these replies, though possible, are refused beside the others."""
        return {}

    def update(self, received: Received, round_: Round) -> None:
        """Update the method's state with the clients' arrays of a round."""

    def conclude(self, round_: Round) -> None:
        """Change `model` before the round's evaluation."""

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients to evaluate, of all connected clients."""
        return clients

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        """Return the guidance for these clients of one node when they are only evaluated."""
        return Guidance()

    def answered(
        self, asked_nodes: Collection[str], clients: Sequence[ClientKey], *, evaluation: bool
    ) -> None:
        """Take note of the clients with a usable reply in a phase. asked_nodes: the nodes of the
        chosen clients."""

    # --- Flower's calls --------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        round_, self.model = self.round_of(server_round), numpy_arrays(arrays)
        try:
            self.begin(round_)
        finally:
            self.report(round_)
        eligible = self.eligible(self.federation.members.clients())
        chosen = self.chosen(eligible, server_round)
        evaluate = self.evaluates_with_training(round_)

        def guide(keys: list[ClientKey]) -> Guidance:
            return self.guide(self.received, keys, round_).with_model(self.shared_for(keys))

        averaged = self.expected(server_round).mean
        return self._orders(
            chosen, guide, server_round, MessageType.TRAIN, averaged=averaged, evaluate=evaluate
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        pipeline, expected = self.federation.pipeline, self.expected(server_round)
        answers = pipeline.read(replies, expected)
        self._answered(answers, evaluation=False)
        arrays = pipeline.sums.hand_over(
            answers,
            lambda answers: self.take_each(answers, server_round),
            lambda total: self.take_sums(total, answers, server_round),
        )
        return (array_record(arrays) if arrays else None), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        round_, self.model = self.round_of(server_round), numpy_arrays(arrays)
        # With a privacy budget, only now is it clear whether another round can follow.
        round_.evaluated = self.federation.selection.evaluates(server_round)
        try:
            self.conclude(round_)
        finally:
            self.report(round_)
        if not round_.evaluated:
            return []

        def guide(keys: list[ClientKey]) -> Guidance:
            guidance = self.guide_evaluation(self.received, keys, round_)
            return guidance.with_model(self.shared_for(keys))

        clients = self.to_evaluate(self.federation.members.clients(), round_)
        return self._orders(clients, guide, server_round, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        answers = self.federation.pipeline.read(replies, Expected())
        self._answered(answers, evaluation=True)
        return None

    def summary(self) -> None:
        clients = self.federation.members.clients()
        log(INFO, "\t└──> %s over %d clients", type(self).__name__, len(clients))

    # --- from messages to the hooks ---------------------------------------------------------------

    def round_of(self, server_round: int) -> Round:
        """Return the round as the hooks see it, the same object in all phases."""
        if self._round is None or self._round.number != server_round:
            federation = self.federation
            facts, names = federation.members.facts, federation.shape.classes
            evaluated = federation.selection.evaluates(server_round)
            self._round = Round(server_round, facts, names, evaluated)
        return self._round

    def take_each(self, answers: list[Reply], server_round: int) -> Arrays | None:
        """Take in the clients' replies to an order to train; return the new shared parameters."""
        self.take_in(answers, server_round)
        return None

    def take_sums(self, sums: Sums, answers: list[Reply], server_round: int) -> Arrays | None:
        """Take in the masked sums of these replies; return the new shared parameters."""
        self.take_in_total(sums, server_round)
        return None

    def take_in(self, answers: Iterable[Reply], server_round: int) -> None:
        """Take in the clients' arrays other than the model, and record what was refused."""
        round_, expected = self.round_of(server_round), self.expected(server_round)
        self.accept([r for answer in answers for r in client_replies(answer, expected)], round_)
        self.report(round_)

    def accept(self, replies: Sequence[ClientReply], round_: Round) -> None:
        """Validate a round's replies, and update the method's state with the valid ones."""
        faults = {r.key: why for r in replies if (why := self.fault(r, round_))}
        good = [reply for reply in replies if reply.key not in faults]
        faults |= self.outliers(good)
        round_.refused |= faults
        self.received.take([reply for reply in good if reply.key not in faults])
        self.update(self.received, round_)

    def take_in_total(self, sums: Sums, server_round: int) -> None:
        """Take in masked sums, and update the method's state."""
        by_class = sums.counts.get(BY_CLASS, np.zeros(0, np.int64))
        self.received.take_total(Total(sums.values, int(sums.counts[CLIENTS]), by_class))
        round_ = self.round_of(server_round)
        self.update(self.received, round_)
        self.report(round_)

    def report(self, round_: Round) -> None:
        """Record the method's refusals and figures of the round."""
        for key, reason in round_.refused.items():
            self.federation.history.refuse(Refusal(key.node, key.client, reason))
        round_.refused.clear()
        if round_.figures:
            self.federation.history.note(round_.figures)

    def state(self) -> dict[str, NDArray[Any]]:
        return {name: array for part in self.saved for name, array in part.state().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        for part in self.saved:
            part.restore(state)

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        return {}

    def _orders(
        self,
        clients: Sequence[ClientKey],
        guide: Guide,
        server_round: int,
        kind: str,
        *,
        averaged: Collection[str] = (),
        evaluate: bool = False,
    ) -> list[Message]:
        self._asked = {key.node for key in clients}
        return self.federation.pipeline.orders(
            clients,
            guide,
            server_round,
            kind,
            shared=self.shared_names(),
            averaged=averaged,
            evaluate=evaluate,
        )

    def _answered(self, answers: Sequence[Reply], *, evaluation: bool) -> None:
        clients = [key for reply in answers for key in node_keys(reply.node, reply.names)]
        self.answered(self._asked, clients, evaluation=evaluation)


class PersonalStrategy(BaseStrategy):
    """Base of the methods whose models stay at the clients.

    A client's model is final after training, so it is evaluated in the same message. An evaluation
    phase is only for clients that trained in rounds without evaluation. Methods override `update`
    (use the replies) and `guide` (send guidance).

    final_after_training: false if clients get guidance before they are evaluated.
    """

    final_after_training = True

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Return a share of all clients, and all that never trained."""
        unheard = set(eligible) - self.federation.history.trained
        return self.federation.selection.choose(eligible, server_round, unheard)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """Return no parameters: models stay at the clients."""
        return {}

    def evaluates_with_training(self, round_: Round) -> bool:
        return self.final_after_training and round_.evaluated

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients that trained since their last evaluation."""
        return [key for key in clients if key in self.federation.history.unevaluated]


def client_replies(reply: Reply, expected: Expected) -> Iterator[ClientReply]:
    """Yield a node's reply client by client, without the model."""
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


def make_strategy(settings: Settings, federation: Federation) -> MethodStrategy:
    """Return the server half of the method that the settings choose.

    Raise `SettingsError` if the method cannot work with the user's module.
    """
    method = method_named(settings.method)
    _require_fitting_model(settings, federation.shape)
    of_method = part_of(method, "strategy", settings.task)
    strategy: MethodStrategy = of_method(settings, settings.method_settings, federation)
    if method.pretraining:
        both_phases = load(method.pretraining.strategy, "the strategy of both phases")
        strategy = both_phases(settings, federation, strategy)
    return strategy


def _require_fitting_model(settings: Settings, shape: DataShape) -> None:
    learner = make_learner(settings, make_task(settings, shape))
    if not learner.task.model.splits and learner.needs_representation:
        raise SettingsError(
            f"model.module = {settings.model.module!r}: method = {settings.method!r} works with "
            "the representation, so the module needs two children named encoder and head"
        )
