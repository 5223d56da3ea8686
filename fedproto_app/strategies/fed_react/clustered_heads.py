"""Base of the server half of methods that share heads within clusters.

In a round, clients fit a head and send it (train). The server combines them into the clusters'
heads. A client whose cluster has a new head gets it and is evaluated with it (evaluate). Each node
gets the encoder once. Methods implement `cluster`, which assigns clients to clusters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import ClientReply, Received, Round, of_group, under
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.linear_heads import Head
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.learner import HEAD, HEADS
from fedproto_app.tasks.sequences.task import LARGEST_HEAD, SequenceTask
from fedproto_app.tasks.table import make_task

# How the server combines a cluster's heads over the rounds: Fed-REACT, section 2, A1 to A3.
#
# A smoother belongs to one cluster. Each `update` takes θ_t, the cluster's mean head of this
# round, and returns θ̂_t, the head that its clients get. Fed-REACT, eqs. 5 and 6 are read as θ̂_t
# from θ̂_{t−1} and θ_t. As printed (θ̂_{t+1} from θ̂_t and θ_t, with θ̂_1 = θ_1) the first head
# would count twice, and the mean (Fed-REACT, eq. 5) would not be the sample mean that the text
# calls it.
#
# Heads can have any shape, such as [C, D + 1]; a result has its head's shape and dtype.
#
# A random walk under a Kalman filter and smoother, and its variances by the EM algorithm.
#
# Source: Fed-REACT, appendix B, after Shumway & Stoffer, "An approach to time series smoothing and
# forecasting using the EM algorithm", Journal of Time Series Analysis 3(4), 1982. The model is
#     x_t = x_{t−1} + q_t,  y_t = x_t + r_t,  q_t ~ N(0, qI),  r_t ~ N(0, rI),
# the paper's with F = H = I, Q = qI, R = rI and P_0 = I (Fed-REACT, section 4.1.2). All covariances
# are a number times I, whatever the number P of coordinates.
#
# The tests check it against the general matrix form, where Fed-REACT, eq. 14 must transpose F and
# Fed-REACT, eq. 18 must be P_{t,t−1|N} = P_{t|N} G_{t−1}ᵀ: the printed P⁺_{t−1} G_{t−1} ignores the
# later observations.

Array = NDArray[np.float64]

# The smallest variance that EM returns. Data that are constant or free of noise drive a variance to
# 0, where the next filter would divide 0 by 0.
VARIANCE_FLOOR = 1e-12

START_VARIANCE = 1.0  # of x_0: P_0 = I


def newest_state(observations: Array, q: float, r: float) -> Array:
    """Return x̂_T, the newest state, [P], of observations [T, P] (Fed-REACT, eqs. 9 to 13).

    Filter and smoother agree on it. q, r > 0: the variances of the process and of the measurement,
    the same for all coordinates. x_0 has the first observation as its mean and variance 1; that
    observation also counts as y_1. So the state of a single observation is that observation.
    """
    state: Array = observations[0].copy()
    for observation, gain in zip(observations, _walk(len(observations), q, r).gains, strict=True):
        state += gain * (observation - state)  # Fed-REACT, eqs. 9 and 12
    return state


def fit_random_walk(
    observations: Array, q: float, r: float, iterations: int
) -> tuple[float, float]:
    """Return q and r after this number of EM steps (Fed-REACT, eqs. 20 and 21).

    observations: [T, P], T ≥ 1; the model is the same as in `newest_state`, starting at q, r > 0.
    Both are means over the coordinates and at least VARIANCE_FLOOR: a single observation, or equal
    observations, make them smaller with every step. The log-likelihood never falls.

    The observations enter only through their [T, T] matrix of products, so a step costs T³ for any
    number of coordinates.
    """
    deviations = observations - observations[0]
    products = deviations @ deviations.T / observations.shape[1]
    for _ in range(iterations):
        q, r = _fit_step(products, q, r)
    return q, r


def _fit_step(products: Array, q: float, r: float) -> tuple[float, float]:
    """Return q and r after an E step and an M step.

    products: [T, T], the mean over the coordinates of (y_s−y_1)(y_t−y_1).

    With D the deviations y − y_1, the smoothed states deviate by M D, so that a sum of squares like
    |y − x̂|² is the trace of (I − M) D Dᵀ (I − M)ᵀ.
    """
    steps = len(products)
    walk = _walk(steps, q, r)
    weights = walk.covariance()[:, 1:] / r  # M, (T + 1, T)
    states = weights @ products
    jumps = np.vdot(np.diff(weights, axis=0), np.diff(states, axis=0))
    residuals = np.vdot(np.eye(steps) - weights[1:], products - states[1:])
    spread = walk.smoothed[1:]
    # Var(x_t − x_{t−1}), in a form without differences of nearly equal numbers.
    jump_spread = (1 - walk.smoother_gains) ** 2 * spread + walk.smoother_gains * q
    new_q = (jumps + jump_spread.sum()) / steps
    new_r = (residuals + spread.sum()) / steps
    return max(float(new_q), VARIANCE_FLOOR), max(float(new_r), VARIANCE_FLOOR)


@dataclass(frozen=True, eq=False)
class _Walk:
    """The gains and variances of T steps of a random walk, for any observations; P = p I."""

    gains: Array  # K_1 … K_T, (T,)
    smoother_gains: Array  # G_0 … G_{T−1}, (T,)
    smoothed: Array  # p_{0|T} … p_{T|T}, (T + 1,)

    def covariance(self) -> Array:
        """Return Cov(x_s, x_t) of a coordinate given all T observations, [T + 1, T + 1].

        For s ≤ t it is G_s ⋯ G_{t−1} p_{t|T}; Fed-REACT, eq. 18 is the case s = t − 1. Column t
        divided by r gives the weights of y_t in the states.
        """
        logarithms = np.append(0.0, np.log(self.smoother_gains).cumsum())
        decay = np.exp(-np.abs(logarithms[:, None] - logarithms))
        step = np.arange(len(self.smoothed))
        covariance: Array = decay * self.smoothed[np.maximum(step[:, None], step)]
        return covariance


def _walk(steps: int, q: float, r: float) -> _Walk:
    """Compute Fed-REACT, eqs. 10, 11, 13, 14 and 16, without differences, so that all values stay
    positive."""
    gains, smoother_gains = np.empty(steps), np.empty(steps)
    variance = START_VARIANCE
    for t in range(steps):
        predicted = variance + q  # Fed-REACT, eq. 10
        smoother_gains[t] = variance / predicted  # Fed-REACT, eq. 14
        gains[t] = predicted / (predicted + r)  # Fed-REACT, eq. 11
        variance = gains[t] * r  # Fed-REACT, eq. 13
    smoothed = np.empty(steps + 1)
    smoothed[steps] = variance
    for t in range(steps, 0, -1):  # Fed-REACT, eq. 16, as p⁺ − G² p⁻ = G q
        smoothed[t - 1] = smoother_gains[t - 1] ** 2 * smoothed[t] + smoother_gains[t - 1] * q
    return _Walk(gains, smoother_gains, smoothed)


AnyHead = NDArray[np.floating[Any]]
State = Mapping[str, AnyArray]


class HeadSmoother(ABC):
    """One cluster's estimate of its head."""

    @abstractmethod
    def update(self, head: AnyHead, forgetting_factor: float) -> AnyHead:
        """Return the estimate after this round's head. forgetting_factor: α_t, 0 … 1."""

    @abstractmethod
    def state(self) -> dict[str, AnyArray]:
        """Return the state for a checkpoint; empty before the first update."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Restore the arrays of `state`, bit for bit."""


