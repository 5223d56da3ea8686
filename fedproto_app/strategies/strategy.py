"""What a run needs of the server half of every method, beyond Flower's own Strategy interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from logging import INFO
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedproto_app.core.sends import Expected, Sends, Sizes
from fedproto_app.halves import make_learner
from fedproto_app.learners.learner import AnyLearner
from fedproto_app.messages import Arrays, Order
from fedproto_app.secure.fixed_point import Sums
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
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
    """What most methods answer: nothing to remember or to find.

    learner: the method's client half, which declares what clients send. sizes: of the data and the
    model, by which the declarations give shapes. releases: what clients send.
    """

    settings: Settings
    federation: Federation
    learner: AnyLearner
    sizes: Sizes

    def prepare(self, settings: Settings, section: Any, federation: Federation) -> None:
        """Called first by every constructor."""
        self.settings, self.section, self.federation = settings, section, federation
        task = make_task(settings, federation.shape)
        self.learner = make_learner(settings, task, self.first_round(settings))
        self.sizes = task.sizes()

    def first_round(self, settings: Settings) -> int:
        """The first one that is the method's own."""
        return settings.encoder_rounds + 1

    @property
    def releases(self) -> Sequence[Sends]:
        return self.learner.sends(self.section, self.sizes)

    def expected(self, server_round: int) -> Expected:
        """The arrays of a reply to an order to train."""
        return Expected.of(
            self.releases,
            self.sizes,
            nodes_average=self.learner.sends_mean,
            evaluates=self.federation.evaluates(server_round),
        )

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        pass

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        return {}

    def absorb_total(self, total: Sums) -> None:
        """Take in the sums over a round's clients where nobody sees their parts, except for
        the model's."""

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        self.federation.read(replies, Expected())
        return None


class PersonalStrategy(MethodDefaults, Strategy):
    """Base of the methods whose models stay at the clients.

    A client's model is final once it has trained, so it is evaluated in the same message; an
    evaluation phase is only for clients that trained in rounds without evaluation. Methods
    override `guide` (what a node gets) and `absorb` (what becomes of the replies).

    section: the method's own settings; subclasses say which class. final_after_training: false
    where the server has something to tell the clients before they are evaluated.
    """

    section: Any
    final_after_training = True

    def __init__(self, settings: Settings, section: Any, federation: Federation) -> None:
        self.prepare(settings, section, federation)

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """The clients that the method can work with."""
        return clients

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Who is asked to train in a round: a share of all, and those never heard from."""
        unheard = set(eligible) - self.federation.trained
        return self.federation.choose(eligible, server_round, unheard)

    def guide(self, order: Order, keys: list[ClientKey]) -> Order:
        """The order with what the method sends to these clients of one node."""
        return order

    def guide_evaluation(self, order: Order, keys: list[ClientKey]) -> Order:
        """The same of an order to evaluate alone; most methods need to send nothing for that."""
        return order

    def absorb(self, answers: list[NodeReply]) -> None:
        """Take in the usable replies of a round."""

    def initial_arrays(self) -> Arrays:
        return {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        evaluate = self.final_after_training and self.federation.evaluates(server_round)

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.order(keys, server_round, evaluate=evaluate)
            return self.guide(plain, keys)

        eligible = self.eligible(self.federation.roster.clients())
        return self.federation.orders(self.chosen(eligible, server_round), order)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = self.federation.read(replies, self.expected(server_round))
        if not self.settings.aggregation.secure:
            self.absorb(answers)
        elif total := self.federation.total:
            self.absorb_total(total)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Only clients that trained since their last evaluation and were not chosen this round."""
        if not self.federation.evaluates(server_round):
            return []
        there = self.federation.roster.clients()
        behind = [key for key in there if key in self.federation.unevaluated]
        return self.federation.orders(
            behind,
            lambda keys: self.guide_evaluation(self.federation.order(keys, server_round), keys),
            MessageType.EVALUATE,
        )

    def summary(self) -> None:
        clients = self.federation.roster.clients()
        log(INFO, "\t└──> %s over %d clients", type(self).__name__, len(clients))
