"""FCGCN: FedAvg of graph convolutional networks over communities of clients (docs: compared.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.method import Method
from fedproto_app.core.section import Count, Section, setting
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shard import Shard
from fedproto_app.data.windows import ClientWindows
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import DECODER
from fedproto_app.models.linear import linear, linear_parameters, with_prefixes
from fedproto_app.models.model import ENCODER, LinearHeadModel
from fedproto_app.settings import Settings
from fedproto_app.strategies.fedavg import FedAvgLearner, FedAvgStrategy
from fedproto_app.tasks.forecasting.clients import series_shard
from fedproto_app.tasks.forecasting.task import ForecastingTask, window_layout
from fedproto_compared.common.adjacency import Adjacency, communities, normalised
from fedproto_compared.common.vertices import Vertices, reported_days

# A graph convolutional network over the clients of a community, as one client forecasts with it.
#
# Xia, Jin and Chen (IEEE T-ITS 2023) train a GCN (Kipf and Welling, ICLR 2017). From the
# community's normalised adjacency Â and its clients' windows X of one time, two layers compute
#     Y = Â ReLU(Â X W₁ + b₁) W₂ + b₂
# With a ReLU on Y, as in some programs, no forecast could be below a client's mean, so Y has none.


class CommunityGcn(LinearHeadModel):
    """Compute a client's row of Y from samples [K, B, M·v + M + j]. Its community has M members.

    A sample holds the v values of each member's row of Â X, member by member, then the client's row
    of Â, then the numbers of the time. What is beside the target, such as its calendar, is added to
    every member's row. The row of Â is 0 for padding members.
    """

    def __init__(self, hidden: int, layout: WindowLayout) -> None:
        super().__init__(hidden, layout.horizon, DECODER)
        self._layout = layout

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        width = self._layout.values + self._layout.beside_width
        drawn = linear_parameters(width, self.representation_dim, generator)
        return with_prefixes({ENCODER: drawn})

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Return the client's row of Â ReLU(Â X W₁ + b₁), [K, B, hidden]."""
        (samples,) = inputs
        size, values = samples.shape[1], self._layout.values
        front, _ = self._layout.split(samples)
        members = front.shape[-1] // (values + 1)
        flat, near = torch.split(front, [members * values, members], dim=-1)
        rows = flat.reshape(-1, size, members, values)
        beside = self._layout.blocks(samples).beside().unsqueeze(2).expand(-1, -1, members, -1)
        rows = torch.cat([rows, beside], dim=3)
        hidden = linear(parameters, ENCODER, rows.flatten(1, 2)).relu()
        hidden = hidden.reshape(-1, size, members, self.representation_dim)
        row: Tensor = (near.unsqueeze(3) * hidden).sum(dim=2)
        return row


class FcgcnSettings(Section):
    """``[fcgcn]``."""

    hidden: Count = setting(64, "width of the first graph convolution")


def community_gcn(settings: Settings, layout: WindowLayout) -> CommunityGcn:
    """Return the model of a community."""
    return CommunityGcn(settings.method_table(FcgcnSettings).hidden, layout)


# A client sees the raw windows of all members of its community. This is possible only in a
# simulation, where every node reads the whole source, so that all find the same communities.


@dataclass(frozen=True)
class Community:
    """members: their windows, in the order of names. near: Â [M, M] over the members."""

    members: list[ClientWindows]
    near: Adjacency


def with_communities(
    settings: Settings, node_series: Sequence[ClientSeries], all_series: Sequence[ClientSeries]
) -> Shard:
    """Return a node's clients, with samples for `CommunityGcn`.

    all_series: the series of the whole source. Raise `DataError` for a fault in the graph's file.
    """
    shard = series_shard(all_series, settings.data)
    windows = {
        name: client for name, client in shard.clients.items() if isinstance(client, ClientWindows)
    }
    community_of = communities_of(windows, settings)
    widest = max((len(community.members) for community in community_of.values()), default=0)
    layout = window_layout(settings.data)
    joined = {
        series.name: _joined(windows[series.name], community_of[series.name], widest, layout)
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


def _joined(
    client: ClientWindows, community: Community, widest: int, layout: WindowLayout
) -> ClientWindows:
    """Return the client with samples [n, M·v + M + j], where M = `widest` is the largest community.

    layout: the layout of the clients' own samples.
    """
    _, times = layout.split(client.inputs)
    rows = np.stack([_at_times_of(client, member, layout) for member in community.members], axis=1)
    mixed = np.einsum("lm,nmv->nlv", community.near, rows)
    place = [member.name for member in community.members].index(client.name)
    near = np.broadcast_to(community.near[place], (len(rows), len(community.members)))
    lacking = widest - len(community.members)
    mixed = np.pad(mixed, ((0, 0), (0, lacking), (0, 0))).reshape(len(rows), -1)
    near = np.pad(near, ((0, 0), (0, lacking)))
    inputs = np.concatenate([mixed, near, times], axis=1)
    return replace(client, make_inputs=lambda: inputs.astype(np.float32))


def _at_times_of(
    client: ClientWindows, member: ClientWindows, layout: WindowLayout
) -> NDArray[np.float32]:
    """Return the member's windows at the client's times, [n, v], 0 (its train mean) if missing."""
    aligned = np.zeros((len(client.targets), layout.values), np.float32)
    values, _ = layout.split(member.inputs)
    # The last sample ends where its series ends, so the ends give the shift between two series.
    later = (client.end - len(aligned)) - (member.end - len(values))
    first, end = max(0, -later), min(len(aligned), len(values) - later)
    if first < end:
        aligned[first:end] = values[first + later : end + later]
    return aligned


METHOD = Method(
    name="fcgcn",
    strategy=FedAvgStrategy,
    learner=FedAvgLearner,
    settings=FcgcnSettings,
    tasks=("forecasting",),
    model=f"{__name__}:community_gcn",
    joined_clients=f"{__name__}:with_communities",
    needs_simulation="the clients of a community see each other's values",
    cannot_predict=lambda settings: (
        "it needs the values of all clients of its community at the same time"
    ),
)
