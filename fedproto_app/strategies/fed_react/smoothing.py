"""How the server combines a cluster's heads over the rounds: Fed-REACT, section 2, A1 to A3.

A smoother belongs to one cluster. Each `update` takes θ_t, the cluster's mean head of this round,
and returns θ̂_t, the head that its clients get. Here Fed-REACT, eqs. 5 and 6 compute θ̂_t from
θ̂_{t−1} and θ_t. As printed, they compute θ̂_{t+1} from θ̂_t and θ_t, with θ̂_1 = θ_1. Then the
first head would count twice, and the mean (Fed-REACT, eq. 5) would not be the sample mean that the
text calls it.

Heads can have any shape, such as [C, D + 1]. A result has the shape and dtype of its head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.strategies.fed_react.kalman import fit_random_walk, newest_state

AnyHead = NDArray[np.floating[Any]]
State = Mapping[str, NDArray[Any]]


class HeadSmoother(ABC):
    """One cluster's estimate of its head."""

    @abstractmethod
    def update(self, head: AnyHead, forgetting_factor: float) -> AnyHead:
        """Return the estimate after this round's head. forgetting_factor: α_t, 0 … 1."""

    @abstractmethod
    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint, which is empty before the first update."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Restore the arrays of `state`, bit for bit."""


class NoSmoothing(HeadSmoother):
    """The newest head as it is."""

    def update(self, head: AnyHead, forgetting_factor: float) -> AnyHead:
        return head

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: State) -> None:
        pass


class RunningMean(HeadSmoother):
    """A1: the mean of all heads so far (Fed-REACT, eq. 5)."""

    def __init__(self) -> None:
        self._rounds = 0
        self._estimate: NDArray[np.float64] | None = None

    def _share_of_past(self, forgetting_factor: float) -> float:
        """Return the weight of the old estimate in the new one."""
        return self._rounds / (self._rounds + 1)

    def update(self, head: AnyHead, forgetting_factor: float) -> AnyHead:
        newest = head.astype(np.float64)
        if self._estimate is None:
            self._estimate = newest
        else:
            share = self._share_of_past(forgetting_factor)
            self._estimate = share * self._estimate + (1 - share) * newest
        self._rounds += 1
        return self._estimate.astype(head.dtype)

    def state(self) -> dict[str, NDArray[Any]]:
        if self._estimate is None:
            return {}
        return {"rounds": np.array(self._rounds), "estimate": self._estimate}

    def restore(self, state: State) -> None:
        self._rounds = int(state["rounds"]) if state else 0
        self._estimate = state["estimate"] if state else None


class ForgettingMean(RunningMean):
    """A2: the weight of the past is the forgetting factor α_t (Fed-REACT, eq. 6)."""

    def _share_of_past(self, forgetting_factor: float) -> float:
        return forgetting_factor


class KalmanSmoothing(HeadSmoother):
    """A3: the heads are noisy observations of a random walk, whose newest state is the estimate.

    Each update runs EM on all heads so far, starting from the initial variances. Filter and
    smoother agree on the newest state. The heads are stored as float32.
    """

    def __init__(
        self, process_variance: float, measurement_variance: float, em_iterations: int
    ) -> None:
        self._process_variance = process_variance
        self._measurement_variance = measurement_variance
        self._em_iterations = em_iterations
        self._history: list[NDArray[np.float32]] = []

    def update(self, head: AnyHead, forgetting_factor: float) -> AnyHead:
        self._history.append(head.astype(np.float32))
        observations = np.stack(self._history, dtype=np.float64).reshape(len(self._history), -1)
        q, r = fit_random_walk(
            observations, self._process_variance, self._measurement_variance, self._em_iterations
        )
        return newest_state(observations, q, r).reshape(head.shape).astype(head.dtype)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"history": np.stack(self._history)} if self._history else {}

    def restore(self, state: State) -> None:
        self._history = list(state["history"]) if state else []
