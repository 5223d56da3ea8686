"""Send orders and process replies, stage by stage.

A reply passes the stages `decode → compare → unmask → record`. It is read and validated by itself,
compared with the other replies of the round, unmasked if sums are masked, and entered into the
history. A strategy gets the replies that remain. Whether sums are masked is fixed when the run
starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError
from fedproto_app.core.events import tell
from fedproto_app.core.messages import Arrays, Order, Refusal, Reply, limited_samples
from fedproto_app.core.methods import method_named
from fedproto_app.core.metrics import Metric
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import sent_bytes, write_order
from fedproto_app.server.exchange import Exchange
from fedproto_app.server.listeners import Spending
from fedproto_app.server.masked_sum import MaskedSum
from fedproto_app.server.membership import Membership
from fedproto_app.server.replies import Allowed, Fault, read_reply, received_bytes, without
from fedproto_app.server.round_log import History
from fedproto_app.settings import Settings
from fedproto_app.settings.fit import releases_of
from fedproto_app.strategies.common.federation import Guide
from fedproto_app.tasks.table import expected_metrics, task_class
from fedproto_app.trust.fixed_point import Sums
from fedproto_app.trust.noised_errors import NoisedErrors
from fedproto_app.trust.outliers import long_steps, opposed_steps, out_of_line, sizes_of


@dataclass(frozen=True)
class _Request:
    """An order without a reply: its message, whose id Flower sets on sending, and its clients.

    size: the root mean square of the order's arrays. most_samples, longest_step: as in the order.
    start: those arrays of the order whose mean over the clients the reply must contain.
    """

    message: Message
    node: str
    clients: list[ClientKey]
    size: float
    most_samples: int
    longest_step: float
    start: Arrays


def _withheld_fault(metrics: Mapping[Metric, float]) -> str | None:
    return "it reports errors, which this run withholds" if metrics else None


class Pipeline:
    """Sends orders to nodes and reads their replies.

    spending: counts the privacy that the orders cost the clients, before the orders are sent.
    """

    def __init__(
        self,
        settings: Settings,
        run: tuple[str, str],
        members: Membership,
        history: History,
        exchange: Exchange,
        spending: Spending,
    ) -> None:
        """run: the run's name and its random mark."""
        self.settings, self.run, self.members, self.history = settings, run, members, history
        self.exchange = exchange
        rules, releases = settings.aggregation, releases_of(method_named(settings.method), settings)
        by_group = any(release.by_group for release in releases)
        groups_from = settings.pretraining_rounds + 1 if by_group else inf
        self._sums = (
            MaskedSum(rules, run, members, history, exchange, self.send, groups_from)
            if rules.secure
            else None
        )
        self._spending = spending
        self._task = task_class(settings.task)
        self._metrics = expected_metrics(settings)
        self._reported_fault: Fault | None = None
        if settings.privacy.reported == "none":
            self._metrics, self._reported_fault = (), _withheld_fault
        elif settings.privacy.reported == "noised" and spending.plan is not None:
            required = self._task.required_metrics(settings)
            noised = NoisedErrors.planned(spending.plan, self._task.metrics, required)
            self._metrics, self._reported_fault = noised.metrics, noised.fault
        self._trains = self._evaluates = False  # what the latest orders ask for
        self._requests: list[_Request] = []
        self._leaving = 0  # nodes of the latest orders that are about to leave

    @property
    def total(self) -> Sums | None:
        """The sum of the masked replies of the latest training, or None without a sum."""
        return self._sums.total if self._sums else None

    # --- out --------------------------------------------------------------------------------

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
        """Return one message per node, with an order for the chosen clients that it holds.

        If a node became silent after the clients were chosen, its clients are left out.
        shared: the arrays that all clients share even if other arrays differ between clients.
        averaged: the arrays whose mean the reply contains (`Expected.mean`).
        evaluate: whether clients that train are evaluated too.
        """
        self._trains = message_type == MessageType.TRAIN
        self._evaluates = evaluate or message_type == MessageType.EVALUATE
        log, roster = self.history.log, self.members.roster
        by_node: dict[str, list[ClientKey]] = defaultdict(list)
        for key in keys:
            if roster.members[key.node].node_id not in roster.quiet:
                by_node[key.node].append(key)
        self._requests, self._leaving = [], 0
        most_samples, longest_step = self.members.most_samples, 0.0
        if self.settings.limits_steps and message_type == MessageType.TRAIN:
            if server_round == self.settings.pretraining_rounds + 1:
                self.history.begin_phase()
            longest_step = self.settings.aggregation.step_limit * self.history.usual_step
            log.longest_step = longest_step
        guidances = {node: guide(clients) for node, clients in sorted(by_node.items())}
        sizes = sizes_of([guidance.arrays for guidance in guidances.values()])
        limits = most_samples, longest_step
        for (node, guidance), size in zip(guidances.items(), sizes, strict=True):
            clients = by_node[node]
            names = [key.client for key in clients]
            order = Order(*self.run, server_round, names, evaluate, guidance, *limits)
            if message_type == MessageType.TRAIN:
                self._spending.count(clients, server_round)
            if self._evaluates:
                self._spending.count_evaluation(clients)
            message = write_order(order, roster.members[node].node_id, message_type)
            for name, array in guidance.arrays.items():
                # An array that is not per client is sent once per node, but every client uses it.
                per_client = guidance.clients and name not in shared
                log.parameters_down += array.size if per_client else array.size * len(clients)
            log.parameters_down += sum(
                array.size * len(clients) for array in guidance.first_phase.values()
            )
            log.bytes_down += sent_bytes(message)
            start = {n: guidance.arrays[n] for n in averaged if n in guidance.arrays}
            self._requests.append(_Request(message, node, clients, size, *limits, start))
        log.asked += len(self._requests)
        return [request.message for request in self._requests]

    def ask(self, grid: Grid, messages: Iterable[Message]) -> list[Message]:
        """Send the orders of a phase. Return the replies that arrive before the round's deadline.

        If sums are masked, the nodes exchange keys first. A node that fails to do so gets no order.
        """
        if not self._sums:
            return self.send(grid, messages)
        messages = self._sums.prepare(grid, list(messages))
        nodes = {message.metadata.dst_node_id for message in messages}
        self._requests = [
            request for request in self._requests if request.message.metadata.dst_node_id in nodes
        ]
        return self.send(grid, messages, self._sums.least)

    def send(self, grid: Grid, messages: Iterable[Message], least: int = 0) -> list[Message]:
        """Send these messages and return the replies. Later phases of the round skip silent nodes.

        least: the number of replies that is needed, whatever `nodes.enough` says.
        """
        deadline = self.settings.nodes.round_deadline
        replies = self.exchange.ask(grid, messages, deadline, least=least)
        self.members.roster.quiet |= self.exchange.overdue
        return replies

    # --- in ---------------------------------------------------------------------------------

    def read(self, replies: Iterable[Message], expected: Expected) -> list[Reply]:
        """Return the usable replies, sorted by the nodes' names so that sums are reproducible.

        Wrong and missing parts are refused. Raise `FederationError` if too large a share of the
        nodes gave no usable reply.
        """
        answers = self.usable(replies, expected)
        leaving = self._leaving if answers else 0
        lost = self._sums.lost if self._sums else 0
        orders = len(self._requests) - leaving + lost
        self._check_failed_share(orders, len(answers))
        return answers

    def usable(self, replies: Iterable[Message], expected: Expected) -> list[Reply]:
        """Return the replies that pass all stages, however few they are."""
        on_the_wire = self._sums.on_the_wire(expected) if self._sums else expected
        answers, messages = self._decode(replies, on_the_wire)
        answers = self._compare(answers, expected)
        if self._sums:
            answers = self._sums.apply(answers, messages, expected)
        for answer in answers:
            withheld = self._evaluates and not self._metrics
            without_arrays = replace(answer, arrays={})
            self.history.log.parameters_up += expected.values(without_arrays)
            self.history.record(without_arrays, trained=self._trains, withheld=withheld)
        return answers

    def _decode(
        self, replies: Iterable[Message], expected: Expected
    ) -> tuple[list[Reply], dict[str, Message]]:
        """Return each message's valid part as a reply to its request, and the messages by node."""
        # If a node is dead, Flower answers under another node id. Only the order's id is reliable.
        waiting = {request.message.metadata.message_id: request for request in self._requests}
        usable: dict[str, Reply] = {}
        messages: dict[str, Message] = {}  # by node
        for message in replies:
            order_id = self.exchange.original(message.metadata.reply_to_message_id)
            request = waiting.pop(order_id, None)
            if request is None:
                node = self.members.roster.label_of(message.metadata.src_node_id)
                self.history.refuse(
                    Refusal(node, "", "a second reply, or one that was not asked for")
                )
                continue
            if answer := self._decode_one(message, request, expected):
                usable[request.node] = answer
                messages[request.node] = message
        for request in waiting.values():
            self.history.log.late += 1
            reason = f"no reply within {self.exchange.waited:g} s"
            self.history.refuse(Refusal(request.node, "", reason))
        return [usable[node] for node in sorted(usable)], messages

    def _decode_one(self, message: Message, request: _Request, expected: Expected) -> Reply | None:
        node, log = request.node, self.history.log
        if message.has_error():
            self.history.refuse(Refusal(node, "", f"no reply: {message.error.reason}"))
            return None
        log.bytes_up += received_bytes(message)
        facts, limit, keys = self.members.facts, request.most_samples, request.clients
        samples = {key.client: limited_samples(facts[key].samples, limit) for key in keys}
        metrics_fault = self._reported_fault or self._task.metrics_fault
        tells_steps = self.settings.limits_steps and expected.mean.keys() <= request.start.keys()
        start = {name: request.start[name] for name in expected.mean if tells_steps}
        allowed = Allowed(log.server_round, start, request.longest_step)
        reply, refusals = read_reply(
            message, node, samples, expected, self._metrics, metrics_fault, request.size, allowed
        )
        if reply is not None and reply.leaves:
            self._leaving += 1
            tell("leaving", round=log.server_round, node=node)
            return None
        for refusal in refusals:
            self.history.refuse(refusal)
        return replace(reply, node=node) if reply is not None and reply.names else None

    def _compare(self, answers: list[Reply], expected: Expected) -> list[Reply]:
        """Refuse clients whose arrays are far larger than the other clients' arrays.

        If the reply holds a mean, such a client is part of it, so the whole reply is refused.
        """
        by_node = {reply.node: reply for reply in answers}
        bad = out_of_line(by_node, expected)
        bad |= {(node, ""): reason for node, reason in long_steps(by_node).items()}
        rules = self.settings.aggregation
        if rules.refuse_opposed and self.settings.limits_steps and self._trains:
            starts = {request.node: request.start for request in self._requests}
            opposed = opposed_steps(by_node, starts, expected.mean.keys())
            bad |= {(node, ""): reason for node, reason in opposed.items()}
        refused: dict[str, set[str]] = defaultdict(set)  # clients, by node
        for (node, client), reason in sorted(bad.items()):
            self.history.refuse(Refusal(node, client, reason))
            refused[node].add(client)
        accepted = []
        for answer in answers:
            clients = refused[answer.node]
            reply = without(answer, clients, expected)
            if reply.names and not (clients and expected.mean):
                accepted.append(reply)
        return accepted

    def _check_failed_share(self, orders: int, answered: int) -> None:
        allowed = self.settings.nodes.maximum_failed_share
        if orders and (orders - answered) / orders > allowed:
            refused = self.history.log.refused
            reasons = sorted({": ".join(filter(None, (r.node, r.reason))) for r in refused})
            raise FederationError(
                f"round {self.history.log.server_round}: "
                f"{orders - answered} of {orders} nodes gave no usable reply, more than "
                f"nodes.maximum-failed-share = {allowed:g}: "
                f"{'; '.join(reasons[:3]) or 'no answer'}"
            )
