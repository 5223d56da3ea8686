"""The clients that one node holds, ready to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedproto_app.data.shape import DataShape


class ClientData(Protocol):
    """One client's data at its node.

    train_samples: as many as it ever trains on. group: its true group where the source knows it,
    else "". missing_share: of its values. class_counts: train samples, a row a
    stage and a number a class, empty where nothing is classified. note: what a person should know
    of the data, or "".
    """

    @property
    def name(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def train_samples(self) -> int: ...
    @property
    def missing_share(self) -> float: ...
    @property
    def class_counts(self) -> tuple[tuple[int, ...], ...]: ...
    @property
    def note(self) -> str: ...


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
