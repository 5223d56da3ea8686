"""A number for every two clients, while clients come, leave and return."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedproto_app.maths.clustering import Matrix

Rows = NDArray[np.intp]  # of clients, by the order in which they were first heard


class PairMemory:
    """[N, N] of all clients ever heard; `unknown` for two that were never there together.

    Pairs of which one is away keep what they have.
    """

    def __init__(self, unknown: float) -> None:
        self._unknown = unknown
        self.values: Matrix = np.zeros((0, 0), np.float32)

    def of(self, rows: Rows, clients: int) -> Matrix:
        """What is remembered of these clients [n, n]. clients: how many were ever heard, N."""
        whole = self._with_newcomers(clients)
        return whole if len(rows) == clients else whole[np.ix_(rows, rows)]

    def remember(self, values: Matrix, rows: Rows, clients: int) -> None:
        """Enter what is new of these clients [n, n]."""
        if len(rows) == clients:
            self.values = values
        else:
            self.values = self._with_newcomers(clients)
            self.values[np.ix_(rows, rows)] = values

    def _with_newcomers(self, clients: int) -> Matrix:
        """A copy with rows of clients that it does not have yet."""
        return np.pad(self.values, (0, clients - len(self.values)), constant_values=self._unknown)
