"""The server's side of a federation: four parts with one task each.

`members` tracks the nodes, `selection` chooses clients, `pipeline` sends orders and reads replies,
`history` records results and costs. All strategies use these parts, so selection, validation and
counting are the same for all methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedproto_app.core.wire import is_answer
from fedproto_app.data.shape import DataShape
from fedproto_app.server.exchange import Exchange
from fedproto_app.server.identity import Identity
from fedproto_app.server.membership import Membership
from fedproto_app.server.node_register import NodeRegister, register_file
from fedproto_app.server.pipeline import Pipeline
from fedproto_app.server.roster import Roster
from fedproto_app.server.round_log import History
from fedproto_app.server.selection import Selection
from fedproto_app.server.spending import Spending
from fedproto_app.settings import PrivacyPlan, Settings
from fedproto_app.trust.averaging import Averaging


class Federation:
    """The parts of the server, put together for one run.

    averaging: the rule that combines the clients' values. spending: the clients' privacy loss.
    """

    def __init__(
        self, settings: Settings, run: str, token: str, plan: PrivacyPlan | None = None
    ) -> None:
        """token: the run's random mark. plan: how noise protects clients, None without noise."""
        self.settings, self.token = settings, token
        self.spending = Spending(plan, settings.all_rounds)
        self.averaging = Averaging(settings.aggregation, plan)
        self.history = History()
        roster = Roster()
        exchange = Exchange(roster.label_of, settings.nodes.enough, is_answer)
        register = NodeRegister(register_file(settings.output.dir))
        identity = Identity(register, run, binds=settings.nodes.bind_names)
        refuse = self.history.refuse
        self.members = Membership(settings, roster, exchange, identity, refuse)
        self.selection = Selection(settings, self.spending.ends_with)
        self.pipeline = Pipeline(
            settings, (run, token), self.members, self.history, exchange, self.spending.count
        )

    @property
    def shape(self) -> DataShape:
        """The shape of all nodes' data."""
        return self.members.shape

    def memory(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return self.members.memory() | self.history.memory()

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Restore the state from `memory`, before the nodes connect."""
        self.members.recall(memory)
        self.history.recall(memory)
