"""The windows of a client's community, for a method whose clients share theirs (FCGCN).

Members' raw windows stand beside each other, which only a simulation allows: there every node reads
the whole source, so that all find the same communities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shard import Shard
from fedproto_app.data.windows import ClientWindows
from fedproto_app.maths.graph import Adjacency, communities, normalised
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting.clients import series_shard
from fedproto_app.tasks.forecasting.graph import Vertices
from fedproto_app.tasks.forecasting.profiles import told_days
from fedproto_app.tasks.forecasting.task import ForecastingTask


@dataclass(frozen=True)
class Community:
    """members: their windows, in the order of names. near: Â [M, M], of these alone."""

    members: list[ClientWindows]
    near: Adjacency


def with_communities(
    settings: Settings, mine: Sequence[ClientSeries], every: Sequence[ClientSeries]
) -> Shard:
    """A node's clients, whose samples are those of `CommunityGcn`; every: the whole source's.

    Raises `DataError` for what is wrong with the graph's file.
    """
    whole = series_shard(every, settings.data)
    windows = {name: one for name, one in whole.clients.items() if isinstance(one, ClientWindows)}
    community_of = communities_of(windows, settings)
    widest = max((len(one.members) for one in community_of.values()), default=0)
    times = settings.data.times
    joined = {
        one.name: _joined(windows[one.name], community_of[one.name], widest, times)
        for one in mine
        if one.name in windows
    }
    names = {one.name for one in mine}
    return Shard(joined, {name: why for name, why in whole.refused.items() if name in names})


def communities_of(
    windows: Mapping[str, ClientWindows], settings: Settings
) -> dict[str, Community]:
    """The community of each client, by name; Louvain's with the run's seed."""
    names = sorted(windows)
    vertices = Vertices(settings.graph)
    vertices.require(names)
    profiles: NDArray[np.float32] | None = None
    if settings.graph.source == "profiles":
        task = ForecastingTask(settings)
        days = [told_days(task.gather([windows[name]], 1), settings) for name in names]
        empty = np.zeros((0, settings.data.period), np.float32)
        profiles = np.concatenate([empty, *(day.numpy() for day in days)])
    adjacency = vertices.adjacency(names, profiles)
    labels = communities(adjacency, settings.seed)
    found: dict[str, Community] = {}
    for label in set(labels.tolist()):
        rows = np.flatnonzero(labels == label)
        members = [windows[names[row]] for row in rows]
        one = Community(members, normalised(adjacency[np.ix_(rows, rows)]))
        found |= {member.name: one for member in members}
    return found


def _joined(client: ClientWindows, community: Community, widest: int, times: int) -> ClientWindows:
    """The client with samples [n, M·v + M + j] for the M = `widest` of any community.

    times: j, the last columns of its samples.
    """
    values = client.inputs.shape[1] - times  # v
    rows = np.stack([_at_times_of(client, one, values) for one in community.members], axis=1)
    mixed = np.einsum("lm,nmv->nlv", community.near, rows)
    place = [one.name for one in community.members].index(client.name)
    near = np.broadcast_to(community.near[place], (len(rows), len(community.members)))
    lacking = widest - len(community.members)
    mixed = np.pad(mixed, ((0, 0), (0, lacking), (0, 0))).reshape(len(rows), -1)
    near = np.pad(near, ((0, 0), (0, lacking)))
    inputs = np.concatenate([mixed, near, client.inputs[:, values:]], axis=1)
    return replace(client, inputs=inputs.astype(np.float32))


def _at_times_of(client: ClientWindows, member: ClientWindows, values: int) -> NDArray[np.float32]:
    """[n, v] the member's windows at the client's times; its train mean, 0, where it has none."""
    there = np.zeros((len(client.inputs), values), np.float32)
    # Samples end alike before their series do, so ends tell how far two series are apart.
    later = (client.end - len(client.inputs)) - (member.end - len(member.inputs))
    first, end = max(0, -later), min(len(there), len(member.inputs) - later)
    if first < end:
        there[first:end] = member.inputs[first + later : end + later, :values]
    return there
