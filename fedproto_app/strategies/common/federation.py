"""Protocols for the parts of the server that strategies use. `server.Federation` implements them.

Strategies never import the server, so a test can pass in a small stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from flwr.app import Message

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.messages import Guidance, Refusal, Reply
from fedproto_app.core.round import ClientReply
from fedproto_app.core.sends import Expected
from fedproto_app.data.shape import DataShape
from fedproto_app.trust.averaging import Averaging
from fedproto_app.trust.fixed_point import Sums

Guide = Callable[[list[ClientKey]], Guidance]  # returns the guidance for clients of one node


class Members(Protocol):
    """The clients of all nodes."""

    @property
    def facts(self) -> Mapping[ClientKey, ClientFacts]:
        """The facts that nodes declared about every client that ever joined."""

    @property
    def most_samples(self) -> int:
        """The largest number of samples that a client may be weighed with, or 0 for no limit."""

    @property
    def is_simulation(self) -> bool:
        """Whether the nodes are simulated, so that all clients are connected from the start."""

    def clients(self) -> list[ClientKey]:
        """Return the clients that can be asked now, sorted by name."""

    def first_with(self, client: str) -> str | None:
        """Return the node that first declared a client of this name, or None if no node did."""

    def node_id(self, node: str) -> int:
        """Return Flower's id of the node with this name."""


class Selection(Protocol):
    """Chooses the clients that a round asks."""

    def choose(
        self,
        clients: Sequence[ClientKey],
        server_round: int,
        newcomers: Collection[ClientKey] = (),
    ) -> list[ClientKey]:
        """Return the clients to train this round: a share of `clients`, and all newcomers."""

    def evaluates(self, server_round: int) -> bool:
        """Return whether this round's models are evaluated."""


class History(Protocol):
    """The record of the rounds so far."""

    @property
    def trained(self) -> set[ClientKey]:
        """The clients that ever trained."""

    @property
    def unevaluated(self) -> set[ClientKey]:
        """The clients that trained since their last evaluation."""

    def refuse(self, refusal: Refusal) -> None:
        """Record which part of a reply is not used, and why."""

    def note(self, figures: Mapping[str, float | None]) -> None:
        """Record the method's figures of the round."""


class Pipeline(Protocol):
    """Sends orders to the nodes and reads their replies."""

    @property
    def total(self) -> Sums | None:
        """The sum of the masked replies to the latest training, or None if there is none."""

    def orders(
        self,
        keys: Iterable[ClientKey],
        guide: Guide,
        server_round: int,
        message_type: str,
        *,
        shared: Collection[str] = (),
        averaged: Collection[str] = (),
        evaluate: bool = False,
    ) -> list[Message]:
        """Return a message for each node, with the order for its clients."""

    def read(self, replies: Iterable[Message], expected: Expected) -> list[Reply]:
        """Return the usable replies, sorted by the nodes' names."""


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
        """Return the usable replies, however few, sorted by the nodes' names.

        guide: returns the guidance for clients of one node. expected: the arrays of a reply.
        shared: the arrays that all clients share, without a row for each. once_per_run: whether
        each client answers only once in a run. Such questions are counted separately.
        """


class Federation(Protocol):
    """The server, as a strategy sees it.

    averaging: the rule that combines clients' values. shape: the shape of all nodes' data.
    """

    @property
    def members(self) -> Members: ...

    @property
    def selection(self) -> Selection: ...

    @property
    def pipeline(self) -> Pipeline: ...

    @property
    def history(self) -> History: ...

    @property
    def averaging(self) -> Averaging: ...

    @property
    def shape(self) -> DataShape: ...

    def asking(self, server_round: int) -> Ask:
        """Return the callable that asks clients a question in this round (`questions.py`)."""
