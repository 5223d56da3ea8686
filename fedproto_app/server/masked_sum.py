"""Do the server's part in masked sums: forward keys and shares between nodes, and add up vectors.

Before training, the nodes send fresh keys (step "keys") and seal shares of their secrets for each
other (step "shares"). Then they train and reply with masked vectors. If some nodes drop out during
this, the others sign the list of survivors (step "agree"). They then help to remove the masks (step
"unmask"). A node that drops out before it has trained is not in the sum. If fewer nodes remain than
`aggregation.secure-share` requires, the round has no sum.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from math import inf

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedproto_app.core.clients import groups_of_nodes, of_enough
from fedproto_app.core.errors import FederationError
from fedproto_app.core.events import tell
from fedproto_app.core.messages import MaskingOrder, MaskingReply, PublicKeys, Refusal, Reply
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import (
    Unusable,
    add_masking,
    masking_query,
    read_masking_reply,
    sent_bytes,
)
from fedproto_app.server.exchange import Exchange
from fedproto_app.server.membership import Membership
from fedproto_app.server.replies import read_vector, received_bytes
from fedproto_app.server.round_log import History
from fedproto_app.settings import AggregationSettings
from fedproto_app.trust.fixed_point import (
    BY_CLASS,
    CLIENTS,
    Layout,
    Sums,
    Vector,
    added_up,
    unpacked,
)
from fedproto_app.trust.masks import (
    PRIVATE_BYTES,
    SEED_BYTES,
    Forged,
    between,
    fewest,
    joined,
    loaded_public,
    public_of,
    sealed_bytes,
    stream,
)
from fedproto_app.trust.signing import signed_by

MOST_NODES = 1000  # of a sum, because each node seals shares for all others

# `Pipeline.send`: it sends messages, waits for at least so many replies, and returns them.
Send = Callable[[Grid, Iterable[Message], int], list[Message]]


@dataclass
class _Session:
    """One masked sum. names: its nodes, by number. sealed: shares by sender, then by receiver."""

    order: MaskingOrder
    grid: Grid
    names: list[str] = field(default_factory=list)
    keys: list[PublicKeys] = field(default_factory=list)
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)


class MaskedSum:
    """The stage that forms masked sums, in a run that has them.

    A method may use a separate sum for each group that sites name (`Sends.by_group`). Then every
    group of at least `aggregation.secure-minimum` nodes forms a sum of its own, and all other nodes
    form one sum together. A node thus still takes part in only one sum and enforces the same rules.

    total: the sum of the latest training, None if it failed. lost: the number of nodes that dropped
    out before the latest training.
    """

    def __init__(
        self,
        rules: AggregationSettings,
        run: tuple[str, str],
        members: Membership,
        history: History,
        exchange: Exchange,
        send: Send,
        groups_from: float = inf,
    ) -> None:
        """run: the run's name and random mark. groups_from: the first round with sums by group."""
        self._rules, self._run, self._members, self._history = rules, run, members, history
        self._exchange, self._send = exchange, send
        self._groups_from = groups_from
        self._sessions: dict[str, _Session] = {}  # of the present phase, by group of nodes
        self.total: Sums | None = None
        self.lost = 0

    def prepare(self, grid: Grid, messages: Sequence[Message]) -> list[Message]:
        """Let the nodes that will train exchange keys and shares.

        Return the orders for the nodes that have done so, each with the shares for its node.
        Messages other than training orders are returned unchanged.
        """
        self.total, self.lost = None, 0
        if not messages or messages[0].metadata.message_type != MessageType.TRAIN:
            return list(messages)
        label_of = self._members.roster.label_of
        by_node = {label_of(message.metadata.dst_node_id): message for message in messages}
        if len(messages) > MOST_NODES:
            raise FederationError(f"{len(messages)} nodes; a masked sum has at most {MOST_NODES}")
        participants: set[str] = set()
        for group, names in self._groups(sorted(by_node)).items():
            server_round = self._history.log.server_round
            order = MaskingOrder(*self._run, server_round, secrets.token_hex(16), "keys")
            session = self._sessions[group] = _Session(order, grid)
            if not self._exchanged(session, sorted(names)):
                continue
            for number in session.sealed:
                for_it = {
                    sender: content[number]
                    for sender, content in session.sealed.items()
                    if sender != number
                }
                message = by_node[session.names[number]]
                plain = sent_bytes(message)
                add_masking(replace(order, step="train", sealed=for_it), message=message)
                self._history.log.bytes_down += sent_bytes(message) - plain
                participants.add(session.names[number])
        self.lost = len(by_node) - len(participants)
        return [message for node, message in by_node.items() if node in participants]

    def _groups(self, names: list[str]) -> dict[str, list[str]]:
        """Return the nodes of each sum, by the name of the group."""
        if self._history.log.server_round < self._groups_from:
            return {"": names}
        group_of = groups_of_nodes(self._members.facts)
        groups = of_enough({name: group_of[name] for name in names}, self._rules.secure_minimum)
        nodes = [f"{group or 'others'}: {len(part)}" for group, part in groups.items()]
        tell("groups", nodes=", ".join(nodes))
        grouped = {key.node for key, of_client in self._members.facts.items() if of_client.group}
        if mixed := sorted(name for name in grouped & set(names) if not group_of[name]):
            reason = "its clients name several groups, so it is treated as a node without a group"
            tell("several-groups", WARNING, nodes=", ".join(mixed), reason=reason)
        return groups

    def on_the_wire(self, expected: Expected) -> Expected:
        """Return the arrays that the replies must have. During a sum this is one masked vector."""
        return Expected(masked=True) if self._sessions else expected

    def apply(
        self, answers: list[Reply], messages: Mapping[str, Message], expected: Expected
    ) -> list[Reply]:
        """Compute the sums of the nodes' vectors. Return the replies that are part of the sums.

        messages: the replies as they arrived, by node. Replies to orders other than training orders
        are returned unchanged.
        """
        if not self._sessions:
            return answers
        sessions, self._sessions = self._sessions, {}
        used: list[Reply] = []
        totals: dict[str, Sums] = {}
        for group, session in sessions.items():
            of_group = [answer for answer in answers if answer.node in session.names]
            total = self._total(session, of_group, messages, Layout.expected(expected))
            if total is not None:
                totals[group], used = total[0], [*used, *total[1]]
        if totals:
            groups = {group: total for group, total in totals.items() if group}
            self.total = replace(added_up(list(totals.values())), groups=groups)
        return sorted(used, key=lambda answer: answer.node)

    def _total(
        self,
        session: _Session,
        answers: list[Reply],
        messages: Mapping[str, Message],
        layout: Layout,
    ) -> tuple[Sums, list[Reply]] | None:
        """Return a session's sum and the replies that are part of it, or None if too few are."""
        vectors, used = {}, {}
        for answer in answers:
            try:
                number = session.names.index(answer.node)
                vectors[number] = read_vector(messages[answer.node], layout.size)
                used[number] = answer
            except Unusable as fault:
                self._refuse(answer.node, str(fault))
        total = self._unmasked(session, vectors, layout) if session.sealed else None
        if total is None:
            return None
        clients = sum(len(answer.names) for answer in used.values())
        counts = total.counts
        by_class = counts.get(BY_CLASS, np.zeros(1))
        if counts[CLIENTS] != clients or by_class.min() < 0 or by_class.max() > clients:
            self._refuse("", f"masked sum: not one of {clients} clients; a node's share is false")
            return None
        return total, list(used.values())

    @property
    def least(self) -> int:
        """The number of vectors that suffices for all current sums, 0 if there are no sums."""
        sent = [session for session in self._sessions.values() if session.sealed]
        spare = [len(session.sealed) - self._fewest(session) for session in sent]
        return sum(len(session.sealed) for session in sent) - min(spare) if sent else 0

    # --- before the training --------------------------------------------------------------------

    def _exchanged(self, session: _Session, names: list[str]) -> bool:
        """Collect the nodes' keys, then their shares. Return whether enough nodes remain."""
        orders = dict.fromkeys(names, session.order)
        replies = self._ask(session, orders, "its keys")
        key_counts = Counter(key for reply in replies.values() for key in _publics(reply))
        for name, reply in sorted(replies.items()):
            if fault := _keys_fault(reply, key_counts):
                self._refuse(name, f"masked sum: {fault}")
            elif reply.own is not None:
                session.names.append(name)
                session.keys.append(reply.own)
        if not self._enough(session, session.names, "named keys"):
            return False
        order = replace(session.order, step="shares", publics=session.keys)
        replies = self._ask(session, dict.fromkeys(session.names, order), "its shares")
        for number, name in enumerate(session.names):
            if name not in replies:
                continue
            receivers = set(range(len(session.names))) - {number}
            content = replies[name].sealed
            if content.keys() != receivers:
                self._refuse(name, "masked sum: its shares are not one for each other node")
            elif any(len(share) != sealed_bytes() for share in content.values()):
                self._refuse(name, "masked sum: its shares are too short or too long")
            else:
                session.sealed[number] = content
        exchanged = [session.names[number] for number in session.sealed]
        if self._enough(session, exchanged, "exchanged shares"):
            return True
        session.sealed = {}
        return False

    # --- after the training ---------------------------------------------------------------------

    def _unmasked(
        self, session: _Session, vectors: Mapping[int, Vector], layout: Layout
    ) -> Sums | None:
        """Return the unmasked sum of the survivors' vectors, or None if too few nodes help."""
        names = [session.names[number] for number in sorted(vectors)]
        if not self._enough(session, names, "sent masked vectors"):
            return None
        survivors = sorted(vectors)
        order = replace(session.order, step="unmask", survivors=survivors)
        fallen = sorted(session.sealed.keys() - vectors.keys())
        if fallen:
            signatures = self._signatures(session, order)
            names = [session.names[number] for number in signatures]
            if not self._enough(session, names, "signed the survivors"):
                return None
            order = replace(order, signatures=signatures)
        replies = self._ask(session, dict.fromkeys(names, order), "its shares of the masks")
        helpers = {}
        for name, reply in sorted(replies.items()):
            if sorted(reply.seeds) == survivors and sorted(reply.privates) == fallen:
                helpers[name] = reply
            else:
                self._refuse(name, "masked sum: its shares are not those that were asked for")
        if not self._enough(session, helpers, "gave their shares of the masks"):
            return None
        least = self._fewest(session)
        helper_replies = [helpers[name] for name in sorted(helpers)][:least]
        total = sum(vectors.values(), np.zeros(layout.size, dtype=np.uint64))
        try:
            for number in survivors:
                seed = joined([reply.seeds[number] for reply in helper_replies], SEED_BYTES)
                total = total - stream(seed, layout.size)
            for number in fallen:
                private = joined(
                    [reply.privates[number] for reply in helper_replies], PRIVATE_BYTES
                )
                if public_of(private) != session.keys[number].masks:
                    raise Forged("shares of another key")
                survivor_keys = {n: session.keys[n].masks for n in survivors}
                total = total + between(private, survivor_keys, number, layout.size)
        except Forged as error:
            self._refuse(session.names[number], f"masked sum: {error}")
            return None
        return unpacked(total, layout, self._rules.secure_bits)

    def _signatures(self, session: _Session, order: MaskingOrder) -> dict[int, bytes]:
        """Return the survivors' valid signatures of their list, by node. Refuse invalid ones."""
        agree = replace(order, step="agree")
        names = [session.names[number] for number in order.survivors]
        replies = self._ask(session, dict.fromkeys(names, agree), "its signature")
        signatures = {}
        must_sign = any(key.signer for key in session.keys)  # the other nodes check this too
        for number in order.survivors:
            if (reply := replies.get(session.names[number])) is None:
                continue
            signature, members = reply.signature, session.sealed.keys()
            is_signed = signed_by(number, signature, order, session.keys, members)
            if must_sign and not is_signed:
                self._refuse(session.names[number], "masked sum: its signature is not valid")
            else:
                signatures[number] = signature
        return signatures

    # --- asking ---------------------------------------------------------------------------------

    def _ask(
        self, session: _Session, orders: Mapping[str, MaskingOrder], subject: str
    ) -> dict[str, MaskingReply]:
        """Send these orders. Return the usable replies of the nodes, and refuse the others."""
        id_of = self._members.node_id
        messages = {name: masking_query(order, id_of(name)) for name, order in orders.items()}
        log, answers = self._history.log, {}
        log.bytes_down += sum(map(sent_bytes, messages.values()))
        replies = self._send(session.grid, messages.values(), len(messages))
        name_of = {message.metadata.message_id: name for name, message in messages.items()}
        for reply in replies:
            message_id = self._exchange.original(reply.metadata.reply_to_message_id)
            if (name := name_of.pop(message_id, None)) is None:
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
                self._refuse(name, f"masked sum, {subject}: {fault}")
        for name in name_of.values():
            reason = f"no reply within {self._exchange.waited:g} s"
            self._refuse(name, f"masked sum, {subject}: {reason}")
        return answers

    def _enough(self, session: _Session, nodes: Collection[str], action: str) -> bool:
        least = self._fewest(session)
        if len(nodes) < least:
            words = f"masked sum: {len(nodes)} of {len(session.names)} nodes {action}"
            rules = "aggregation.secure-minimum and secure-share"
            self._refuse("", f"{words}, fewer than {least} ({rules}): the round has no sum")
        return len(nodes) >= least

    def _fewest(self, session: _Session) -> int:
        """Return how many of the nodes that sent keys the sum needs."""
        rules = self._rules
        return fewest(rules.secure_minimum, rules.secure_share, len(session.names))

    def _refuse(self, node: str, reason: str) -> None:
        self._history.refuse(Refusal(node, "", reason))


def _publics(reply: MaskingReply) -> list[bytes]:
    return [] if reply.own is None else [reply.own.masks, reply.own.shares]


def _keys_fault(reply: MaskingReply, key_counts: Mapping[bytes, int]) -> str | None:
    """Return why other nodes would refuse these keys. key_counts: how often each key was sent."""
    if reply.own is None:
        return "it sent no keys"
    try:
        for key in _publics(reply):
            loaded_public(key)  # raises `Forged`
            if key_counts[key] > 1:
                return "another node sent the same keys"
    except Forged as error:
        return f"its keys: {error}"
    return None
