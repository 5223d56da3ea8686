"""Masked sums over groups of nodes, for methods that use the total of each group that sites name.

Every group of at least `aggregation.secure-minimum` nodes forms a masked sum, and the other nodes
form one together. So a node takes part in one sum of a round, and enforces the same rules in it as
without groups. If the other nodes are too few, the smallest groups join them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedproto_app.core.clients import groups_of_nodes
from fedproto_app.core.events import tell
from fedproto_app.core.messages import Reply
from fedproto_app.core.sends import Expected
from fedproto_app.server.masked_sum import MaskedSum
from fedproto_app.server.membership import Membership
from fedproto_app.settings import Settings
from fedproto_app.trust.fixed_point import Sums

ResultT = TypeVar("ResultT")


class GroupSums:
    """The stage of a run whose nodes form a masked sum for each group.

    new_sum: returns the stage of a single sum. settings: of the run; the rounds before the method's
    have one sum. lost, least: as of a sum.
    """

    def __init__(
        self, new_sum: Callable[[], MaskedSum], members: Membership, settings: Settings
    ) -> None:
        self._new_sum, self._members, self._settings = new_sum, members, settings
        self._sums: dict[str, MaskedSum] = {}  # of the present phase, by group
        self._group_of: dict[str, str] = {}  # of each node in a sum
        self.lost = self.least = 0

    def prepare(self, grid: Grid, messages: Sequence[Message]) -> list[Message]:
        """Let the nodes of each group exchange keys; return the orders of those that did."""
        groups = self._groups(messages)
        self._sums = {name: self._new_sum() for name in groups}
        orders = {name: self._sums[name].prepare(grid, part) for name, part in groups.items()}
        self.lost = sum(one.lost for one in self._sums.values())
        asked = [order for part in orders.values() for order in part]
        # If more replies than the least of these are missing, a sum may have too few.
        spare = [len(part) - self._sums[name].least for name, part in orders.items() if part]
        self.least = len(asked) - min(spare) if asked else 0
        return asked

    def _groups(self, messages: Sequence[Message]) -> dict[str, list[Message]]:
        """Return the orders by the group of their nodes, "" for nodes without one of enough."""
        trains = messages and messages[0].metadata.message_type == MessageType.TRAIN
        if not trains or int(messages[0].metadata.group_id) <= self._settings.pretraining_rounds:
            self._group_of = {}
            return {"": list(messages)}
        least = self._settings.aggregation.secure_minimum
        group_of, groups = (
            groups_of_nodes(self._members.facts),
            defaultdict[str, list[Message]](list),
        )
        for message in messages:
            groups[group_of[self._node(message)]].append(message)
        others = groups.pop("", [])
        for name, part in sorted(groups.items(), key=lambda item: (len(item[1]), item[0])):
            if min(len(part), len(others) or len(part)) < least:
                others += groups.pop(name)
        joint = {**groups, "": others} if others else dict(groups)
        self._group_of = {self._node(m): name for name, part in joint.items() for m in part}
        nodes = ", ".join(f"{name or 'others'}: {len(part)}" for name, part in joint.items())
        tell("groups", nodes=nodes)
        return joint

    def _node(self, message: Message) -> str:
        return self._members.roster.label_of(message.metadata.dst_node_id)

    def on_the_wire(self, expected: Expected) -> Expected:
        """Return the arrays that the replies must have, in all groups the same."""
        return next(iter(self._sums.values())).on_the_wire(expected)

    def apply(
        self, answers: list[Reply], messages: Mapping[str, Message], expected: Expected
    ) -> list[Reply]:
        """Compute the groups' sums; return the replies that are in them, in their order."""
        used = []
        for name, one in self._sums.items():
            of_sum = [a for a in answers if self._group_of.get(a.node, "") == name]
            used += one.apply(of_sum, messages, expected)
        return sorted(used, key=lambda answer: answer.node)

    def hand_over(
        self,
        answers: list[Reply],
        from_replies: Callable[[list[Reply]], ResultT],
        from_sums: Callable[[Sums], ResultT],
    ) -> ResultT | None:
        """Return the result of `from_sums` for the total of all groups; None if none has any."""
        groups = {name: one.total for name, one in self._sums.items() if one.total is not None}
        if not groups:
            return None
        parts = list(groups.values())
        values, counts = (
            {name: np.sum([table[name] for table in tables], axis=0) for name in tables[0]}
            for tables in ([part.values for part in parts], [part.counts for part in parts])
        )
        return from_sums(Sums(values, counts, {n: part for n, part in groups.items() if n}))
