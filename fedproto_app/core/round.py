"""What a strategy gets in a round, and what it gives: arrays by client, without any message.

A strategy's `update` and `guide` see `Received` and `Round` alone, so a test can call them with
two small arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays, keys_of
from fedproto_app.core.messages import Arrays
from fedproto_app.core.sends import Sends

# The rows [N, …] of N ≥ 1 clients → […]: their mean, or what a robust rule takes in its place.
Combine = Callable[[NDArray[np.float32]], NDArray[np.float32]]

_TOTAL, _FRESH, _VALUES = "total", "fresh", "values"


class ClientReply(NamedTuple):
    """What one client sent: arrays without the client axis; of arrays by class one row for each of
    its classes, in their order."""

    key: ClientKey
    samples: int
    arrays: Arrays
    classes: Sequence[int] = ()

    def by_class(self, name: str) -> dict[int, NDArray[np.float32]]:
        """The rows of an array by class."""
        return dict(zip(self.classes, self.arrays[name], strict=True))


class SentModel(NamedTuple):
    """A model that a client sent, or the mean of those of a node's clients (of the client "").

    samples, clients: of how many it is.
    """

    key: ClientKey
    samples: int
    clients: int
    arrays: Arrays


class Total(NamedTuple):
    """Sums over a round's clients, where masks hide each one's values.

    values: by name, of arrays by class [C, …]. clients: how many they are. by_class: [C] how many
    have each class.
    """

    values: Mapping[str, NDArray[np.float64]]
    clients: int
    by_class: NDArray[np.int64]


@dataclass(frozen=True)
class Guidance:
    """What the server sends to some clients, besides the parameters that it shares.

    arrays: the same for all clients; where `clients` are given, one row for each of these, and the
    others get nothing. classes: those of the rows of arrays by class. options: further numbers.
    """

    arrays: Arrays = field(default_factory=dict)
    clients: Sequence[ClientKey] = ()
    classes: Sequence[int] = ()
    options: Mapping[str, float] = field(default_factory=dict)


def mean_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean of clients' rows [N, …], summed in float64."""
    mean: NDArray[np.float32] = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


@dataclass
class Round:
    """What a strategy knows of a round, and what it reports.

    number: of the round, from 1. facts: what nodes declared of every client that ever came.
    class_names: the labels' names. evaluated: whether the round's models are evaluated.
    refused: clients whose values are not used, with the reason. figures: what the method reports
    of the round.
    """

    number: int = 1
    facts: Mapping[ClientKey, ClientFacts] = field(default_factory=dict)
    class_names: Sequence[str] = ()
    evaluated: bool = True
    refused: dict[ClientKey, str] = field(default_factory=dict)
    figures: dict[str, float | None] = field(default_factory=dict)


