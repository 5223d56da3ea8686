"""Values that are finite, and of no size that training comes to (design rule 5).

One client whose values are huge would own every mean and every comparison. What is far beyond what
was sent, or beyond what the others of the round send, is refused by name before a strategy sees it.
What stays within these bounds can still be a lie; `docs/reliability.md` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.core.sends import Expected
from fedproto_app.maths.sizes import root_mean_square

MOST_BEYOND = 1000.0  # a client's root mean square against the median of the round's
FEWEST = 3  # nodes or clients of which a median tells who is out of line


class Row(NamedTuple):
    """One client's values of an array."""

    name: str
    client: str
    values: NDArray[np.float32]


def rows_of(reply: Reply, spec: Expected) -> Iterator[Row]:
    """Each client's own rows of the arrays that are not means, by class one row a class."""
    by_class = [reply.names[row] for row, classes in enumerate(reply.classes) for _ in classes]
    for name, array in reply.arrays.items():
        if name not in spec.mean:
            owners = reply.names if name in spec.per_client else by_class
            for client, values in zip(owners, array, strict=True):
                yield Row(name, client, values)


class SizeOfSame:
    """The root mean square of orders' arrays, measured once where several bring the same ones."""

    def __init__(self) -> None:
        self._last: list[NDArray[np.float32]] = []  # kept, so that no other array takes its place
        self._size = 0.0

    def __call__(self, arrays: Arrays) -> float:
        values = list(arrays.values())
        same = len(values) == len(self._last) and all(map(is_, values, self._last))
        if not same:
            self._last, self._size = values, root_mean_square(values)
        return self._size


def out_of_line(replies: Mapping[str, Reply], spec: Expected) -> dict[tuple[str, str], str]:
    """Who is out of line with the others of a round: by node and client, with the reason.

    An array's root mean square is held against what is usual among those who send it, if three
    do. What is usual counts as 1 where it is less, as honest values may be next to nothing.
    """
    sizes: dict[str, dict[str, list[tuple[str, float]]]] = {}  # by array and node
    for node, reply in replies.items():
        for row in rows_of(reply, spec):
            if row.name in spec.of_any_size:
                continue
            its = sizes.setdefault(row.name, {}).setdefault(node, [])
            its.append((row.client, root_mean_square([row.values])))
    found = {}
    for name, by_node in sizes.items():
        of_nodes = [[size for _, size in its] for its in by_node.values()]
        limit = MOST_BEYOND * max(usual(of_nodes), 1.0)
        for node, its in by_node.items():
            for client, size in its:
                if size > limit:
                    found[node, client] = (
                        f"its {name!r} has a root mean square of {size:g}, far beyond the "
                        f"others'; at most {limit:g} is believed"
                    )
    return found


def usual(of_nodes: Sequence[Sequence[float]]) -> float:
    """What is usual among clients' sizes, which are given by node.

    The median over nodes of each one's median, so that no node counts by its many clients; that
    over clients where there are fewer than three nodes; infinite for fewer clients, too. Of two
    medians it is the lower: half of the senders cannot raise it.
    """
    nodes = [sizes for sizes in of_nodes if sizes]
    if len(nodes) >= FEWEST:
        return median_low([median_low(sizes) for sizes in nodes])
    every = [size for sizes in nodes for size in sizes]
    return median_low(every) if len(every) >= FEWEST else math.inf
