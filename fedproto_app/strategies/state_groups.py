"""Groups of arrays in one state, each under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray


def under(group: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays with ``group/`` before their names, as a state has them."""
    return {f"{group}/{name}": array for name, array in arrays.items()}


def of_group(state: Mapping[str, NDArray[Any]], group: str) -> dict[str, NDArray[Any]]:
    """The arrays of a state whose names begin with ``group/``, without it."""
    start = group + "/"
    return {n.removeprefix(start): array for n, array in state.items() if n.startswith(start)}
