"""The clients that one node holds, ready to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import ClientWindows, make_windows, why_refused
from fedproto_app.settings import DataSettings


@dataclass(frozen=True)
class Shard:
    """windows: by client name. refused: the reason for each client that cannot take part."""

    windows: dict[str, ClientWindows]
    refused: dict[str, str]

    def absent(self, clients: Sequence[str]) -> dict[str, str]:
        """Why each of these clients that the shard does not hold cannot work."""
        return {
            name: self.refused.get(name, "not a client of this node")
            for name in clients
            if name not in self.windows
        }


def load_shard(settings: DataSettings, partition: int, partitions: int) -> Shard:
    """Every `partitions`-th client of the source, from the `partition`-th on (0 and 1: all).

    Raises `DataError` if the source cannot be read; clients that cannot take part are listed.
    """
    return make_shard(load_series(settings)[partition::partitions], settings)


def make_shard(series: Sequence[ClientSeries], settings: DataSettings) -> Shard:
    """Windows of all clients that have enough data, reasons for the rest."""
    refused = {one.name: reason for one in series if (reason := why_refused(one, settings))}
    windows = {one.name: make_windows(one, settings) for one in series if one.name not in refused}
    return Shard(windows, refused)
