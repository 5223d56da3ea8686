"""The windows of a client's community, for a method whose clients share their windows (FCGCN).

A client sees the raw windows of all members, which is possible only in a simulation: there every
node reads the whole source, so that all nodes find the same communities.
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
from fedproto_app.tasks.forecasting.profiles import reported_days
from fedproto_app.tasks.forecasting.task import ForecastingTask


@dataclass(frozen=True)
class Community:
    """members: their windows, in the order of names. near: Â [M, M] over the members."""

    members: list[ClientWindows]
    near: Adjacency


def with_communities(
    settings: Settings, node_series: Sequence[ClientSeries], all_series: Sequence[ClientSeries]
) -> Shard:
    """Return a node's clients, with samples for `CommunityGcn`.

    all_series: of the whole source. Raises `DataError` for a fault in the graph's file.
    """
    shard = series_shard(all_series, settings.data)
    windows = {
        name: client for name, client in shard.clients.items() if isinstance(client, ClientWindows)
    }
    community_of = communities_of(windows, settings)
    widest = max((len(community.members) for community in community_of.values()), default=0)
    times = settings.data.times
    joined = {
        series.name: _joined(windows[series.name], community_of[series.name], widest, times)
        for series in node_series
        if series.name in windows
    }
    names = {series.name for series in node_series}
    return Shard(joined, {name: why for name, why in shard.refused.items() if name in names})


def communities_of(
    windows: Mapping[str, ClientWindows], settings: Settings
) -> dict[str, Community]:
    """Return the community of each client, by name, from Louvain's method with the run's seed."""
    names = sorted(windows)
    vertices = Vertices(settings.graph)
    vertices.require(names)
    profiles: NDArray[np.float32] | None = None
    if settings.graph.source == "profiles":
        task = ForecastingTask(settings)
        days = [reported_days(task.gather([windows[name]], 1), settings) for name in names]
        empty = np.zeros((0, settings.data.period), np.float32)
        profiles = np.concatenate([empty, *(day.numpy() for day in days)])
    adjacency = vertices.adjacency(names, profiles)
    labels = communities(adjacency, settings.seed)
    community_of: dict[str, Community] = {}
    for label in set(labels.tolist()):
        rows = np.flatnonzero(labels == label)
        members = [windows[names[row]] for row in rows]
        community = Community(members, normalised(adjacency[np.ix_(rows, rows)]))
        community_of |= {member.name: community for member in members}
    return community_of


def _joined(client: ClientWindows, community: Community, widest: int, times: int) -> ClientWindows:
    """Return the client with samples [n, M·v + M + j], where M = `widest` is the largest community.

    times: j, the number of time columns at the end of a sample.
    """
    values = client.inputs.shape[1] - times  # v
    rows = np.stack([_at_times_of(client, member, values) for member in community.members], axis=1)
    mixed = np.einsum("lm,nmv->nlv", community.near, rows)
    place = [member.name for member in community.members].index(client.name)
    near = np.broadcast_to(community.near[place], (len(rows), len(community.members)))
    lacking = widest - len(community.members)
    mixed = np.pad(mixed, ((0, 0), (0, lacking), (0, 0))).reshape(len(rows), -1)
    near = np.pad(near, ((0, 0), (0, lacking)))
    inputs = np.concatenate([mixed, near, client.inputs[:, values:]], axis=1)
    return replace(client, inputs=inputs.astype(np.float32))


def _at_times_of(client: ClientWindows, member: ClientWindows, values: int) -> NDArray[np.float32]:
    """Return the member's windows at the client's times, [n, v]; 0, its train mean, if missing."""
    aligned = np.zeros((len(client.inputs), values), np.float32)
    # The last sample ends where its series ends, so the ends give the shift between two series.
    later = (client.end - len(client.inputs)) - (member.end - len(member.inputs))
    first, end = max(0, -later), min(len(aligned), len(member.inputs) - later)
    if first < end:
        aligned[first:end] = member.inputs[first + later : end + later, :values]
    return aligned
