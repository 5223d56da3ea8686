"""Keep the history of a run: each round's orders, replies and costs, and the clients' results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING
from statistics import median_low

from fedproto_app.core.clients import ClientKey, ClientResult, node_keys
from fedproto_app.core.events import shown, tell
from fedproto_app.core.messages import Refusal, Reply
from fedproto_app.core.stored import Memory

MOST_REFUSALS = 1000  # reported for one node in a round
FEWEST_STEPS = 5  # clients. The median of fewer steps says little
MOST_METRICS = 5000  # of one client, which is enough for 1,000 classes and several rules


@dataclass
class RoundLog:
    """The orders, replies and costs of one round.

    server_round: 0 while the nodes join. asked, answered, late: the numbers of orders to nodes, of
    usable replies, and of replies still missing at the deadline.
    parameters_up, parameters_down: the numbers of array values, counted for each client separately,
    as in the papers. parameters_up_once: the part of parameters_up that clients send only once in a
    run. bytes_up, bytes_down: the actual sizes of the records. steps: the lengths of the clients'
    steps, if nodes report them. longest_step: the limit on these lengths, 0 for none.
    figures: the method's report on the round.
    """

    server_round: int = 0
    asked: int = 0
    answered: int = 0
    refused: list[Refusal] = field(default_factory=list)
    late: int = 0
    losses: dict[ClientKey, dict[str, float]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    longest_step: float = 0.0
    parameters_up: int = 0
    parameters_up_once: int = 0
    parameters_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    node_seconds: float = 0.0
    figures: dict[str, float | None] = field(default_factory=dict)
    _refusals: Counter[str] = field(default_factory=Counter)  # by node, including unreported ones

    @property
    def shortened(self) -> int:
        """The number of clients whose steps were shortened, so that they are as long as allowed."""
        return sum(step >= self.longest_step for step in self.steps) if self.longest_step else 0

    def refuse(self, refusal: Refusal) -> None:
        """Record and log the refusal of a reply or of a part of it.

        The texts come from another machine, so they are cut and escaped. Only a node's first
        refusals in a round are reported.
        """
        self._refusals[refusal.node] += 1
        refusals = self._refusals[refusal.node]
        if refusals > MOST_REFUSALS:
            return
        node, client, reason = map(shown, (refusal.node, refusal.client, refusal.reason))
        if refusals == MOST_REFUSALS:
            client = ""
            reason = f"{MOST_REFUSALS} refusals in a round; no more are reported"
        self.refused.append(Refusal(node, client, reason))
        fields = {"node": node, "client": client or None, "reason": reason}
        tell("refused", WARNING, round=self.server_round, **fields)


class History:
    """The history of a run so far.

    log: the log of the current round. results: each client's latest metrics. trained: the clients
    that have ever trained. unevaluated: the clients that have trained since their last evaluation.
    """

    def __init__(self) -> None:
        self.log = RoundLog()
        self.results: dict[ClientKey, ClientResult] = {}
        self.trained: set[ClientKey] = set()
        self.unevaluated: set[ClientKey] = set()
        self._usual_step = 0.0  # of earlier rounds

    @property
    def usual_step(self) -> float:
        """The median step length in the latest round with enough clients, or 0 before any."""
        steps = self.log.steps
        return median_low(steps) if len(steps) >= FEWEST_STEPS else self._usual_step

    def begin_phase(self) -> None:
        """Forget the lengths of steps, because the next phase trains another model."""
        self._usual_step = 0.0

    def begin_round(self, server_round: int) -> None:
        """Begin the log of a round. Events before round 1 are logged as part of round 1."""
        if server_round > 1:
            self._usual_step = self.usual_step
            self.log = RoundLog()
        self.log.server_round = server_round

    def refuse(self, refusal: Refusal) -> None:
        """Log the refusal of a reply or of a part of it, and record it for the artefacts."""
        self.log.refuse(refusal)

    def note(self, figures: Mapping[str, float | None]) -> None:
        """Enter the method's report on the round."""
        self.log.figures = dict(figures)

    def record(self, reply: Reply, *, trained: bool = False, withheld: bool = False) -> None:
        """Enter a usable reply. Its arrays are not recorded.

        trained: whether its clients trained. withheld: whether they were evaluated, but their
        results stay at the node.
        """
        self.log.answered += 1
        self.log.node_seconds += reply.seconds
        self.log.steps += reply.steps
        for row, key in enumerate(node_keys(reply.node, reply.names)):
            if trained:
                self.trained.add(key)
                self.unevaluated.add(key)
                self.log.losses[key] = {name: v[row] for name, v in reply.losses.items()}
            if withheld:
                self.results.setdefault(key, ClientResult())
                self.unevaluated.discard(key)
            if reply.metrics:
                result = self.results.get(key, ClientResult())
                reported = {name: values[row] for name, values in reply.metrics.items()}
                if len(result.metrics.keys() | reported.keys()) > MOST_METRICS:
                    reason = f"reports more than {MOST_METRICS} metrics; these are not kept"
                    self.refuse(Refusal(key.node, key.client, reason))
                    continue
                result.metrics |= reported
                self.results[key] = result
            if reply.kept_rounds:
                self.results[key].kept_round = reply.kept_rounds[row]
                self.unevaluated.discard(key)

    def memory(self) -> Memory:
        """Return the state for a checkpoint."""
        return {
            "results": [[*key, *self.results[key].memory()] for key in sorted(self.results)],
            "trained": [list(key) for key in sorted(self.trained)],
            "unevaluated": [list(key) for key in sorted(self.unevaluated)],
            "usual_step": self.usual_step,
        }

    def recall(self, memory: Memory) -> None:
        """Restore the state from `memory`."""
        for client, node, *result in memory["results"]:
            self.results[ClientKey(client, node)] = ClientResult.from_memory(*result)
        self.trained = {ClientKey(*key) for key in memory["trained"]}
        self.unevaluated = {ClientKey(*key) for key in memory["unevaluated"]}
        self._usual_step = memory.get("usual_step", 0.0)
