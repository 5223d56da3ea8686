"""What a run needs of the server half of every method, beyond Flower's own Strategy interface.

`BaseStrategy` translates Flower's calls: a method's own code sees arrays, `Round` and its settings,
and never a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey, keys_in
from fedproto_app.core.messages import Arrays, Order, Refusal, Reply
from fedproto_app.core.method import IN_STRATEGIES, refuse_removed
from fedproto_app.core.round import ClientReply, Guidance, Received, Round, Total
from fedproto_app.core.sends import Expected, Sends, Sizes
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.data.shape import DataShape
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.halves import make_learner
from fedproto_app.strategies.common.learner import AnyLearner
from fedproto_app.tasks.table import make_task
from fedproto_app.trust.averaging import Averaging
from fedproto_app.trust.fixed_point import BY_CLASS, CLIENTS, Sums

Guide = Callable[[list[ClientKey]], Guidance]  # what these clients of one node get


class Ask(Protocol):
    """Puts a question to clients and waits for the answers, between the phases of a round."""

    def __call__(
        self,
        clients: Iterable[ClientKey],
        guide: Guide,
        expected: Expected,
        *,
        shared: Collection[str] = (),
        once: bool = False,
    ) -> list[ClientReply]:
        """The usable answers, in the order of the nodes' names; however few.

        guide: what the question brings to some clients of one node. expected: the arrays of an
        answer. shared: arrays that are meant for each client, where others are the clients' own.
        once: whether each client answers it once in a run, which is counted apart.
        """


class MethodStrategy(Protocol):
    """A Flower strategy that also says what it must remember."""

    def initial_arrays(self) -> Arrays:
        """The global model before round 1, empty if the method has none."""

    def state(self) -> dict[str, NDArray[Any]]:
        """What the server must keep besides the global model, for the checkpoint."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """What is worth keeping of the finished run: arrays by file name."""

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

    section: the method's own settings; subclasses say which class. learner: the method's client
    half, which declares what clients send. sizes: of the data and the model, by which the
    declarations give shapes. releases: what clients send. received: what they sent. averaging: the
    rule in force. model: the parameters that the server shares, as the phase began with them.
    most_samples: the most samples that a client can have used in a round, None: all that it
    declared.
    """

    settings: Settings
    section: Any
    learner: AnyLearner
    sizes: Sizes
    most_samples: int | None = None

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        refuse_removed(cls, IN_STRATEGIES)

    def __init__(
        self, settings: Settings, section: Any, federation: Federation | None = None
    ) -> None:
        """federation: None where nobody is asked, as in a test that calls `update` and `guide`
        alone."""
        self.settings, self.section, self._federation = settings, section, federation
        task = make_task(settings, federation.shape if federation else DataShape())
        self.averaging = federation.averaging if federation else Averaging(settings.aggregation)
        self.learner = make_learner(settings, task, self.first_round(settings))
        self.sizes = task.sizes()
        self.received = Received(self.releases, self.averaging.rows)
        self.model: Arrays = {}
        self._round: Round | None = None
        self._asked: set[str] = set()  # the nodes of the clients that were asked last

    @property
    def federation(self) -> Federation:
        assert self._federation is not None, "this strategy has no nodes to ask"
        return self._federation

    def first_round(self, settings: Settings) -> int:
        """The first one that is the method's own."""
        return settings.pretraining_rounds + 1

    @property
    def releases(self) -> Sequence[Sends]:
        return self.learner.sends(self.section, self.sizes)

    def expected(self, server_round: int) -> Expected:
        """The arrays of a reply to an order to train."""
        return Expected.of(
            self.releases,
            self.sizes,
            nodes_average=self.learner.sends_mean,
            evaluates=self.round_of(server_round).evaluated,
        )

    # --- what a method does in a round, without any message --------------------------------------

    def initial_arrays(self) -> Arrays:
        """The parameters that the server shares before round 1."""
        return {}

    def begin(self, round_: Round, ask: Ask) -> None:
        """Called before the round's clients are chosen, to ask what the round needs, or to change
        `model`."""

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """The clients that the method can train."""
        return clients

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Who is asked to train in a round."""
        return self.federation.selection.choose(eligible, server_round)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """The parameters that go to these clients of one node."""
        return self.model

    def shared_names(self) -> Collection[str]:
        """The arrays that are meant for each client, where others are the clients' own."""
        return ()

    def evaluates_with_training(self, round_: Round) -> bool:
        """Whether clients are evaluated in the message in which they train."""
        return False

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """What these clients of one node get when they are asked to train."""
        return Guidance()

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Why what a client sent cannot be true, or None."""
        return None

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Why some of these, though possible, are not used beside the others of the round."""
        return {}

    def update(self, received: Received, round_: Round) -> None:
        """Take in what the clients sent in a round."""

    def conclude(self, round_: Round, ask: Ask) -> None:
        """Called before the round's evaluation, to ask what it needs, or to change `model`."""

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """The clients to evaluate, of all that are there."""
        return clients

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        """What these clients of one node get when they are asked for an evaluation alone."""
        return Guidance()

    def answered(
        self, asked: Collection[str], clients: Sequence[ClientKey], *, evaluation: bool
    ) -> None:
        """Called with the clients whose answers to a phase are usable. asked: the nodes of the
        clients that were chosen."""

    # --- Flower's calls --------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        round_, self.model = self.round_of(server_round), numpy_arrays(arrays)
        try:
            self.begin(round_, self._asking(round_, grid))
        finally:
            self.report(round_)
        eligible = self.eligible(self.federation.members.clients())
        chosen = self.chosen(eligible, server_round)
        evaluate = self.evaluates_with_training(round_)

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.pipeline.order(keys, server_round, evaluate=evaluate)
            return self.guided(replace(plain, arrays=self.shared_for(keys)), keys)

        return self._orders(chosen, order, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        pipeline, expected = self.federation.pipeline, self.expected(server_round)
        answers = pipeline.read(replies, expected, self.most_samples)
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
        # With ε it may be known only now that another round can follow.
        round_.evaluated = self.federation.selection.evaluates(server_round)
        try:
            self.conclude(round_, self._asking(round_, grid))
        finally:
            self.report(round_)
        if not round_.evaluated:
            return []

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.pipeline.order(keys, server_round)
            shared = replace(plain, arrays=self.shared_for(keys))
            return with_guidance(shared, self.guide_evaluation(self.received, keys, round_))

        clients = self.to_evaluate(self.federation.members.clients(), round_)
        return self._orders(clients, order, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        answers = self.federation.pipeline.read(replies, Expected())
        self._answered(answers, evaluation=True)
        return None

    def summary(self) -> None:
        clients = self.federation.members.clients()
        log(INFO, "\t└──> %s over %d clients", type(self).__name__, len(clients))

    # --- between messages and what a method does -------------------------------------------------

    def round_of(self, server_round: int) -> Round:
        """The round as a method's own code sees it; it lasts over the phases of the round."""
        if self._round is None or self._round.number != server_round:
            federation = self.federation
            facts, names = federation.members.facts, federation.shape.classes
            evaluated = federation.selection.evaluates(server_round)
            self._round = Round(server_round, facts, names, evaluated)
        return self._round

    def take_each(self, answers: list[Reply], server_round: int) -> Arrays | None:
        """Take in the clients' answers to an order to train; returns the new shared parameters."""
        self.take_in(answers, server_round)
        return None

    def take_sums(self, sums: Sums, answers: list[Reply], server_round: int) -> Arrays | None:
        """The same where masks hide what each of these sent."""
        self.take_in_total(sums, server_round)
        return None

    def take_in(self, answers: Iterable[Reply], server_round: int) -> None:
        """Validate what the clients sent besides the model, and update the method's state."""
        round_, expected = self.round_of(server_round), self.expected(server_round)
        replies = [reply for answer in answers for reply in client_replies(answer, expected)]
        faults = {r.key: why for r in replies if (why := self.fault(r, round_))}
        good = [reply for reply in replies if reply.key not in faults]
        faults |= self.outliers(good)
        round_.refused |= faults
        self.received.take([reply for reply in good if reply.key not in faults])
        self.update(self.received, round_)
        self.report(round_)

    def take_in_total(self, sums: Sums, server_round: int) -> None:
        """The same where masks hide what each client sent."""
        by_class = sums.counts.get(BY_CLASS, np.zeros(0, np.int64))
        self.received.take_total(Total(sums.values, int(sums.counts[CLIENTS]), by_class))
        round_ = self.round_of(server_round)
        self.update(self.received, round_)
        self.report(round_)

    def report(self, round_: Round) -> None:
        """Hand on whom the method refused and what it reports of the round."""
        for key, reason in round_.refused.items():
            self.federation.history.refuse(Refusal(key.node, key.client, reason))
        round_.refused.clear()
        if round_.figures:
            self.federation.history.note(round_.figures)

    def guided(self, order: Order, keys: Sequence[ClientKey]) -> Order:
        """The order with the method's guidance for these clients of one node."""
        round_ = self.round_of(order.server_round)
        return with_guidance(order, self.guide(self.received, keys, round_))

    def state(self) -> dict[str, NDArray[Any]]:
        return self.received.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.received.restore(state)

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        return {}

    def _orders(
        self, clients: Sequence[ClientKey], order: Callable[[list[ClientKey]], Order], kind: str
    ) -> list[Message]:
        self._asked = {key.node for key in clients}
        return self.federation.pipeline.orders(clients, order, kind, self.shared_names())

    def _answered(self, answers: Sequence[Reply], *, evaluation: bool) -> None:
        clients = [key for reply in answers for key in keys_in(reply)]
        self.answered(self._asked, clients, evaluation=evaluation)

    def _asking(self, round_: Round, grid: Grid) -> Ask:
        pipeline = self.federation.pipeline

        def ask(
            clients: Iterable[ClientKey],
            guide: Guide,
            expected: Expected,
            *,
            shared: Collection[str] = (),
            once: bool = False,
        ) -> list[ClientReply]:
            def order(keys: list[ClientKey]) -> Order:
                return with_guidance(pipeline.order(keys, round_.number), guide(keys))

            answers = pipeline.question(grid, clients, order, expected, shared=shared, once=once)
            return [reply for answer in answers for reply in client_replies(answer, expected)]

        return ask


class PersonalStrategy(BaseStrategy):
    """Base of the methods whose models stay at the clients.

    A client's model is final once it has trained, so it is evaluated in the same message; an
    evaluation phase is only for clients that trained in rounds without evaluation. Methods
    override `update` (what becomes of the replies) and `guide` (what clients get).

    final_after_training: false where the server has something for the clients before they are
    evaluated.
    """

    final_after_training = True

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """A share of all, and those never heard from."""
        unheard = set(eligible) - self.federation.history.trained
        return self.federation.selection.choose(eligible, server_round, unheard)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """None."""
        return {}

    def evaluates_with_training(self, round_: Round) -> bool:
        return self.final_after_training and round_.evaluated

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Only clients that trained since their last evaluation and were not chosen this round."""
        return [key for key in clients if key in self.federation.history.unevaluated]


def with_guidance(order: Order, guidance: Guidance) -> Order:
    """The order with what the method sends besides the parameters that it shares."""
    return replace(
        order,
        arrays={**order.arrays, **guidance.arrays},
        guided=[key.client for key in guidance.clients],
        classes=list(guidance.classes),
        options={**order.options, **guidance.options},
    )


def client_replies(reply: Reply, expected: Expected) -> Iterator[ClientReply]:
    """A node's reply client by client, without the model."""
    start = 0
    names = [name for name in expected.per_client if name not in expected.models]
    classes_of = reply.classes or [[]] * len(reply.names)
    rows = zip(keys_in(reply), reply.samples, classes_of, strict=True)
    for row, (key, samples, classes) in enumerate(rows):
        arrays = {name: reply.arrays[name][row] for name in names}
        of_classes = slice(start, start + len(classes))
        arrays |= {name: reply.arrays[name][of_classes] for name in expected.per_class}
        yield ClientReply(key, samples, arrays, classes)
        start = of_classes.stop