class NoSmoothing(HeadSmoother):
    """The newest head as it is."""

    def update(self, head: AnyHead, forgetting_factor: float) -> AnyHead:
        return head

    def state(self) -> dict[str, AnyArray]:
        return {}

    def restore(self, state: State) -> None:
        pass


class _Average(HeadSmoother):
    """share · estimate + (1 − share) · head; the first estimate is the first head."""

    def __init__(self) -> None:
        self._rounds = 0
        self._estimate: NDArray[np.float64] | None = None

    @abstractmethod
    def _share_of_past(self, rounds: int, forgetting_factor: float) -> float:
        """Return the old estimate's share after this number of rounds."""

    def update(self, head: AnyHead, forgetting_factor: float) -> AnyHead:
        newest = head.astype(np.float64)
        if self._estimate is None:
            self._estimate = newest
        else:
            share = self._share_of_past(self._rounds, forgetting_factor)
            self._estimate = share * self._estimate + (1 - share) * newest
        self._rounds += 1
        return self._estimate.astype(head.dtype)

    def state(self) -> dict[str, AnyArray]:
        if self._estimate is None:
            return {}
        return {"rounds": np.array(self._rounds), "estimate": self._estimate}

    def restore(self, state: State) -> None:
        self._rounds = int(state["rounds"]) if state else 0
        self._estimate = state["estimate"] if state else None


class RunningMean(_Average):
    """A1: the mean of all heads so far (Fed-REACT, eq. 5)."""

    def _share_of_past(self, rounds: int, forgetting_factor: float) -> float:
        return rounds / (rounds + 1)


class ForgettingMean(_Average):
    """A2: the past's share is the forgetting factor α_t (Fed-REACT, eq. 6)."""

    def _share_of_past(self, rounds: int, forgetting_factor: float) -> float:
        return forgetting_factor


