"""What is finite and still cannot be honest: far larger than what the others of a round sent."""

from __future__ import annotations

from collections.abc import Mapping

from fedproto_app.core.clients import ClientKey
from fedproto_app.trust.outliers import usual

# So many times what is usual in the round. All start from one model, and honest clients
# differ by far less.
LARGEST_FACTOR = 10.0


def largest_believed(sizes: Mapping[ClientKey, float]) -> float:
    """The limit for clients' sizes ≥ 0, by what is usual among their nodes (`usual`)."""
    of_node: dict[str, list[float]] = {}
    for key, size in sizes.items():
        of_node.setdefault(key.node, []).append(size)
    return LARGEST_FACTOR * usual(list(of_node.values()))


def largest(sizes: Mapping[ClientKey, float], what: str) -> dict[ClientKey, str]:
    """The clients of a round whose size is beyond the limit, with the reason to refuse them.

    sizes: ≥ 0. what: the reason's beginning, as in "its prototype is not used: its length is".
    """
    limit = largest_believed(sizes)
    return {
        key: f"{what} {sizes[key]:.3g}, more than {limit:.3g}, {LARGEST_FACTOR:g} times "
        "what is usual in the round"
        for key in sorted(sizes)
        if 0 < limit < sizes[key]
    }
