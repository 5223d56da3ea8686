"""Questions: messages between the phases of a round, for the methods whose rounds need them.

A question carries arrays both ways and changes no client's state. The learner declares its answers
with ``when="question"`` and gives them, and the strategy asks in `begin` or `conclude`:

    class MyLearner(Answers, SoloLearner):
        def answer(self, cohort, guidance):
            return Contribution({"profile": …})

    class MyStrategy(Asks, FedAvgStrategy):
        def begin(self, round_):
            ask = self.asking(round_)
            for reply in ask(clients, lambda keys: Guidance(), expected):
                …

`node/questions.py` has a node's side, and `server/questions.py` the server's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Protocol, runtime_checkable

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.sends import Expected
from fedproto_app.strategies.common.federation import Federation, Guide
from fedproto_app.strategies.common.learner import Cohort, Contribution


class Ask(Protocol):
    """Ask clients a question between the phases of a round and wait for their replies."""

    def __call__(
        self,
        clients: Iterable[ClientKey],
        guide: Guide,
        expected: Expected,
        *,
        shared: Collection[str] = (),
        once_per_run: bool = False,
    ) -> list[ClientReply]:
        """Return the usable replies, however few, in the order of the nodes' names.

        guide: returns the guidance for clients of one node. expected: the arrays of a reply.
        shared: arrays that are the same for all clients, not a row for each. once_per_run: whether
        each client answers the question only once in a run, which is counted separately.
        """


@runtime_checkable
class Questioning(Protocol):
    """The server, as a strategy that asks questions sees it."""

    def asking(self, server_round: int) -> Ask:
        """Return what asks the clients a question of this round."""


class _HasFederation(Protocol):
    @property
    def federation(self) -> Federation: ...


class Asks:
    """A strategy that asks clients questions."""

    def asking(self: _HasFederation, round_: Round) -> Ask:
        """Return what asks the clients a question of this round."""
        federation = self.federation
        assert isinstance(federation, Questioning), "this federation asks no questions"
        return federation.asking(round_.number)


class Answers(ABC):
    """A learner that answers questions."""

    @abstractmethod
    def answer(self, cohort: Cohort, guidance: Guidance) -> Contribution:
        """Return the clients' answers. Changes to the cohort are not stored."""
