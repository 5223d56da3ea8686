"""Refuse values that are finite, but far larger than training produces (design rule 5).

A client with huge values would dominate every mean and every comparison. Values far larger than the
model that was sent, or than the other clients' values, are refused by name before a strategy sees
them. Values within these bounds can still be false (docs/robust.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.core.sends import Expected
from fedproto_app.maths.sizes import root_mean_square
from fedproto_app.maths.steps import longest_mean

# The limit, as a multiple of the round's usual size. All clients start from one model, and honest
# clients differ by far less.
LARGEST_FACTOR = 10.0


def largest_believed(sizes: Mapping[ClientKey, float]) -> float:
    """Return the limit for clients' sizes ≥ 0, a multiple of the usual size (`usual`)."""
    of_node: dict[str, list[float]] = {}
    for key, size in sizes.items():
        of_node.setdefault(key.node, []).append(size)
    return LARGEST_FACTOR * usual(list(of_node.values()))


def largest(sizes: Mapping[ClientKey, float], reason: str) -> dict[ClientKey, str]:
    """Return the clients of a round whose size exceeds the limit, with the reason to refuse them.

    sizes: ≥ 0. reason: its beginning, for example "its prototype is not used: its length is".
    """
    limit = largest_believed(sizes)
    return {
        key: f"{reason} {sizes[key]:.3g}, more than {limit:.3g}, {LARGEST_FACTOR:g} times "
        "what is usual in the round"
        for key in sorted(sizes)
        if 0 < limit < sizes[key]
    }


MOST_BEYOND = 1000.0  # limit of a client's root mean square, as a multiple of the round's median
FEWEST = 3  # nodes or clients that a median needs to single out an outlier


class Row(NamedTuple):
    """One client's values of an array."""

    name: str
    client: str
    values: NDArray[np.float32]


def rows_of(reply: Reply, spec: Expected) -> Iterator[Row]:
    """Yield each client's rows of the arrays that are not means; by class, one row per class."""
    by_class = [reply.names[row] for row, classes in enumerate(reply.classes) for _ in classes]
    for name, array in reply.arrays.items():
        if name not in spec.mean:
            owners = reply.names if name in spec.per_client else by_class
            for client, values in zip(owners, array, strict=True):
                yield Row(name, client, values)


class SizeOfSame:
    """The root mean square of orders' arrays, computed once if several orders have the same."""

    def __init__(self) -> None:
        self._last: list[
            NDArray[np.float32]
        ] = []  # a reference, so that no other array gets its id
        self._size = 0.0

    def __call__(self, arrays: Arrays) -> float:
        values = list(arrays.values())
        unchanged = len(values) == len(self._last) and all(map(is_, values, self._last))
        if not unchanged:
            self._last, self._size = values, root_mean_square(values)
        return self._size


def out_of_line(replies: Mapping[str, Reply], spec: Expected) -> dict[tuple[str, str], str]:
    """Return the outliers of a round, by node and client, with the reason to refuse them.

    An array's root mean square is compared with the usual size among the clients that send it, if
    at least three do. A usual size below 1 counts as 1, because honest values may be almost 0.
    """
    sizes: dict[str, dict[str, list[tuple[str, float]]]] = {}  # by array and node
    for node, reply in replies.items():
        for row in rows_of(reply, spec):
            if row.name in spec.of_any_size:
                continue
            client_sizes = sizes.setdefault(row.name, {}).setdefault(node, [])
            client_sizes.append((row.client, root_mean_square([row.values])))
    refused = {}
    for name, by_node in sizes.items():
        of_nodes = [[size for _, size in client_sizes] for client_sizes in by_node.values()]
        limit = MOST_BEYOND * max(usual(of_nodes), 1.0)
        for node, client_sizes in by_node.items():
            for client, size in client_sizes:
                if size > limit:
                    refused[node, client] = (
                        f"its {name!r} has a root mean square of {size:g}, far beyond the "
                        f"others'; at most {limit:g} is believed"
                    )
    return refused


def long_steps(replies: Mapping[str, Reply]) -> dict[str, str]:
    """Return the nodes of a round whose mean may have moved far more than is usual for a client,
    with the reason to refuse them.

    In the first round nodes know no limit. Later they shorten longer steps themselves.
    """
    steps = {node: reply.steps for node, reply in replies.items() if reply.steps}
    limit = LARGEST_FACTOR * usual(list(steps.values()))
    moved = {node: longest_mean(steps[node], replies[node].samples) for node in steps}
    return {
        node: f"its clients' models moved by {size:.3g}, more than {limit:.3g}, "
        f"{LARGEST_FACTOR:g} times what is usual in the round"
        for node, size in moved.items()
        if 0 < limit < size
    }


def usual(of_nodes: Sequence[Sequence[float]]) -> float:
    """Return the usual size of clients; of_nodes: the sizes by node.

    This is the median over nodes of each node's median, so that many clients do not give a node
    more weight. With fewer than three nodes it is the median over clients, and infinite with fewer
    than three clients. Medians are lower medians, which half of the senders cannot raise.
    """
    nodes = [sizes for sizes in of_nodes if sizes]
    if len(nodes) >= FEWEST:
        return median_low([median_low(sizes) for sizes in nodes])
    all_sizes = [size for sizes in nodes for size in sizes]
    return median_low(all_sizes) if len(all_sizes) >= FEWEST else math.inf
