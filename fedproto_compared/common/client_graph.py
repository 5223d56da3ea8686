"""A graph over the clients of a federation, for strategies (docs: compared.md).

    graph = ClientGraph(settings, federation)      # reads the file, if any
    graph.complete(round_)                         # in `begin`: asks clients for their profiles
    weights = graph.adjacency(keys)                # [N, N] of these clients, in this order

The learner answers the question for a profile with `profile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance, Refusal
from fedproto_app.core.round import ClientReply, Received, Round, of_group, under
from fedproto_app.core.sends import Expected, Sends
from fedproto_app.core.stored import AnyArray
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort, Contribution
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_compared.common.adjacency import Adjacency
from fedproto_compared.common.vertices import Vertices, reported_days

PROFILE = "profile"  # an array [B], and the option of the question that asks for it


def profile(cohort: Cohort, task: ForecastingTask) -> Contribution:
    """Return the mean standardised day of each client's train part, [K, B]."""
    return Contribution({PROFILE: reported_days(cohort.samples, task.settings).numpy()})


_STATE = "graph"
LARGEST_PROFILE = 100.0  # in standardised values, far beyond any mean of them


class ClientGraph:
    """Weighted edges between clients, from any source that ``[graph]`` names.

    State: the profiles, if the source has them. Raise `DataError` for a file that cannot be read,
    or that lacks a client of a simulation.
    """

    def __init__(self, settings: Settings, federation: Federation) -> None:
        self._settings, self._federation = settings, federation
        self._vertices = Vertices(settings.graph)
        # In a simulation a missing client is the user's mistake: report it before work starts.
        if federation.members.is_simulation:
            self._vertices.require([key.client for key in federation.members.clients()])
        shape = {PROFILE: (settings.data.period,)}
        self._profiles = Received([Sends("profile", shape, remember="latest")])
        self._nameless: set[ClientKey] = set()  # clients refused because their name is taken

    @property
    def asks_profiles(self) -> bool:
        """Whether clients send profiles for the graph."""
        return self._settings.graph.source == "profiles"

    def complete(self, round_: Round) -> None:
        """Ask the connected clients for the profiles that they have not sent yet.

        A profile that cannot be true is refused and replaced by zeros, which have no edges.
        """
        if not self.asks_profiles:
            return
        clients = self._federation.members.clients()
        missing = [key for key in clients if self._profiles.latest(key) is None]
        expected = Expected(per_client={PROFILE: (self._settings.data.period,)})
        question = Guidance(options={PROFILE: 1.0})
        ask = self._federation.asking(round_.number)
        for reply in ask(missing, lambda keys: question, expected, once_per_run=True):
            profile = reply.arrays[PROFILE]
            if (largest := float(np.abs(profile).max())) > LARGEST_PROFILE:
                reason = f"its profile holds ±{largest:g}, more than {LARGEST_PROFILE:g}"
                round_.refused[reply.key] = reason
                profile = np.zeros_like(profile)
            self._profiles.take([ClientReply(reply.key, 0, {PROFILE: profile})])

    def adjacency(self, keys: Sequence[ClientKey]) -> Adjacency:
        """Return float32 weights between these clients, [N, N]: symmetric, ≥ 0, 0 on the diagonal.

        The neighbours are chosen among all clients that ever joined, so an absent client does not
        change the edges of the others. A newcomer gets its edges by the same rule.
        """
        all_keys = sorted({*self._federation.members.facts, *keys})
        names = [self._name(key) for key in all_keys]
        weights = self._vertices.adjacency(names, self._reported_profiles(all_keys))
        row_of = {key: row for row, key in enumerate(all_keys)}
        rows = [row_of[key] for key in keys]
        return weights[np.ix_(rows, rows)]

    def places(self, keys: Sequence[ClientKey]) -> NDArray[np.float64]:
        """Return the clients' places [N, 2] or profiles [N, B], NaN where unknown.

        A file of weights gives neither, so the result is [N, 0].
        """
        if self.asks_profiles:
            return self._reported_profiles(keys).astype(np.float64)
        if self._settings.graph.source == "file":
            return np.zeros((len(keys), 0))
        places = [self._vertices.place(self._name(key)) or (np.nan, np.nan) for key in keys]
        return np.array(places, dtype=np.float64).reshape(-1, 2)

    def _name(self, key: ClientKey) -> str | None:
        """Return the client's name in the file, or None if another node declared the name first.

        Without this check, a node could take a client's name and get that client's neighbours.
        """
        owner = self._federation.members.first_with(key.client) or key.node
        if owner == key.node or self.asks_profiles:
            return key.client
        if key not in self._nameless:
            self._nameless.add(key)
            reason = f"its place in the graph is taken: node {owner} declared its name first"
            self._federation.history.refuse(Refusal(key.node, key.client, reason))
        return None

    def _reported_profiles(self, keys: Sequence[ClientKey]) -> NDArray[np.float32]:
        """Return the clients' profiles, [N, B], NaN where a client has not sent any."""
        profiles = np.full((len(keys), self._settings.data.period), np.nan, np.float32)
        for row, key in enumerate(keys):
            if (reported := self._profiles.latest(key)) is not None:
                profiles[row] = reported[PROFILE]
        return profiles

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays for a checkpoint, in a group that keeps them apart from others."""
        return under(_STATE, self._profiles.state())

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of `state`. Arrays outside its group are ignored."""
        self._profiles.restore(of_group(state, _STATE))
