"""The server's dealings with its nodes: waiting for them, asking them, reading their answers.

Every strategy holds a `Federation` and speaks through it, so that selection, refusal and counting
are the same for all methods. A round's `RoundLog` says what happened in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.sends import Expected
from fedproto_app.data.shape import DataShape
from fedproto_app.errors import FederationError
from fedproto_app.events import tell
from fedproto_app.messages import Order, Refusal, SampleTimes
from fedproto_app.node_register import NodeRegister
from fedproto_app.secure.fixed_point import Sums
from fedproto_app.server.arrivals import Arrivals
from fedproto_app.server.averaging import Averaging
from fedproto_app.server.exchange import Exchange
from fedproto_app.server.identity import Identity
from fedproto_app.server.masked_sum import MaskedSum
from fedproto_app.server.outliers import SizeOfSame, out_of_line
from fedproto_app.server.paths import register_file
from fedproto_app.server.replies import read_reply, received_bytes, without
from fedproto_app.server.roster import Roster, select
from fedproto_app.server.round_log import ClientResult, NodeReply, RoundLog
from fedproto_app.server.spending import Spending
from fedproto_app.settings import PrivacyPlan, Settings
from fedproto_app.tasks.table import expected_metrics, task_class
from fedproto_app.wire import QUESTION, is_answer, sent_bytes, write_order

Given = TypeVar("Given")

MOST_METRICS = 5000  # of one client: those of 1,000 classes and several rules


@dataclass(frozen=True)
class _Sent:
    """An order under way: the message (Flower sets its id on sending) and what it asks.

    size: the root mean square of the arrays that it brings.
    """

    message: Message
    node: str
    clients: list[ClientKey]
    size: float


class Federation:
    """The nodes, their clients, and the log of the current round."""

    def __init__(
        self, settings: Settings, run: str, token: str, plan: PrivacyPlan | None = None
    ) -> None:
        """plan: how clients are protected, if they are."""
        self.settings, self.run, self.token = settings, run, token
        self.spending = Spending(plan)
        self.averaging = Averaging(settings.aggregation, plan)
        self.roster = Roster()
        self.exchange = Exchange(self.roster.label_of, settings.nodes.enough, is_answer)
        register = NodeRegister(register_file(settings.output.dir))
        identity = Identity(register, run, binds=settings.nodes.bind_names)
        self.arrivals = Arrivals(settings, self.roster, self.exchange, identity, self.refuse)
        self.log = RoundLog()
        self.results: dict[ClientKey, ClientResult] = {}
        self.trained: set[ClientKey] = set()
        self.unevaluated: set[ClientKey] = set()  # trained since their last evaluation
        self._task = task_class(settings.task)
        self._expected = expected_metrics(settings)
        self._sent: list[_Sent] = []
        self._leaving = 0  # nodes that were asked last and are about to leave
        self.masked_sum = MaskedSum(self) if settings.aggregation.secure else None

    @property
    def shape(self) -> DataShape:
        """The shape of all nodes' data."""
        return self.arrivals.shape

    def await_nodes(self, grid: Grid) -> None:
        """Wait for enough nodes before the first round; raises `FederationError`."""
        self.arrivals.await_nodes(grid)
        if self.roster.partitions():
            self.exchange.trust_nodes()

    def begin_round(self, server_round: int, grid: Grid) -> None:
        """See which nodes are there; raises `FederationError` if none is. Begins the round's log.

        What happened while the nodes came belongs to round 1.
        """
        if server_round > 1:
            self.log = RoundLog(server_round)
            self.arrivals.await_clients(grid)
        self.log.server_round = server_round

    def note(self, figures: Mapping[str, float | None]) -> None:
        """Enter what the method itself reports of the round."""
        self.log.figures = dict(figures)

    # --- checkpoints ------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """What the server must know of its clients to go on in another process."""
        roster = self.roster

        def keys(some: Iterable[ClientKey]) -> list[list[str]]:
            return [list(key) for key in sorted(some)]

        return {
            "nodes": roster.connected_labels(),
            "inputs": list(self.shape.inputs),
            "classes": list(self.shape.classes),
            "first_with": self.roster.first_with,
            "facts": [[*key, asdict(roster.facts[key])] for key in sorted(roster.facts)],
            "results": [[*key, *self.results[key].memory()] for key in sorted(self.results)],
            "trained": keys(self.trained),
            "unevaluated": keys(self.unevaluated),
            "spent": self.spending.memory(),
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from what `memory` returned. The nodes are still to come."""
        shape = DataShape(tuple(memory["inputs"]), tuple(memory["classes"]))
        self.arrivals.expect(memory["nodes"], shape)
        self.roster.first_with = dict(memory.get("first_with", {}))  # not in earlier versions
        for client, node, facts in memory["facts"]:
            counts = tuple(tuple(stage) for stage in facts.pop("class_counts"))
            times = SampleTimes(*told) if (told := facts.pop("times", None)) else None
            self.roster.facts[ClientKey(client, node)] = ClientFacts(
                **facts, class_counts=counts, times=times
            )
        for client, node, *result in memory["results"]:
            self.results[ClientKey(client, node)] = ClientResult.of(*result)
        self.trained = {ClientKey(*key) for key in memory["trained"]}
        self.unevaluated = {ClientKey(*key) for key in memory["unevaluated"]}
        self.spending.recall(memory.get("spent", ()))

    # --- asking -----------------------------------------------------------------------------

    def choose(
        self,
        clients: Sequence[ClientKey],
        server_round: int,
        newcomers: Collection[ClientKey] = (),
    ) -> list[ClientKey]:
        """The clients to train this round: a share of these, and all newcomers."""
        settings = self.settings
        return select(clients, settings.participation, set(newcomers), settings.seed, server_round)

    def ask(self, grid: Grid, messages: Iterable[Message]) -> list[Message]:
        """Send a phase's orders; returns the replies that come before the round's deadline.

        Where sums are masked, nodes exchange keys first; the orders of those that do not stay.
        """
        least = 0
        if self.masked_sum is not None:
            messages = self.masked_sum.prepared(grid, list(messages))
            least = self.masked_sum.least
            nodes = {message.metadata.dst_node_id for message in messages}
            self._sent = [one for one in self._sent if one.message.metadata.dst_node_id in nodes]
        return self.exchanged(grid, messages, least)

    def exchanged(self, grid: Grid, messages: Iterable[Message], least: int = 0) -> list[Message]:
        """The replies to these messages; no later phase of the round waits for who owes one.

        least: answers below which `nodes.enough` says nothing.
        """
        deadline = self.settings.nodes.round_deadline
        replies = self.exchange.ask(grid, messages, deadline, least=least)
        self.roster.quiet |= self.exchange.overdue
        return replies

    @property
    def total(self) -> Sums | None:
        """The masked sum of the newest training; None if there is none."""
        return self.masked_sum.total if self.masked_sum else None

    def handed_over(
        self,
        answers: list[NodeReply],
        plain: Callable[[list[NodeReply]], Given],
        of_total: Callable[[Sums], Given],
    ) -> Given | None:
        """What a strategy makes of the answers to an order to train, or of their masked sum; None
        if there should be a sum and is none."""
        if self.masked_sum is None:
            return plain(answers)
        return None if self.total is None else of_total(self.total)

    def orders(
        self,
        keys: Iterable[ClientKey],
        make: Callable[[list[ClientKey]], Order],
        message_type: str = MessageType.TRAIN,
        shared: Collection[str] = (),
    ) -> list[Message]:
        """One message a node, with an order of its own for its share of the clients.

        Those of a node that has fallen silent since they were chosen are left out.
        shared: the arrays that are meant for each client even where others are the clients' own.
        """
        by_node: dict[str, list[ClientKey]] = defaultdict(list)
        for key in keys:
            if self.roster.members[key.node].node_id not in self.roster.quiet:
                by_node[key.node].append(key)
        self._sent, self._leaving = [], 0
        size_of = SizeOfSame()
        for node, its_keys in sorted(by_node.items()):
            order = make(its_keys)
            if message_type == MessageType.TRAIN:
                self.spending.ask(its_keys, order.server_round)
            message = write_order(order, self.roster.members[node].node_id, message_type)
            for name, array in order.arrays.items():
                # Arrays that are not per client are sent once a node, but meant for each client.
                own = order.guided and name not in shared
                self.log.parameters_down += array.size if own else array.size * len(its_keys)
            self.log.bytes_down += sent_bytes(message)
            self._sent.append(_Sent(message, node, its_keys, size_of(order.arrays)))
        self.log.asked += len(self._sent)
        return [sent.message for sent in self._sent]

    def order(
        self, keys: Sequence[ClientKey], server_round: int, *, evaluate: bool = False
    ) -> Order:
        """An order without arrays for these clients of one node."""
        clients = [key.client for key in keys]
        return Order(self.run, self.token, server_round, clients, evaluate=evaluate)

    def evaluates(self, server_round: int) -> bool:
        """Whether this round's models are evaluated; those of the last round always are.

        In the rounds before those of the method there is nothing to evaluate.
        """
        of_task = server_round - self.settings.pretraining_rounds
        if of_task <= 0:
            return False
        last = of_task == self.settings.rounds or self.spending.ends_with(server_round)
        return of_task % self.settings.evaluate_every == 0 or last

    def question(
        self,
        grid: Grid,
        keys: Iterable[ClientKey],
        make: Callable[[list[ClientKey]], Order],
        spec: Expected,
        *,
        shared: Collection[str] = (),
        once: bool = False,
    ) -> list[NodeReply]:
        """Ask these clients a method's question and wait; the usable answers, as `read` gives them.

        However few answer: a question is often put to newcomers alone, of whom one may be silent.
        Only between the phases: while no other orders are under way. shared: as for `orders`.
        once: whether it is one that each client answers once in a run.
        """
        messages = self.orders(keys, make, QUESTION, shared)
        answers = self._usable(self.ask(grid, messages), spec) if messages else []
        if once:
            self.log.parameters_up_once += sum(spec.values(answer.reply) for answer in answers)
        return answers

    # --- reading ----------------------------------------------------------------------------

    def read(
        self, replies: Iterable[Message], spec: Expected, most_samples: int | None = None
    ) -> list[NodeReply]:
        """The usable replies in the order of the nodes' labels, so that sums are reproducible.

        most_samples: the most that a client can have used, if not all that it declared.
        Refuses what is wrong or missing, records losses, metrics and costs. Raises
        `FederationError` when too large a share of the nodes asked gave nothing usable.
        """
        lost = 0
        if self.masked_sum is not None and self.masked_sum.awaited:
            unmasked = self._believed(replies, Expected(masked=True), most_samples)
            answers, lost = self.masked_sum.finish(unmasked, spec)
            self._record_all(answers, spec)
        else:
            answers = self._usable(replies, spec, most_samples)
        leaving = self._leaving if answers else 0
        self._check_failed_share(len(self._sent) - leaving + lost, len(answers))
        return answers

    def _usable(
        self, replies: Iterable[Message], spec: Expected, most_samples: int | None = None
    ) -> list[NodeReply]:
        """As `read`, however few they are."""
        answers = self._believed(replies, spec, most_samples)
        self._record_all(answers, spec)
        return answers

    def _believed(
        self, replies: Iterable[Message], spec: Expected, most_samples: int | None
    ) -> list[NodeReply]:
        # Flower answers for a dead node under an id of its own: only the message tells whose.
        asked = {sent.message.metadata.message_id: sent for sent in self._sent}
        usable: dict[str, NodeReply] = {}
        for message in replies:
            order_id = self.exchange.original(message.metadata.reply_to_message_id)
            sent = asked.pop(order_id, None)
            if sent is None:
                node = self.roster.label_of(message.metadata.src_node_id)
                self.refuse(Refusal(node, "", "a second or unasked reply"))
                continue
            if answer := self._read_one(message, sent, spec, most_samples):
                usable[sent.node] = answer
        for sent in asked.values():
            self.log.late += 1
            self.refuse(Refusal(sent.node, "", f"no reply within {self.exchange.waited:g} s"))
        usable = self._in_line(usable, spec)
        return [usable[node] for node in sorted(usable)]

    def _read_one(
        self, message: Message, sent: _Sent, spec: Expected, most_samples: int | None
    ) -> NodeReply | None:
        if message.has_error():
            self.refuse(Refusal(sent.node, "", f"no reply: {message.error.reason}"))
            return None
        self.log.bytes_up += received_bytes(message)
        asked = {key.client: self.roster.facts[key].samples for key in sent.clients}
        if most_samples is not None:
            asked = {name: min(declared, most_samples) for name, declared in asked.items()}
        reply, refusals = read_reply(
            message, sent.node, asked, spec, self._expected, self._task.metrics_fault, sent.size
        )
        if reply is not None and reply.leaves:
            self._leaving += 1
            tell("leaving", round=self.log.server_round, node=sent.node)
            return None
        for refusal in refusals:
            self.refuse(refusal)
        return NodeReply(sent.node, reply, message) if reply is not None and reply.names else None

    def _in_line(self, answers: dict[str, NodeReply], spec: Expected) -> dict[str, NodeReply]:
        """The answers without clients whose arrays are far beyond those of the others.

        A node's mean includes such a client, so then its whole answer goes.
        """
        bad = out_of_line({node: answer.reply for node, answer in answers.items()}, spec)
        for (node, client), reason in sorted(bad.items()):
            self.refuse(Refusal(node, client, reason))
        of_node: dict[str, set[str]] = defaultdict(set)
        for node, client in bad:
            of_node[node].add(client)
        left = {}
        for node, answer in answers.items():
            its = of_node[node]
            reply = without(answer.reply, its, spec)
            if reply.names and not (its and spec.mean):
                left[node] = replace(answer, reply=reply)
        return left

    def _check_failed_share(self, asked: int, answered: int) -> None:
        allowed = self.settings.nodes.maximum_failed_share
        if asked and (asked - answered) / asked > allowed:
            told = {": ".join(filter(None, (r.node, r.reason))) for r in self.log.refused}
            reasons = sorted(told) or ["no answer"]
            raise FederationError(
                f"{asked - answered} of {asked} nodes gave no usable reply, more than "
                f"nodes.maximum-failed-share = {allowed:g}: {'; '.join(reasons[:3])}"
            )

    def _record_all(self, answers: Collection[NodeReply], spec: Expected) -> None:
        self.log.answered += len(answers)
        for answer in answers:
            self._record(answer, spec)

    def _record(self, answer: NodeReply, spec: Expected) -> None:
        reply = answer.reply
        self.log.node_seconds += reply.seconds
        self.log.parameters_up += spec.values(reply)
        for row, key in enumerate(answer.keys()):
            if reply.losses:
                self.trained.add(key)
                self.unevaluated.add(key)
                self.log.losses[key] = {name: v[row] for name, v in reply.losses.items()}
            if reply.metrics:
                result = self.results.get(key, ClientResult())
                told = {name: values[row] for name, values in reply.metrics.items()}
                if len(result.metrics.keys() | told.keys()) > MOST_METRICS:
                    reason = f"tells of more than {MOST_METRICS} metrics; these are not kept"
                    self.refuse(Refusal(key.node, key.client, reason))
                    continue
                result.metrics |= told
                self.results[key] = result
            if reply.kept_rounds:
                self.results[key].kept_round = reply.kept_rounds[row]
                self.unevaluated.discard(key)

    def refuse(self, refusal: Refusal) -> None:
        """Note what of an answer is not used, for the artefacts, and log it."""
        self.log.refuse(refusal)
