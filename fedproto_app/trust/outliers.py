"""Refuse values that are finite, but far larger than training produces (design rule 5).

A client with huge values would dominate every mean and every comparison. Values that are far larger
than the model that was sent, or than the other clients' values, are refused by name before a
strategy sees them. If the server sees only a masked sum, nodes check their own values. Values
within these bounds can still be false (docs/robust.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.core.sends import Expected
from fedproto_app.maths.steps import longest_mean

LARGEST_VALUE = 1e15  # the squares of all values of a model can still be added up in float32
MOST_GROWTH = 100.0  # factor by which a model's root mean square may grow in one round


def root_mean_square(arrays: Collection[NDArray[np.float32]]) -> float:
    """Return the root mean square of all values together, or 0 without values."""
    count = sum(array.size for array in arrays)
    squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)
    return float(np.sqrt(squares / count)) if count else 0.0


def growth_fault(model: Mapping[str, NDArray[np.float32]], before: float) -> str | None:
    """Return why these arrays cannot be a node's or client's model after a round, or None.

    before: the root mean square of the model that the round began with. A value below 1 is taken
    as 1, because a model may start at 0.
    """
    size, limit = root_mean_square(model.values()), MOST_GROWTH * max(before, 1.0)
    if size > limit:
        return f"its model has a root mean square of {size:g}, more than the accepted {limit:g}"
    return None


def value_fault(name: str, values: NDArray[np.float32]) -> str | None:
    """Return why these values are invalid, or None."""
    if not np.isfinite(values).all():
        return f"its {name!r} holds NaN or infinite values"
    if values.size and np.abs(values).max() > LARGEST_VALUE:
        return f"its {name!r} holds values beyond ±{LARGEST_VALUE:g}"
    return None


# The limit as a multiple of the round's usual size. All clients start from one model, and honest
# clients differ by much smaller factors.
LARGEST_FACTOR = 10.0


def largest_accepted(sizes: Mapping[ClientKey, float]) -> float:
    """Return the limit on clients' sizes ≥ 0. It is a multiple of the usual size (`usual`)."""
    of_node: dict[str, list[float]] = {}
    for key, size in sizes.items():
        of_node.setdefault(key.node, []).append(size)
    return LARGEST_FACTOR * usual(list(of_node.values()))


def largest(sizes: Mapping[ClientKey, float], reason: str) -> dict[ClientKey, str]:
    """Return the clients of a round whose size exceeds the limit, with the reason to refuse them.

    sizes: ≥ 0. reason: how the reason begins, for example "its prototype is not used: its length
    is".
    """
    limit = largest_accepted(sizes)
    return {
        key: f"{reason} {sizes[key]:.3g}, more than {limit:.3g}, {LARGEST_FACTOR:g} times "
        "what is usual in the round"
        for key in sorted(sizes)
        if 0 < limit < sizes[key]
    }


MOST_BEYOND = 1000.0  # limit on a client's root mean square, as a multiple of the round's median
FEWEST = 3  # nodes or clients. With fewer, a median cannot single out an outlier


def rows_of(reply: Reply, spec: Expected) -> Iterator[tuple[str, str, NDArray[np.float32]]]:
    """Yield array name, client name and the client's values, for all arrays that are not means.

    A client has one row of an array. In arrays by class, it has one row per class.
    """
    by_class = [reply.names[row] for row in reply.owners]
    for name, array in reply.arrays.items():
        if name not in spec.mean:
            owners = reply.names if name in spec.per_client else by_class
            for client, values in zip(owners, array, strict=True):
                yield name, client, values


def sizes_of(orders: Sequence[Arrays]) -> list[float]:
    """Return the root mean square of each order's arrays. Orders often have the same arrays."""
    keys = [tuple(map(id, arrays.values())) for arrays in orders]
    # `orders` keeps all arrays alive, so equal ids always mean the same array.
    distinct = dict(zip(keys, orders, strict=True))
    sizes = {key: root_mean_square(arrays.values()) for key, arrays in distinct.items()}
    return [sizes[key] for key in keys]


