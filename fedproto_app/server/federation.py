"""Join the four parts of the server's side of a federation. Each part has one task.

`members` tracks the nodes, `selection` chooses clients, `pipeline` sends orders and reads replies,
`history` records results and costs. All strategies use these parts, so selection, validation and
counting are the same for all methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from flwr.serverapp import Grid

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.stored import Memory
from fedproto_app.core.wire import is_answer
from fedproto_app.data.shape import DataShape
from fedproto_app.server.exchange import Exchange
from fedproto_app.server.listeners import Spending, Stages
from fedproto_app.server.membership import Membership, Roster
from fedproto_app.server.node_register import Identity, NodeRegister, register_file
from fedproto_app.server.pipeline import Pipeline
from fedproto_app.server.questions import asking
from fedproto_app.server.round_log import History
from fedproto_app.settings import PrivacyPlan, Settings
from fedproto_app.strategies.common.federation import Ask
from fedproto_app.trust.averaging import Averaging


class Selection:
    """The choices that are made in the same way for every method.

    ends_with: returns whether a round is the last one for a reason other than the number of rounds.
    """

    def __init__(self, settings: Settings, ends_with: Callable[[int], bool]) -> None:
        self._settings, self._ends_with = settings, ends_with

    def choose(
        self, clients: Sequence[ClientKey], server_round: int, newcomers: Collection[ClientKey] = ()
    ) -> list[ClientKey]:
        """Return a round's clients: a share of all, at least one, drawn with the run's seed, and
        all newcomers."""
        count = max(1, math.ceil(self._settings.participation * len(clients) - 1e-9))
        stream = numpy_stream(self._settings.seed, "selection", server_round)
        order = stream.permutation(len(clients))
        chosen = {*newcomers, *(clients[index] for index in order[:count])}
        return [key for key in clients if key in chosen]

    def evaluates(self, server_round: int) -> bool:
        """Return whether this round's models are evaluated. The last round's models always are.

        Before the method's own rounds there is nothing to evaluate.
        """
        of_task = server_round - self._settings.pretraining_rounds
        if of_task <= 0:
            return False
        last = of_task == self._settings.rounds or self._ends_with(server_round)
        return of_task % self._settings.evaluate_every == 0 or last


class Federation:
    """The parts of the server, put together for one run.

    averaging: the rule that combines the clients' values. spending: the clients' privacy loss.
    early_ends: the listeners that may end the run early and know this before a round begins.
    """

    def __init__(
        self,
        settings: Settings,
        run: str,
        token: str,
        plan: PrivacyPlan | None = None,
        grid: Grid | None = None,
    ) -> None:
        """token: the run's random mark. plan: how noise protects clients, None without noise.
        grid: the grid for a method's questions, or None if the method asks none."""
        self.settings, self.token, self._grid = settings, token, grid
        self.spending = Spending(plan, settings.all_rounds)
        self.averaging = Averaging(settings.aggregation, plan)
        self.history = History()
        roster = Roster()
        exchange = Exchange(roster.label_of, settings.nodes.enough, is_answer)
        register = NodeRegister(register_file(settings.output.dir))
        identity = Identity(register, run, binds=settings.nodes.bind_names)
        refuse = self.history.refuse
        self.members = Membership(settings, roster, exchange, identity, refuse)
        stages = Stages(settings, lambda: self.members.stages)
        self.early_ends = (self.spending, stages)
        self.selection = Selection(
            settings, lambda number: any(early.ends_with(number) for early in self.early_ends)
        )
        self.pipeline = Pipeline(
            settings, (run, token), self.members, self.history, exchange, self.spending
        )

    @property
    def shape(self) -> DataShape:
        """The shape of all nodes' data."""
        return self.members.shape

    def asking(self, server_round: int) -> Ask:
        """Return a function that asks clients the method's questions in this round."""
        assert self._grid is not None, "this federation has no grid to ask over"
        return asking(self.pipeline, self._grid, server_round)

    def memory(self) -> Memory:
        """Return the state that a resumed run needs."""
        return self.members.memory() | self.history.memory()

    def recall(self, memory: Memory) -> None:
        """Restore the state from `memory`, before the nodes connect."""
        self.members.recall(memory)
        self.history.recall(memory)
