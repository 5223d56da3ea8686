"""Clients as the server knows them: their names, and what their nodes declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.messages import SampleTimes


class ClientKey(NamedTuple):
    """A client's name in the federation; sorts by client name, so shards do not matter."""

    client: str
    node: str


def key_arrays(keys: Iterable[ClientKey]) -> dict[str, NDArray[np.str_]]:
    """``names`` and ``nodes`` of the clients, for a file of arrays."""
    listed = list(keys)
    return {
        "names": np.array([key.client for key in listed], dtype=np.str_),
        "nodes": np.array([key.node for key in listed], dtype=np.str_),
    }


def keys_of(arrays: Mapping[str, NDArray[Any]]) -> list[ClientKey]:
    """The clients that `key_arrays` wrote."""
    names, nodes = arrays["names"].tolist(), arrays["nodes"].tolist()
    return [ClientKey(name, node) for name, node in zip(names, nodes, strict=True)]


@dataclass(frozen=True)
class ClientFacts:
    """What a node declared of its client.

    samples: train samples. group: its true group or "". class_counts: train samples by stage and
    class, () where the node does not tell or nothing is classified. times: of its samples, None
    where the method need not know.
    """

    samples: int
    group: str
    missing_share: float
    class_counts: tuple[tuple[int, ...], ...] = ()
    times: SampleTimes | None = None
