"""What a run needs of the server half of every method, beyond Flower's own Strategy interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.method import IN_STRATEGIES, refuse_removed
from fedproto_app.core.round import ClientReply, Guidance, Received, Round, Total
from fedproto_app.core.sends import Expected, Sends, Sizes
from fedproto_app.data.shape import DataShape
from fedproto_app.halves import make_learner
from fedproto_app.learners.learner import AnyLearner
from fedproto_app.messages import Arrays, Order, Refusal
from fedproto_app.secure.fixed_point import BY_CLASS, CLIENTS, Sums
from fedproto_app.server.averaging import Averaging
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import Settings
from fedproto_app.tasks.table import make_task


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


class MethodDefaults:
    """What most methods answer: nothing to remember or to find, besides what was received.

    learner: the method's client half, which declares what clients send. sizes: of the data and the
    model, by which the declarations give shapes.
    releases: what clients send. received: what they sent. averaging: the rule in force.
    """

    settings: Settings
    learner: AnyLearner
    sizes: Sizes

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        refuse_removed(cls, IN_STRATEGIES)

    def prepare(self, settings: Settings, section: Any, federation: Federation | None) -> None:
        """Called first by every constructor. federation: None where nobody is asked, as in a test
        that calls `update` and `guide` alone."""
        self.settings, self.section, self._federation = settings, section, federation
        task = make_task(settings, federation.shape if federation else DataShape())
        made = Averaging(settings.aggregation)
        self.averaging = federation.averaging if federation else made
        self.learner = make_learner(settings, task, self.first_round(settings))
        self.sizes = task.sizes()
        self.received = Received(self.releases, self.averaging.rows)

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
            evaluates=self.federation.selection.evaluates(server_round),
        )

    # --- what a method does in a round, without any message --------------------------------------

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        """Why what a client sent cannot be true, or None."""
        return None

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Why some of these, though possible, are not used beside the others of the round."""
        return {}

    def update(self, received: Received, round_: Round) -> None:
        """Take in what the clients sent in a round."""

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """What these clients of one node get when they are asked to train."""
        return Guidance()

    # --- between messages and these --------------------------------------------------------------

    def round_of(self, server_round: int) -> Round:
        """The round as `update` and `guide` see it."""
        federation = self.federation
        return Round(server_round, federation.members.facts, federation.shape.classes)

    def take_in(self, answers: Iterable[NodeReply], server_round: int) -> None:
        """Validate what the clients sent besides the model, and update the method's state."""
        round_, expected = self.round_of(server_round), self.expected(server_round)
        replies = [one for answer in answers for one in client_replies(answer, expected)]
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

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        self.federation.pipeline.read(replies, Expected())
        return None


class PersonalStrategy(MethodDefaults, Strategy):
    """Base of the methods whose models stay at the clients.

    A client's model is final once it has trained, so it is evaluated in the same message; an
    evaluation phase is only for clients that trained in rounds without evaluation. Methods
    override `update` (what becomes of the replies) and `guide` (what clients get).

    section: the method's own settings; subclasses say which class. final_after_training: false
    where the server has something to tell the clients before they are evaluated.
    """

    section: Any
    final_after_training = True

    def __init__(
        self, settings: Settings, section: Any, federation: Federation | None = None
    ) -> None:
        self.prepare(settings, section, federation)

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """The clients that the method can work with."""
        return clients

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Who is asked to train in a round: a share of all, and those never heard from."""
        unheard = set(eligible) - self.federation.history.trained
        return self.federation.selection.choose(eligible, server_round, unheard)

    def guided_evaluation(self, order: Order, keys: Sequence[ClientKey]) -> Order:
        """An order to evaluate alone; most methods need to send nothing for that."""
        return order

    def initial_arrays(self) -> Arrays:
        return {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        evaluate = self.final_after_training and self.federation.selection.evaluates(server_round)

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.pipeline.order(keys, server_round, evaluate=evaluate)
            return self.guided(plain, keys)

        eligible = self.eligible(self.federation.members.clients())
        return self.federation.pipeline.orders(self.chosen(eligible, server_round), order)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = self.federation.pipeline.read(replies, self.expected(server_round))
        self.federation.pipeline.sums.hand_over(
            answers,
            lambda answers: self.take_in(answers, server_round),
            lambda total: self.take_in_total(total, server_round),
        )
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Only clients that trained since their last evaluation and were not chosen this round."""
        if not self.federation.selection.evaluates(server_round):
            return []
        there = self.federation.members.clients()
        behind = [key for key in there if key in self.federation.history.unevaluated]
        return self.federation.pipeline.orders(
            behind,
            lambda keys: self.guided_evaluation(
                self.federation.pipeline.order(keys, server_round), keys
            ),
            MessageType.EVALUATE,
        )

    def summary(self) -> None:
        clients = self.federation.members.clients()
        log(INFO, "\t└──> %s over %d clients", type(self).__name__, len(clients))


def with_guidance(order: Order, guidance: Guidance) -> Order:
    """The order with what the method sends besides the parameters that it shares."""
    return replace(
        order,
        arrays={**order.arrays, **guidance.arrays},
        guided=[key.client for key in guidance.clients],
        classes=list(guidance.classes),
        options={**order.options, **guidance.options},
    )


def client_replies(answer: NodeReply, expected: Expected) -> Iterator[ClientReply]:
    """A node's answer client by client, without the model."""
    reply, start = answer.reply, 0
    own = [name for name in expected.per_client if name not in expected.models]
    every = reply.classes or [[]] * len(reply.names)
    rows = zip(answer.keys(), reply.samples, every, strict=True)
    for row, (key, samples, classes) in enumerate(rows):
        arrays = {name: reply.arrays[name][row] for name in own}
        its = slice(start, start + len(classes))
        arrays |= {name: reply.arrays[name][its] for name in expected.per_class}
        yield ClientReply(key, samples, arrays, classes)
        start += len(classes)