class KalmanSmoothing(HeadSmoother):
    """A3: the heads are noisy observations of a random walk; its newest state is the estimate.

    Each update runs EM from the initial variances over all heads so far. Filter and smoother agree
    on the newest state. The heads are stored as float32.
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

    def state(self) -> dict[str, AnyArray]:
        return {"history": np.stack(self._history)} if self._history else {}

    def restore(self, state: State) -> None:
        self._history = list(state["history"]) if state else []


Fitted = Mapping[ClientKey, ClientReply]  # the clients' heads of a round, by client


class ClusteredHeadStrategy(PersonalStrategy):
    """Takes the clients' heads and sends the clusters' heads."""

    section: FedReactSettings

    def __init__(
        self, settings: Settings, section: FedReactSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._compare_numbers()
        task = make_task(settings, federation.shape)
        assert isinstance(task, SequenceTask)
        self.task = task
        self.head_shape = (task.outputs, task.representation_dim + 1)
        self._heard: set[ClientKey] = set()
        self._equipped: set[int] = set()  # Flower's ids of the nodes that have the encoder
        self._pending: dict[ClientKey, Head] = {}  # heads to send before the next evaluation

    def shown(self) -> Arrays:
        """Return the arrays that every client gets before it fits its head."""
        return {}

    def _compare_numbers(self) -> None:
        """Raise `FederationError` if a simulation has fewer clients than clusters, else warn."""
        members, clusters = self.federation.members, self.section.clusters
        clients = len(members.clients())
        if clusters <= clients:
            return
        fault = f"fed-react.clusters = {clusters}: more than the {clients} clients there are"
        if members.is_simulation:
            raise FederationError(fault)
        log(WARNING, "%s so far; others may join", fault)

    @abstractmethod
    def cluster(self, fitted: Fitted, round_: Round) -> dict[ClientKey, Head]:
        """Take in the heads of a round; return the new head of each client that gets one.

        fitted: the heads in the order of the clients' names, so that sums are reproducible.
        """

    def chosen(self, eligible: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Choose by the round of this phase, so that a loaded encoder gives the same choice."""
        of_task = round_.number - self.settings.pretraining_rounds
        unheard = set(eligible) - self._heard
        return self.federation.selection.choose(eligible, of_task, unheard)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """Return the encoder for a node that does not have it."""
        lacks = self._node_id(clients[0].node) not in self._equipped
        return self.model if lacks else {}

    def evaluates_with_training(self, round_: Round) -> bool:
        return False

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return Guidance(self.shown())

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        limit = self.section.samples  # |M_t|, the head's weight in the mean; 0: all
        if 0 < limit < reply.samples:
            return f"reports {reply.samples} train samples, expected 1 … {limit}"
        largest = float(np.abs(reply.arrays[HEAD]).max())
        beyond = largest > LARGEST_HEAD
        return f"its head holds ±{largest:g}, more than {LARGEST_HEAD:g}" if beyond else None

    def update(self, received: Received, round_: Round) -> None:
        fitted = {reply.key: reply for reply in sorted(received.fresh, key=lambda reply: reply.key)}
        self._heard |= set(fitted)
        self._pending |= self.cluster(fitted, round_)

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients that have sent a head, of nodes that have the encoder."""
        return [
            key
            for key in clients
            if key in self._heard and self._node_id(key.node) in self._equipped
        ]

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        guided = [key for key in clients if key in self._pending]
        if not guided:
            return Guidance()
        heads = np.stack([self._pending[key] for key in guided])
        return Guidance({HEADS: heads}, [key.client for key in guided])

    def answered(
        self, asked_nodes: Collection[str], clients: Sequence[ClientKey], *, evaluation: bool
    ) -> None:
        """Send the encoder again to nodes that did not reply: they may have lost their disk."""
        self._equipped -= {self._node_id(node) for node in asked_nodes}
        self._equipped |= {self._node_id(key.node) for key in clients}
        if evaluation:
            for key in clients:
                self._pending.pop(key, None)

    def state(self) -> dict[str, AnyArray]:
        """Return the clients that have sent a head, and the heads that still must be sent."""
        if not self._heard:
            return {}
        shape = (len(self._pending), *self.head_shape)
        heads = np.array(list(self._pending.values()), np.float32).reshape(shape)
        reported, pending = key_arrays(sorted(self._heard)), key_arrays(self._pending)
        return under("heard", reported) | under("pending", {**pending, "heads": heads})

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of `state`. All nodes get the encoder again."""
        if reported := of_group(state, "heard"):
            self._heard = set(keys_of(reported))
            pending = of_group(state, "pending")
            self._pending = dict(zip(keys_of(pending), pending["heads"], strict=True))

    def head_of(self, members: Iterable[ClientReply]) -> NDArray[np.float64]:
        """Return a cluster's head: the clients' mean weighted by samples, or the result of another
        aggregation rule, which weighs clients equally."""
        if self.averaging.is_mean:
            return weighted_head(members)
        return self.averaging.rows(np.stack([reply.arrays[HEAD] for reply in members])).astype(
            float
        )

    def _node_id(self, node: str) -> int:
        return self.federation.members.node_id(node)


def weighted_head(replies: Iterable[ClientReply]) -> NDArray[np.float64]:
    """Return θ^c_t = Σ |M^k|·θ^k / Σ |M^j| over a cluster's clients (Fed-REACT, Algorithm 2, line
    9)."""
    members = list(replies)
    weights = np.array([reply.samples for reply in members], dtype=np.float64)
    stacked = np.stack([reply.arrays[HEAD] for reply in members]).astype(np.float64)
    mean: NDArray[np.float64] = np.tensordot(weights / weights.sum(), stacked, axes=1)
    return mean
