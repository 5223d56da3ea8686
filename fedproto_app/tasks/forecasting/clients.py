"""Load the clients of a source of series, ready to train, or say why they cannot take part."""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.core.loading import load
from fedproto_app.core.methods import method_named
from fedproto_app.data.series import ClientSeries, notes_of
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.data.shared_read import read_once
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import make_windows, why_refused
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.table import Admission

POOLS: tuple[type, ...] = ()


def load_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Return the windows of a node's clients, or what the method builds from all clients."""
    all_series = read_once(load_series, settings.data, keep=partitions > 1)
    node_series = all_series[partition::partitions]
    method = method_named(settings.method)
    if method.joined_clients:
        join = load(method.joined_clients, f"the clients of {method.name}")
        joined: Shard = join(settings, node_series, all_series)
        return joined
    return series_shard(node_series, settings.data)


def read(settings: Settings) -> None:
    """Read the source for all nodes of this process and of processes forked from it."""
    read_once(load_series, settings.data)


def series_shard(series: Sequence[ClientSeries], settings: DataSettings) -> Shard:
    """Return the windows of all clients with enough data, and the reasons for the others."""
    refused = {
        client.name: reason for client in series if (reason := why_refused(client, settings))
    }
    windows = {
        client.name: make_windows(client, settings)
        for client in series
        if client.name not in refused
    }
    columns = series[0].columns if series else ()
    steps = dict.fromkeys(client.clock.rhythm for client in series if client.clock)
    return Shard(windows, refused, DataShape(columns=columns, step=" and ".join(sorted(steps))))


def admission(settings: Settings) -> Admission:
    """Return which clients of the source can take part. No windows are cut."""
    all_series = load_series(settings.data)
    reasons = {series.name: why_refused(series, settings.data) for series in all_series}
    return Admission(reasons, notes_of(all_series))
