"""FedAvg (McMahan et al., AISTATS 2017): train the global model, send it back.

Adam starts afresh each round, because its moments belong to a model that averaging replaced.
Clients can be judged by the shared model, or by what some epochs on their own data make of it,
which is the plainest way to a personal model.

The server half is Flower's own strategy. A node answers with the sample-weighted mean of its
clients' models and their samples' sum, so Flower's weighted mean over nodes is FedAvg over clients
exactly. Where another rule than the mean makes the model, or the method looks at each client's own,
nodes send each, and the server applies the rule to clients. Methods that share a part of their
model alone, such as FedRep, use this strategy as it is: their learners declare what is shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.method import Method
from fedproto_app.core.section import CountOrZero, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.learners.cohort import Cohort, fine_tuned
from fedproto_app.learners.learner import Phase
from fedproto_app.maths.sizes import growth_fault, root_mean_square
from fedproto_app.messages import Arrays, Order, Refusal, Reply
from fedproto_app.secure.fixed_point import WEIGHT, Sums
from fedproto_app.server.averaging import each_client
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.common.strategy import MethodDefaults
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.task import AnyTask
from fedproto_app.wire import array_record, flower_average_input, numpy_arrays


class FedAvgSettings(Section):
    """``[fedavg]``."""

    fine_tune_epochs: CountOrZero = setting(
        0,
        "epochs on a client's own data that make its model of the shared one; 0: it is that one, "
        "with `fedavg-ft` 1 epoch",
    )


class FedAvgLearner(SoloLearner):
    """Solo's local training, on a model of which everything comes from the server."""

    section: FedAvgSettings

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [model()]

    def __init__(self, training: Training, section: Any, task: AnyTask) -> None:
        super().__init__(training, section, task)
        # A method from outside that builds on this one has a section of its own.
        self._fine_tuning = getattr(section, "fine_tune_epochs", 0)

    def personalises(self) -> bool:
        return self._fine_tuning > 0

    def personalised(self, cohort: Cohort, order: Order) -> dict[str, Tensor] | None:
        if not self._fine_tuning:
            return None
        phase = Phase("fine-tune", ("",), self._fine_tuning)
        return fine_tuned(self, cohort, self.context(order, cohort), phase)


class FedAvgStrategy(MethodDefaults, FedAvg):
    """Flower's FedAvg over clients instead of nodes, with every reply checked first.

    Methods that exchange more than the averaged model override `update` (what becomes of the rest
    of the replies) and `guide` (what clients get besides; `guided_evaluation` where that differs).

    section: the method's own settings; subclasses say which class. judges_trained: whether a model
        as its local training left it is a client's own one, where the task asks for that.
    """

    section: Any
    judges_trained = True
    _before: Arrays  # the model that the round began with

    def __init__(self, settings: Settings, section: Any, federation: Federation) -> None:
        FedAvg.__init__(self, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.prepare(settings, section, federation)
        parameters = self.learner.initial_parameters()
        self._initial: Arrays = {
            name: value.numpy()
            for name, value in parameters.items()
            if self.learner.is_shared(name)
        }
        self._shapes = {name: value.shape for name, value in self._initial.items()}

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """The clients that the method can train."""
        return clients

    def to_evaluate(self, clients: list[ClientKey]) -> list[ClientKey]:
        """The clients that the method can evaluate."""
        return clients

    def guided_evaluation(self, order: Order, keys: Sequence[ClientKey]) -> Order:
        """An order to evaluate with what the method sends besides the model."""
        return self.guided(order, keys)

    def to_average(self, answers: list[NodeReply]) -> list[Message]:
        """What Flower averages: each node's mean with the node's weight, or each client's model."""
        if self.learner.sends_mean:
            replies = [(answer.reply, answer.message) for answer in answers]
        else:
            clients = each_client(answers, self._shapes)
            replies = [(reply, message) for _, reply, message in clients]
        return [
            flower_average_input(reply, message, self._shapes, self.weight(reply))
            for reply, message in replies
        ]

    def initial_arrays(self) -> Arrays:
        return self._initial

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        options = {key: float(value) for key, value in config.items() if isinstance(value, float)}
        model = self._before = numpy_arrays(arrays)
        eligible = self.eligible(self.federation.members.clients())
        chosen = self.federation.selection.choose(eligible, server_round)
        if not self.learner.sends_mean:
            expected = self.expected(server_round)
            values = sum(math.prod(expected.per_client[name]) for name in expected.models)
            self.averaging.require_room(len(chosen), values)
        local = self.judges_trained and not self.learner.personalises()
        local = local and self.learner.task.evaluates_local
        local = local and self.federation.selection.evaluates(server_round)

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.pipeline.order(keys, server_round, evaluate=local)
            return self.guided(replace(plain, arrays=model, options=options), keys)

        return self.federation.pipeline.orders(chosen, order, shared=self._initial)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = self.federation.pipeline.read(replies, self.expected(server_round))
        arrays = self.federation.pipeline.sums.hand_over(
            answers,
            lambda answers: self._of_each(answers, server_round),
            lambda total: self._of_total(total, answers, server_round),
        )
        return arrays, None

    def _of_each(self, answers: list[NodeReply], server_round: int) -> ArrayRecord | None:
        """The new model of the nodes' or clients' ones."""
        arrays = self.averaging.model(self.to_average(answers), self._before)
        self.take_in(answers, server_round)
        return arrays and _float32(arrays)

    def _of_total(
        self, total: Sums, answers: list[NodeReply], server_round: int
    ) -> ArrayRecord | None:
        """The mean by the masked sum of these nodes' models; None if that cannot be true."""
        weight = sum(self.weight(answer.reply) for answer in answers)
        fault: str | None = f"the weights of its models are not {weight}, as the nodes tell"
        if total.counts[WEIGHT] == weight:
            sums = {name: total.values[name] for name in self._shapes}
            mean = {name: (value / weight).astype(np.float32) for name, value in sums.items()}
            fault = growth_fault(mean, root_mean_square(list(self._before.values())))
        if fault:
            self.federation.history.refuse(Refusal("", "", f"masked sum of all nodes: {fault}"))
            return None
        self.take_in_total(total, server_round)
        return array_record(mean)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        if not self.federation.selection.evaluates(server_round):
            return []
        model = numpy_arrays(arrays)

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.pipeline.order(keys, server_round)
            return self.guided_evaluation(replace(plain, arrays=model), keys)

        everyone = self.to_evaluate(self.federation.members.clients())
        return self.federation.pipeline.orders(everyone, order, MessageType.EVALUATE, self._initial)

    def weight(self, reply: Reply) -> int:
        """Its clients' weight in the mean over all."""
        by_samples = self.learner.weighs_samples and self.averaging.is_mean
        return sum(reply.samples) if by_samples else len(reply.names)


def _float32(arrays: ArrayRecord) -> ArrayRecord:
    """Flower multiplies by Python floats, which keeps float32; check it all the same."""
    assert all(array.dtype == "float32" for array in arrays.values())
    return arrays


METHOD = Method(
    name="fedavg",
    strategy=FedAvgStrategy,
    learner=FedAvgLearner,
    settings=FedAvgSettings,
)
