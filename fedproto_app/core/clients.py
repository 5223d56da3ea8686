"""Clients as the server knows them: their names, what their nodes declared, and their results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.messages import SampleTimes
from fedproto_app.core.metrics import Metric, metric_of, metric_row
from fedproto_app.core.stored import AnyArray

KeyT = TypeVar("KeyT")


class ClientKey(NamedTuple):
    """A client's name in the federation. Keys sort by client first, whichever node has it."""

    client: str
    node: str


def node_keys(node: str, names: Iterable[str]) -> list[ClientKey]:
    """Return the keys of a node's clients, in this order."""
    return [ClientKey(name, node) for name in names]


def key_arrays(keys: Iterable[ClientKey]) -> dict[str, NDArray[np.str_]]:
    """Return the clients' ``names`` and ``nodes`` as arrays for a file."""
    listed = list(keys)
    return {
        "names": np.array([key.client for key in listed], dtype=np.str_),
        "nodes": np.array([key.node for key in listed], dtype=np.str_),
    }


def keys_of(arrays: Mapping[str, AnyArray]) -> list[ClientKey]:
    """Return the clients that `key_arrays` wrote."""
    names, nodes = arrays["names"].tolist(), arrays["nodes"].tolist()
    return [ClientKey(name, node) for name, node in zip(names, nodes, strict=True)]


@dataclass(frozen=True)
class ClientFacts:
    """What a node declares about one client.

    samples: the number of train samples, plus the validation samples if the method learns from
    them too (`Method.learns_from_validation`). It is 0 for a client that is never asked to train.
    group: the client's group according to its site or its source, or "". class_counts: train
    samples by stage and class, () if the node does not report them or the task has no classes.
    times: the times of its samples, None if the method does not use them.
    """

    samples: int
    group: str
    missing_share: float
    class_counts: tuple[tuple[int, ...], ...] = ()
    times: SampleTimes | None = None


def groups_of_nodes(facts: Mapping[ClientKey, ClientFacts]) -> dict[str, str]:
    """Return the group of each node, or "" if its clients belong to different groups."""
    groups: dict[str, str] = {}
    for key, of_client in facts.items():
        first = groups.setdefault(key.node, of_client.group)
        groups[key.node] = first if first == of_client.group else ""
    return groups


def of_enough(group_of: Mapping[KeyT, str], least: int) -> dict[str, list[KeyT]]:
    """Return the members of each group that has at least `least`. The rest form the group "".

    If the rest are too few themselves, the smallest groups join them.
    """
    groups: dict[str, list[KeyT]] = defaultdict(list)
    for key, name in group_of.items():
        groups[name].append(key)
    ungrouped = groups.pop("", [])
    for name in sorted(groups, key=lambda name: (len(groups[name]), name)):
        if len(groups[name]) < least or 0 < len(ungrouped) < least:
            ungrouped += groups.pop(name)
    return {**groups, "": ungrouped} if ungrouped else dict(groups)


@dataclass
class ClientResult:
    """A client's latest metrics, and the round of its kept model (0: it has none yet)."""

    metrics: dict[Metric, float] = field(default_factory=dict)
    kept_round: int = 0

    def memory(self) -> list[Any]:
        """Return the result for a checkpoint."""
        rows = [[metric_row(metric), value] for metric, value in self.metrics.items()]
        return [rows, self.kept_round]

    @staticmethod
    def from_memory(rows: Iterable[tuple[Sequence[Any], float]], kept_round: int) -> ClientResult:
        """Return the result that `memory` wrote."""
        return ClientResult({metric_of(row): value for row, value in rows}, kept_round)


def metric_values(
    results: Mapping[ClientKey, ClientResult],
    metric: Metric,
    keys: Iterable[ClientKey] | None = None,
) -> list[float]:
    """Return a metric's values in the order of the keys. Clients without a value are left out."""
    chosen = sorted(results if keys is None else set(keys) & set(results))
    return [results[key].metrics[metric] for key in chosen if metric in results[key].metrics]
