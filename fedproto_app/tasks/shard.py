"""The clients that one node holds, ready to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from fedproto_app.data.images.clients import make_image_clients, partition_pool
from fedproto_app.data.images.partition import Holding
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.sequences.clients import make_sequence_clients
from fedproto_app.data.sequences.clusters import deal_sequences
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.shape import DataShape
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import make_windows, why_refused
from fedproto_app.settings import SEQUENCE_TASKS, DataSettings, Settings
from fedproto_app.tasks.eligibility import (
    require_fitting_source,
    require_fitting_stages,
    require_fitting_targets,
)
from fedproto_app.tasks.task import ClientData


@dataclass(frozen=True)
class Shard:
    """clients: by name. refused: the reason for each client that cannot take part."""

    clients: Mapping[str, ClientData]
    refused: dict[str, str]
    shape: DataShape = field(default_factory=DataShape)

    def absent(self, clients: Sequence[str]) -> dict[str, str]:
        """Why each of these clients that the shard does not hold cannot work."""
        return {
            name: self.refused.get(name, "not a client of this node")
            for name in clients
            if name not in self.clients
        }


def load_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Every `partitions`-th client of the source, from the `partition`-th on (0 and 1: all).

    Raises `DataError` if the source cannot be read; clients that cannot take part are listed.
    """
    require_fitting_source(settings)
    if settings.task == "forecasting":
        return series_shard(load_series(settings.data)[partition::partitions], settings.data)
    if settings.task in SEQUENCE_TASKS:
        return _sequence_shard(settings, partition, partitions)
    # Nodes of a simulation share processes; a site's pool need not stay in memory.
    deal = _dealt_once if partitions > 1 else _dealt
    pool, holdings = deal(settings.data, settings.seed)
    clients, refused = make_image_clients(pool, holdings[partition::partitions], settings.data)
    require_fitting_stages(settings, [len(client.stages) for client in clients.values()])
    return Shard(clients, refused, DataShape(pool.shape, pool.classes))


def _dealt(settings: DataSettings, seed: int) -> tuple[ImagePool, list[Holding]]:
    pool = load_pool(settings)
    return pool, partition_pool(pool, settings, seed)


_dealt_once = lru_cache(maxsize=1)(_dealt)


def _sequence_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    load = _sequences_once if partitions > 1 else load_sequences
    pool = load(settings.data)
    require_fitting_targets(settings, pool)
    holdings = deal_sequences(pool, settings.data, settings.seed)[partition::partitions]
    clients, refused = make_sequence_clients(pool, holdings, settings.data, settings.seed)
    return Shard(clients, refused, DataShape((len(pool.dimensions),), pool.classes))


_sequences_once = lru_cache(maxsize=1)(load_sequences)


def series_shard(series: Sequence[ClientSeries], settings: DataSettings) -> Shard:
    """Windows of all clients that have enough data, reasons for the rest."""
    refused = {one.name: reason for one in series if (reason := why_refused(one, settings))}
    windows = {one.name: make_windows(one, settings) for one in series if one.name not in refused}
    return Shard(windows, refused)
