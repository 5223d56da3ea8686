"""Orders carried out by one process, without a site."""

from __future__ import annotations

from typing import Literal

from fedproto_app.core.messages import Order, Reply
from fedproto_app.data.shard import Shard
from fedproto_app.node.merging import absent_reply, merged
from fedproto_app.node.shares import shares_of
from fedproto_app.node.store import ClientStore
from fedproto_app.node.trainer import Node
from fedproto_app.strategies.common.learner import AnyLearner


class WholeNode:
    """A node that answers with one reply."""

    def __init__(self, learner: AnyLearner, shard: Shard, store: ClientStore) -> None:
        self._learner, self._shard = learner, shard
        self._node = Node(learner.task.settings, shard, store, learner)

    def train(self, order: Order) -> Reply:
        return self._done("train", order)

    def evaluate(self, order: Order) -> Reply:
        return self._done("evaluate", order)

    def _done(self, phase: Literal["train", "evaluate"], order: Order) -> Reply:
        size = self._learner.task.settings.cohort_on_cpu
        shares = shares_of(order.clients, order.server_round, self._shard, self._learner.task, size)
        work = self._node.train if phase == "train" else self._node.evaluate
        return merged([*work(order, shares), absent_reply(self._shard.absent(order.clients))])
