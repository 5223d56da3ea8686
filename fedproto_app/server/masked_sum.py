"""The server's part in masked sums: it carries keys and shares between nodes, and adds up.

Before the orders to train go out, the nodes name fresh keys (step "keys") and seal shares of their
secrets for each other (step "shares"). Then they train and answer with masked vectors. Who is lost
until then, the others help to take out (step "unmask"). A node that is lost in a step is not in
the sum; below `aggregation.secure-share` there is none.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import MaskingOrder, MaskingReply, PublicKeys, Refusal, Reply
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import (
    Unusable,
    add_masking,
    masking_query,
    read_masking_reply,
    sent_bytes,
)
from fedproto_app.server.replies import read_vector, received_bytes
from fedproto_app.trust.fixed_point import BY_CLASS, CLIENTS, Layout, Sums, Vector, unpacked
from fedproto_app.trust.masks import (
    PRIVATE_BYTES,
    SEED_BYTES,
    Forged,
    added,
    between,
    fewest,
    joined,
    public_of,
    require_public,
    sealed_bytes,
    stream,
)

if TYPE_CHECKING:
    from fedproto_app.server.pipeline import Pipeline

Given = TypeVar("Given")

MOST_NODES = 1000  # of a sum: each seals shares for all others


@dataclass
class _Session:
    """One sum. names: its nodes, by number. sealed: by who sealed them, then for whom."""

    order: MaskingOrder
    grid: Grid
    names: list[str] = field(default_factory=list)
    keys: list[PublicKeys] = field(default_factory=list)
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)


class Unmasked:
    """The stage of a run without masks: everything passes as it is."""

    least = lost = 0

    def prepare(self, grid: Grid, messages: Sequence[Message]) -> list[Message]:
        """The orders as they are."""
        return list(messages)

    def on_the_wire(self, expected: Expected) -> Expected:
        """What the replies themselves must have."""
        return expected

    def apply(self, answers: list[Reply], expected: Expected) -> list[Reply]:
        return answers

    def hand_over(
        self,
        answers: list[Reply],
        each: Callable[[list[Reply]], Given],
        total: Callable[[Sums], Given],
    ) -> Given | None:
        """What `each` makes of the answers to an order to train."""
        return each(answers)


class MaskedSum:
    """The stage of a run whose sums are masked.

    total: the sum of the newest training, None if it failed. lost: nodes that were to be asked for
    the newest training and fell out before it.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._rules = pipeline, pipeline.settings.aggregation
        self._session: _Session | None = None
        self.total: Sums | None = None
        self.lost = 0

    def prepare(self, grid: Grid, messages: Sequence[Message]) -> list[Message]:
        """Have the nodes that are asked to train exchange keys and shares.

        Returns the orders of those that did, each with what its node needs. Messages other than
        orders to train come back as they are.
        """
        self.total, self.lost = None, 0
        if not messages or messages[0].metadata.message_type != MessageType.TRAIN:
            return list(messages)
        by_node = {message.metadata.dst_node_id: message for message in messages}
        server_round = self._pipeline.history.log.server_round
        order = MaskingOrder(*self._pipeline.run, server_round, secrets.token_hex(16), "keys")
        session = self._session = _Session(order, grid)
        if len(messages) > MOST_NODES:
            raise FederationError(f"{len(messages)} nodes; a masked sum has at most {MOST_NODES}")
        if self._exchanged(session, sorted(by_node)):
            for number in session.sealed:
                for_it = {
                    sender: content[number]
                    for sender, content in session.sealed.items()
                    if sender != number
                }
                message = by_node[self._id_of(session.names[number])]
                plain = sent_bytes(message)
                add_masking(replace(order, step="train", sealed=for_it), to=message)
                self._pipeline.history.log.bytes_down += sent_bytes(message) - plain
        there = {self._id_of(session.names[number]) for number in session.sealed}
        self.lost = len(by_node) - len(there)
        return [message for node, message in by_node.items() if node in there]

    def on_the_wire(self, expected: Expected) -> Expected:
        """What the replies themselves must have: where a sum is under way, one masked vector."""
        return Expected(masked=True) if self._session else expected

    def apply(self, answers: list[Reply], expected: Expected) -> list[Reply]:
        """Make the sum of what these nodes sent; returns the answers that are in it.

        Answers to other orders than those to train come back as they are.
        """
        if self._session is None:
            return answers
        session, self._session = self._session, None
        if not session.sealed:
            return []
        layout, vectors, used = Layout.expected(expected), {}, {}
        for answer in answers:
            try:
                number = session.names.index(answer.node)
                vectors[number] = read_vector(self._pipeline.messages[answer.node], layout.size)
                used[number] = answer
            except Unusable as fault:
                self._refuse(answer.node, str(fault))
        self.total = self._unmasked(session, vectors, layout)
        if self.total is None:
            return []
        clients = sum(len(answer.names) for answer in used.values())
        every = self.total.counts
        by_class = every.get(BY_CLASS, np.zeros(1))
        if every[CLIENTS] != clients or by_class.min() < 0 or by_class.max() > clients:
            self._refuse("", f"masked sum: not one of {clients} clients; a node's share is false")
            self.total = None
            return []
        return list(used.values())

    def hand_over(
        self,
        answers: list[Reply],
        each: Callable[[list[Reply]], Given],
        total: Callable[[Sums], Given],
    ) -> Given | None:
        """What `total` makes of the sum of the answers to an order to train; None if there is no
        sum."""
        return None if self.total is None else total(self.total)

    @property
    def least(self) -> int:
        """Nodes whose vectors the sum under way must have; 0 if none is."""
        return self._fewest(self._session) if self._session else 0

    # --- before the training --------------------------------------------------------------------

    def _exchanged(self, session: _Session, node_ids: Collection[int]) -> bool:
        """Keys, then shares; whether enough nodes are left for a sum."""
        names = {self._pipeline.members.roster.label_of(node): node for node in node_ids}
        orders = dict.fromkeys(sorted(names), session.order)
        replies = self._asked(session, orders, "its keys")
        told = Counter(key for reply in replies.values() for key in _publics(reply))
        for name, reply in sorted(replies.items()):
            if fault := _keys_fault(reply, told):
                self._refuse(name, f"masked sum: {fault}")
            elif reply.own is not None:
                session.names.append(name)
                session.keys.append(reply.own)
        if not self._enough(session, session.names, "named keys"):
            return False
        order = replace(session.order, step="shares", publics=session.keys)
        replies = self._asked(session, dict.fromkeys(session.names, order), "its shares")
        for number, name in enumerate(session.names):
            if name not in replies:
                continue
            others = set(range(len(session.names))) - {number}
            content = replies[name].sealed
            if content.keys() != others:
                self._refuse(name, "masked sum: its shares are not one for each other node")
            elif any(len(one) != sealed_bytes() for one in content.values()):
                self._refuse(name, "masked sum: its shares are too short or too long")
            else:
                session.sealed[number] = content
        there = [session.names[number] for number in session.sealed]
        if self._enough(session, there, "exchanged shares"):
            return True
        session.sealed = {}
        return False

    # --- after the training ---------------------------------------------------------------------

    def _unmasked(
        self, session: _Session, vectors: Mapping[int, Vector], layout: Layout
    ) -> Sums | None:
        """The sum of the survivors' vectors without masks, None if too few are there to help."""
        names = [session.names[number] for number in sorted(vectors)]
        if not self._enough(session, names, "sent masked vectors"):
            return None
        survivors = sorted(vectors)
        order = replace(session.order, step="unmask", survivors=survivors)
        fallen = sorted(session.sealed.keys() - vectors.keys())
        replies = self._asked(session, dict.fromkeys(names, order), "its shares of the masks")
        helpers = {}
        for name, reply in sorted(replies.items()):
            if sorted(reply.seeds) == survivors and sorted(reply.privates) == fallen:
                helpers[name] = reply
            else:
                self._refuse(name, "masked sum: its shares are not those that were asked for")
        if not self._enough(session, helpers, "gave their shares of the masks"):
            return None
        least = self._fewest(session)
        given = [helpers[name] for name in sorted(helpers)][:least]
        total = added(vectors.values(), layout.size)
        try:
            for number in survivors:
                seed = joined([one.seeds[number] for one in given], SEED_BYTES)
                total = total - stream(seed, layout.size)
            for number in fallen:
                private = joined([one.privates[number] for one in given], PRIVATE_BYTES)
                if public_of(private) != session.keys[number].masks:
                    raise Forged("shares of another key")
                others = {n: session.keys[n].masks for n in survivors}
                total = total + between(private, others, number, layout.size)
        except Forged as error:
            self._refuse(session.names[number], f"masked sum: {error}")
            return None
        return unpacked(total, layout, self._rules.secure_bits)

    # --- asking ---------------------------------------------------------------------------------

    def _asked(
        self, session: _Session, orders: Mapping[str, MaskingOrder], what: str
    ) -> dict[str, MaskingReply]:
        """The usable answers of these nodes; the others are refused."""
        messages = {name: masking_query(order, self._id_of(name)) for name, order in orders.items()}
        pipeline, answers = self._pipeline, {}
        log = pipeline.history.log
        log.bytes_down += sum(map(sent_bytes, messages.values()))
        replies = pipeline.send(session.grid, messages.values(), least=len(messages))
        name_of = {message.metadata.message_id: name for name, message in messages.items()}
        for reply in replies:
            asked = pipeline.exchange.original(reply.metadata.reply_to_message_id)
            if (name := name_of.pop(asked, None)) is None:
                continue
            log.bytes_up += received_bytes(reply)
            try:
                if reply.has_error():
                    raise Unusable(f"no reply: {reply.error.reason}")
                answer = read_masking_reply(reply)
                if answer.fault:
                    raise Unusable(answer.fault)
                answers[name] = answer
            except Unusable as fault:
                self._refuse(name, f"masked sum, {what}: {fault}")
        for name in name_of.values():
            told = f"no reply within {pipeline.exchange.waited:g} s"
            self._refuse(name, f"masked sum, {what}: {told}")
        return answers

    def _enough(self, session: _Session, there: Collection[str], what: str) -> bool:
        least = self._fewest(session)
        if len(there) < least:
            words = f"masked sum: {len(there)} of {len(session.names)} nodes {what}"
            rules = "aggregation.secure-minimum and secure-share"
            self._refuse("", f"{words}, fewer than {least} ({rules}): the round has no sum")
        return len(there) >= least

    def _fewest(self, session: _Session) -> int:
        """By the nodes that named keys, as each of them counts too."""
        rules = self._rules
        return fewest(rules.secure_minimum, rules.secure_share, len(session.names))

    def _id_of(self, name: str) -> int:
        return self._pipeline.members.node_id(name)

    def _refuse(self, node: str, reason: str) -> None:
        self._pipeline.history.refuse(Refusal(node, "", reason))


def _publics(reply: MaskingReply) -> list[bytes]:
    return [] if reply.own is None else [reply.own.masks, reply.own.shares]


def _keys_fault(reply: MaskingReply, told: Mapping[bytes, int]) -> str | None:
    """Why the others would not go on with a node of these keys. told: how often each key came."""
    if reply.own is None:
        return "it names no keys"
    try:
        for key in _publics(reply):
            require_public(key)
            if told[key] > 1:
                return "its keys are not its own alone"
    except Forged as error:
        return f"its keys: {error}"
    return None
