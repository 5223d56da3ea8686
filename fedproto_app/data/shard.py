"""The clients of one node, ready to train."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedproto_app.core.errors import DataError
from fedproto_app.data.shape import DataShape


class ClientData(Protocol):
    """One client's data at its node.

    train_samples: how many there are in all stages. group: the client's group if known, else "".
    missing_share: the share of missing values. class_counts: numbers of train samples, with a row
    per stage and a column per class, or () without classes. note: a remark for a person, or "".
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
    """The clients of a node, by name.

    refused: why clients cannot take part, by name. derived: the clients, with other samples, that a
    first phase of a run makes from these. The key is a digest of the data that the phase received.
    """

    clients: Mapping[str, ClientData]
    refused: dict[str, str]
    shape: DataShape = field(default_factory=DataShape)
    derived: dict[str, dict[str, ClientData]] = field(default_factory=dict, compare=False)

    def absent(self, clients: Sequence[str]) -> dict[str, str]:
        """Return the reason for each of these clients that is not in the shard."""
        return {
            name: self.refused.get(name, "not a client of this node")
            for name in clients
            if name not in self.clients
        }


def groups_in(path: str) -> dict[str, str]:
    """Return each client's group from a CSV file with a column of clients and one of groups.

    A header is read as a client that nobody has. Raises `DataError` if the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return dict(csv.reader(file))
    except (OSError, ValueError, csv.Error) as fault:
        reason = f"expected lines of a client and its group: {fault}"
        raise DataError(f"data.groups = {path!r}: {reason}") from None
