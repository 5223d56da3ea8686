"""What a server remembers of each client: the arrays that it sent last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.messages import Arrays
from fedproto_app.server.roster import ClientKey, key_arrays, keys_of


class LatestArrays:
    """The latest arrays of every client ever heard from, of the same names and shapes for all.

    Clients stand in the order of their names, so that sums over them are reproducible.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._latest: dict[ClientKey, Arrays] = {}

    def keep(self, key: ClientKey, arrays: Arrays) -> None:
        """In place of what the client sent before. arrays: one client's, without its axis."""
        self._latest[key] = {name: arrays[name] for name in self._names}

    def of(self, key: ClientKey) -> Arrays | None:
        """What the client sent last, None if nothing yet."""
        return self._latest.get(key)

    def clients(self) -> list[ClientKey]:
        """Who was ever heard from, in the order of names."""
        return sorted(self._latest)

    def stacked(self, name: str) -> NDArray[np.float32]:
        """[N, …] one of the arrays of the N ≥ 1 `clients`."""
        return np.stack([self._latest[key][name] for key in self.clients()])

    def totals(self) -> Arrays:
        """The sum of each array over the clients, float32; none before anyone was heard from."""
        if not self._latest:
            return {}
        sums = {
            name: np.zeros(array.shape) for name, array in self._latest[self.clients()[0]].items()
        }
        for key in self.clients():
            for name, total in sums.items():
                total += self._latest[key][name]
        return {name: total.astype(np.float32) for name, total in sums.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        """All of it, for a checkpoint."""
        if not self._latest:
            return {}
        arrays = {name: self.stacked(name) for name in self._names}
        return {**key_arrays(self.clients()), **arrays}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """What `state` gave."""
        for row, key in enumerate(keys_of(state) if state else []):
            self.keep(key, {name: state[name][row] for name in self._names})