class Received:
    """What clients sent: in this round, and of what is remembered the latest of each.

    fresh: this round's replies that were accepted, in the order in which they came.
    """

    def __init__(self, releases: Sequence[Sends] = (), combine: Combine = mean_of) -> None:
        self._combine = combine
        own = [one for one in releases if not one.parameters]
        self._remembered = [n for one in own if one.remember == "latest" for n in one.arrays]
        self._of_round = {
            name: one.rows for one in own if one.remember == "round" for name in one.arrays
        }
        self._latest: dict[ClientKey, Arrays] = {}
        self._total: Total | None = None
        self._means: dict[str, NDArray[np.float32]] = {}
        self.fresh: Sequence[ClientReply] = ()

    def take(self, replies: Sequence[ClientReply]) -> None:
        """A round's replies, in place of those of the round before."""
        self.fresh, self._means = replies, {}
        for reply in replies:
            sent = {n: reply.arrays[n] for n in self._remembered if n in reply.arrays}
            if sent:
                self._latest[reply.key] = sent

    def take_total(self, total: Total) -> None:
        """A round's sums, in place of all that was there before."""
        self._total, self._means = total, {}

    @property
    def total(self) -> Total | None:
        """The newest round's sums, where masks hide each client's values."""
        return self._total

    @property
    def clients(self) -> list[ClientKey]:
        """Whose latest values are remembered, in the order of names."""
        return sorted(self._latest)

    @property
    def heard(self) -> list[ClientKey]:
        """The same clients in the order in which they were first heard."""
        return list(self._latest)

    def latest(self, key: ClientKey) -> Arrays | None:
        """What a client sent last of what is remembered, None before it sent anything."""
        return self._latest.get(key)

    def stacked(self, name: str, clients: Sequence[ClientKey] | None = None) -> NDArray[np.float32]:
        """[N, …] the latest of N ≥ 1 of these clients; None: of `clients`."""
        keys = self.clients if clients is None else clients
        return np.stack([self._latest[key][name] for key in keys])

    def totals(self) -> Arrays:
        """The sum of each remembered array over the clients, in the order of names, float32; none
        before anybody sent any."""
        sums: dict[str, NDArray[np.float64]] = {}
        for key in self.clients:
            for name, array in self._latest[key].items():
                if name not in sums:
                    sums[name] = np.zeros(array.shape)
                sums[name] += array
        return {name: total.astype(np.float32) for name, total in sums.items()}

    def mean(self, name: str) -> NDArray[np.float32] | None:
        """The mean over the clients, or what the robust rule in force makes of them.

        Of remembered arrays over the latest of all clients ever heard from, else over this round's
        clients; with masked sums always over the newest round's. None before anybody sent any, or
        in a round in which none is sent.
        """
        if name not in self._means:
            if self._total is not None:
                if name in self._total.values:
                    mean = self._total.values[name] / self._total.clients
                    self._means[name] = mean.astype(np.float32)
            elif name in self._remembered and self._latest:
                self._means[name] = self._combine(self.stacked(name))
            elif name not in self._remembered and self._has(name):
                rows = {reply.key: reply.arrays[name] for reply in self.fresh}
                self._means[name] = self._combine(np.stack([rows[key] for key in sorted(rows)]))
        return self._means.get(name)

    def _has(self, name: str) -> bool:
        """Whether the array is among those that are sent in this round."""
        return bool(self.fresh) and name in self.fresh[0].arrays

    def class_means(
        self, name: str, classes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]] | None:
        """The mean of each class over this round's clients that have it, [C, …], zeros for a class
        that none has; and which classes any has, [C]. None if nobody sent any row."""
        if self._total is not None and name not in self._total.values:
            return None
        if self._total is not None:
            counts = self._total.by_class
            sums = self._total.values[name]
            each = np.maximum(counts, 1).reshape(-1, *[1] * (sums.ndim - 1))
            return (sums / each).astype(np.float32), counts > 0
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for reply in sorted(self.fresh if self._has(name) else [], key=lambda reply: reply.key):
            for label, row in reply.by_class(name).items():
                rows.setdefault(label, []).append(row)
        if not rows:
            return None
        means = np.zeros((classes, *next(iter(rows.values()))[0].shape), np.float32)
        for label, its in rows.items():
            means[label] = self._combine(np.stack(its))
        return means, np.isin(np.arange(classes), list(rows))

    def state(self) -> dict[str, NDArray[Any]]:
        """All of it, for a checkpoint: what is remembered in the order of `heard`, and what the
        next round's guidance may be made of."""
        if self._total is not None:
            return self._state_of_total(self._total)
        latest: dict[str, NDArray[Any]] = {}
        if self._latest:
            stacked = {name: self.stacked(name, self.heard) for name in self._remembered}
            latest = {**key_arrays(self.heard), **stacked}
        return {**latest, **self._state_of_round()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self._means = {}
        if total := of_group(state, _TOTAL):
            values = of_group(total, _VALUES)
            self._total = Total(values, int(total["clients"]), total["by-class"])
        if "names" in state:
            for row, key in enumerate(keys_of(state)):
                self._latest[key] = {name: state[name][row] for name in self._remembered}
        if fresh := of_group(state, _FRESH):
            self.fresh = _replies_of(fresh)

    def _state_of_total(self, total: Total) -> dict[str, NDArray[Any]]:
        """Without the model's sums, of which the mean is the model."""
        names = [n for n in (*self._remembered, *self._of_round) if n in total.values]
        if not names:
            return {}
        values = under(_VALUES, {name: total.values[name] for name in names})
        counts = {"clients": np.array(total.clients), "by-class": np.array(total.by_class)}
        return under(_TOTAL, {**values, **counts})

    def _state_of_round(self) -> dict[str, NDArray[Any]]:
        if not (self._of_round and self.fresh):
            return {}
        arrays = {
            name: np.concatenate([reply.arrays[name] for reply in self.fresh])
            if rows == "class"
            else np.stack([reply.arrays[name] for reply in self.fresh])
            for name, rows in self._of_round.items()
            if self._has(name)
        }
        by_class = [name for name in arrays if self._of_round[name] == "class"]
        told = {
            **key_arrays(reply.key for reply in self.fresh),
            "samples": np.array([reply.samples for reply in self.fresh]),
            "counts": np.array([len(reply.classes) for reply in self.fresh]),
            "classes": np.array([label for reply in self.fresh for label in reply.classes], int),
            "by-class": np.array(by_class, dtype=np.str_),
        }
        return under(_FRESH, {**told, **under(_VALUES, arrays)})


def _replies_of(state: Mapping[str, NDArray[Any]]) -> list[ClientReply]:
    """The replies of which this is the state."""
    replies, start = [], 0
    arrays, by_class = of_group(state, _VALUES), set(state["by-class"].tolist())
    for row, key in enumerate(keys_of(state)):
        its = slice(start, start + int(state["counts"][row]))
        own = {n: value[its] if n in by_class else value[row] for n, value in arrays.items()}
        classes = state["classes"][its].tolist()
        replies.append(ClientReply(key, int(state["samples"][row]), own, classes))
        start = its.stop
    return replies


def under(group: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays with ``group/`` before their names, as a state has them."""
    return {f"{group}/{name}": array for name, array in arrays.items()}


def of_group(state: Mapping[str, NDArray[Any]], group: str) -> dict[str, NDArray[Any]]:
    """The arrays of a state whose names begin with ``group/``, without it."""
    start = group + "/"
    return {n.removeprefix(start): array for n, array in state.items() if n.startswith(start)}