def out_of_line(replies: Mapping[str, Reply], spec: Expected) -> dict[tuple[str, str], str]:
    """Return the outliers of a round, by node and client, with the reason to refuse them.

    If at least three clients send an array, each client's root mean square is compared with the
    usual size. A usual size below 1 is taken as 1, because honest values may be almost 0.
    """
    sizes: dict[str, dict[str, list[tuple[str, float]]]] = {}  # by array and node
    for node, reply in replies.items():
        for name, client, values in rows_of(reply, spec):
            if name not in spec.of_any_size:
                client_sizes = sizes.setdefault(name, {}).setdefault(node, [])
                client_sizes.append((client, root_mean_square([values])))
    refused = {}
    for name, by_node in sizes.items():
        of_nodes = [[size for _, size in client_sizes] for client_sizes in by_node.values()]
        limit = MOST_BEYOND * max(usual(of_nodes), 1.0)
        for node, client_sizes in by_node.items():
            for client, size in client_sizes:
                if size > limit:
                    refused[node, client] = (
                        f"its {name!r} has a root mean square of {size:g}, far beyond the "
                        f"others'; at most {limit:g} is accepted"
                    )
    return refused


def long_steps(replies: Mapping[str, Reply]) -> dict[str, str]:
    """Return the nodes of a round whose mean may have moved far more than is usual for a client,
    with the reason to refuse them.

    In the first round, nodes do not know a limit. Later they shorten longer steps themselves.
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


FEWEST_AGREE = 5  # nodes. With fewer, the agreement of the others would mean little
MOST_COMPARED = 100  # nodes, so that the work does not grow with the square of their number
MOST_OPPOSED = 0.3  # as a cosine. For honest nodes with few classes each it was up to 0.13


def opposed_steps(
    replies: Mapping[str, Reply], starts: Mapping[str, Arrays], names: Collection[str]
) -> dict[str, str]:
    """Return the nodes of a round whose mean step is opposed to most others', with the reason to
    refuse them.

    For such a node, the cosines with three quarters of the other nodes' steps lie below the limit.
    If three of ten nodes are hostile, they are thus named although they agree with each other. Two
    kinds of honest clients that pull in opposite directions are not named.

    starts: the model that each node received. names: the arrays of the mean.
    """
    nodes = [node for node, reply in replies.items() if names and set(names) <= reply.arrays.keys()]
    if len(nodes) < FEWEST_AGREE:
        return {}
    compared = range(0, len(nodes), math.ceil(len(nodes) / MOST_COMPARED))
    products, squares = np.zeros((len(nodes), len(compared))), np.zeros(len(nodes))
    for name in names:
        rows = np.stack([(replies[n].arrays[name] - starts[n][name]).ravel() for n in nodes])
        products += rows @ rows[compared].T
        squares += np.square(rows, dtype=np.float64).sum(axis=1)
    lengths = np.sqrt(np.maximum(squares, 1e-30))
    cosines = products / lengths[:, None] / lengths[compared]
    cosines[compared, range(len(compared))] = np.nan  # each with itself
    agreement = np.nanquantile(cosines, 0.75, axis=1, method="lower")
    return {
        node: "its mean step is opposed to those of most other nodes: with three quarters of them "
        f"its cosine is {cosine:.2f} or less, but at least {-MOST_OPPOSED:g} is expected"
        for node, cosine in zip(nodes, agreement.tolist(), strict=True)
        if cosine < -MOST_OPPOSED
    }


def usual(of_nodes: Sequence[Sequence[float]]) -> float:
    """Return the usual size of clients, from the sizes by node.

    This is the median over nodes of each node's median. A node with many clients thus gets no more
    weight than others. With fewer than three nodes it is the median over clients. With fewer than
    three clients it is infinite. Medians are lower medians, which half of the senders cannot raise.
    """
    nodes = [sizes for sizes in of_nodes if sizes]
    if len(nodes) >= FEWEST:
        return median_low([median_low(sizes) for sizes in nodes])
    all_sizes = [size for sizes in nodes for size in sizes]
    return median_low(all_sizes) if len(all_sizes) >= FEWEST else math.inf
