"""What is finite and still cannot be honest: far larger than what the others of a round sent."""

from __future__ import annotations

from collections.abc import Mapping

from fedproto_app.messages import Refusal
from fedproto_app.server.federation import Federation
from fedproto_app.server.outliers import usual
from fedproto_app.server.roster import ClientKey

# So many times what is usual in the round. All start from one model, and honest clients
# differ by far less.
LARGEST_FACTOR = 10.0


def largest_believed(sizes: Mapping[ClientKey, float]) -> float:
    """The limit for clients' sizes ≥ 0, by what is usual among their nodes (`usual`)."""
    of_node: dict[str, list[float]] = {}
    for key, size in sizes.items():
        of_node.setdefault(key.node, []).append(size)
    return LARGEST_FACTOR * usual(list(of_node.values()))


def refuse_largest(
    federation: Federation, sizes: Mapping[ClientKey, float], what: str
) -> set[ClientKey]:
    """The clients of a round whose size is beyond the limit; they are refused.

    sizes: ≥ 0. what: the reason's beginning, as in "its prototype is not used: its length is".
    """
    limit = largest_believed(sizes)
    beyond = {key for key, size in sizes.items() if 0 < limit < size}
    for key in sorted(beyond):
        told = f"{what} {sizes[key]:.3g}, more than {limit:.3g}, {LARGEST_FACTOR:g} times "
        federation.refuse(Refusal(key.node, key.client, told + "what is usual in the round"))
    return beyond
