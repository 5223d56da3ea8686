"""The graph over the clients of a federation, as a strategy uses it (docs: graph.md).

    graph = ClientGraph(settings, federation)      # reads the file, if there is one
    graph.complete(round_, ask)                    # in `begin`: profiles, once a client
    weights = graph.adjacency(keys)                # [N, N] of these clients, in their order

A learner whose strategy has one answers the question for a profile with `strategies/common/profile.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Refusal
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.core.sends import Expected, Sends
from fedproto_app.maths.graph import Adjacency
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.profile import PROFILE
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.tasks.forecasting.graph import Vertices

_STATE = "graph-"
LARGEST_PROFILE = 100.0  # of standardised values, far beyond any mean of them


class ClientGraph:
    """Weighted edges between clients from ``[graph]``, whatever the source.

    State: the profiles, of a source that has them. Raises `DataError` for a file that cannot be
    read, or that has nothing of a client who is there.
    """

    def __init__(self, settings: Settings, federation: Federation) -> None:
        self._settings, self._federation = settings, federation
        self._vertices = Vertices(settings.graph)
        # In a simulation all clients are one person's: a mistake, before work starts.
        if federation.members.roster.partitions():
            self._vertices.require([key.client for key in federation.members.clients()])
        shape = {PROFILE: (settings.data.period,)}
        self._profiles = Received([Sends("profile", shape, remember="latest")])
        self._nameless: set[ClientKey] = set()  # who was told that its name is another's

    @property
    def asks_profiles(self) -> bool:
        """Whether clients send anything for the graph."""
        return self._settings.graph.source == "profiles"

    def complete(self, round_: Round, ask: Ask) -> None:
        """Ask the clients that are there for the profiles that they have not sent yet.

        One that cannot be true is refused; a profile of zeros, which has no edges, is in its place.
        """
        if not self.asks_profiles:
            return
        clients = self._federation.members.clients()
        missing = [key for key in clients if self._profiles.latest(key) is None]
        expected = Expected(per_client={PROFILE: (self._settings.data.period,)})
        question = Guidance(options={PROFILE: 1.0})
        for reply in ask(missing, lambda keys: question, expected, once=True):
            sent = reply.arrays[PROFILE]
            if (largest := float(np.abs(sent).max())) > LARGEST_PROFILE:
                reason = f"its profile holds ±{largest:g}, more than {LARGEST_PROFILE:g}"
                round_.refused[reply.key] = reason
                sent = np.zeros_like(sent)
            self._profiles.take([ClientReply(reply.key, 0, {PROFILE: sent})])

    def adjacency(self, keys: Sequence[ClientKey]) -> Adjacency:
        """[N, N] float32 weights between these clients: symmetric, ≥ 0, 0 on the diagonal.

        Neighbours are chosen, and distances compared, among all clients that ever came, so that
        who is absent changes nothing for the others. A newcomer gets its edges by the same rule.
        """
        everyone = sorted({*self._federation.members.facts, *keys})
        names = [self._name(key) for key in everyone]
        whole = self._vertices.adjacency(names, self._told(everyone))
        row_of = {key: row for row, key in enumerate(everyone)}
        rows = [row_of[key] for key in keys]
        return whole[np.ix_(rows, rows)]

    def places(self, keys: Sequence[ClientKey]) -> NDArray[np.float64]:
        """[N, 2] or [N, B]: where these clients are, or their profiles; NaN where nobody told.

        A file of weights has neither: [N, 0].
        """
        if self.asks_profiles:
            return self._told(keys).astype(np.float64)
        if self._settings.graph.source == "file":
            return np.zeros((len(keys), 0))
        found = [self._vertices.place(self._name(key)) or (np.nan, np.nan) for key in keys]
        return np.array(found, dtype=np.float64).reshape(-1, 2)

    def _name(self, key: ClientKey) -> str | None:
        """The name by which a file knows the client; None if another node declared it first.

        Whoever took the name of another's client would get its neighbours, and be theirs.
        """
        owner = self._federation.members.roster.first_with.get(key.client, key.node)
        if owner == key.node or self.asks_profiles:
            return key.client
        if key not in self._nameless:
            self._nameless.add(key)
            told = f"its place in the graph is that of node {owner}, which declared the name first"
            self._federation.history.refuse(Refusal(key.node, key.client, told))
        return None

    def _told(self, keys: Sequence[ClientKey]) -> NDArray[np.float32]:
        """[N, B] the clients' profiles, NaN where there is none."""
        profiles = np.full((len(keys), self._settings.data.period), np.nan, np.float32)
        for row, key in enumerate(keys):
            if (told := self._profiles.latest(key)) is not None:
                profiles[row] = told[PROFILE]
        return profiles

    def state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint; all names begin alike, so that it fits beside a strategy's own."""
        return {_STATE + name: array for name, array in self._profiles.state().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """What `state` gave, among other things or alone."""
        own = {n.removeprefix(_STATE): a for n, a in state.items() if n.startswith(_STATE)}
        self._profiles.restore(own)
