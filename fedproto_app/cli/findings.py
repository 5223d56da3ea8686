"""How the checks of all kinds of data put what they found into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

NAMED = 5  # clients, classes or files in one line


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def span(values: NDArray[Any]) -> str:
    """The lowest and the highest of these numbers, or the only one."""
    low, high = (
        str(value) if values.dtype.kind == "i" else f"{value:.4g}"
        for value in (values.min(), values.max())
    )
    return low if low == high else f"{low} … {high}"


def reasons(refused: Mapping[str, str]) -> list[tuple[str, str]]:
    """(the clients, briefly; the reason) of every reason. refused: by client."""
    by_reason: dict[str, list[str]] = {}
    for client, reason in refused.items():
        by_reason.setdefault(reason, []).append(client)
    return [(some(clients), reason) for reason, clients in by_reason.items()]
