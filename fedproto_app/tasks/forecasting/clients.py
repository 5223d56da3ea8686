"""The clients of a source of series: ready to train, or why they cannot take part."""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.core.loading import load
from fedproto_app.core.methods import method_named
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shard import Shard
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import make_windows, why_refused
from fedproto_app.settings import DataSettings, Settings


def load_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """The windows of a node's clients, or what a method makes of them and of all others."""
    every = load_series(settings.data)
    mine = every[partition::partitions]
    method = method_named(settings.method)
    if method.joined_clients:
        join = load(method.joined_clients, f"the clients of {method.name}")
        joined: Shard = join(settings, mine, every)
        return joined
    return series_shard(mine, settings.data)


def series_shard(series: Sequence[ClientSeries], settings: DataSettings) -> Shard:
    """Windows of all clients that have enough data, reasons for the rest."""
    refused = {one.name: reason for one in series if (reason := why_refused(one, settings))}
    windows = {one.name: make_windows(one, settings) for one in series if one.name not in refused}
    return Shard(windows, refused)


def reasons_against(settings: Settings) -> dict[str, str | None]:
    """Why each client of the source cannot take part, or None; no window is cut."""
    return {one.name: why_refused(one, settings.data) for one in load_series(settings.data)}
