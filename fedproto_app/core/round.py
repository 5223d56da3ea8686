"""The input of a strategy in a round: arrays by client, without any message.

A strategy's `update` and `guide` see only `Received` and `Round`, so a test can call them with
two small arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays, keys_of
from fedproto_app.core.messages import Arrays
from fedproto_app.core.sends import Sends
from fedproto_app.core.stored import AnyArray

# Combines the rows [N, …] of N ≥ 1 clients into one […]: their mean, or a robust rule's result.
Combine = Callable[[NDArray[np.float32]], NDArray[np.float32]]

_TOTAL, _REPLIES, _VALUES = "total", "fresh", "values"


class ClientReply(NamedTuple):
    """The reply of one client. Its arrays have no client axis. Arrays by class have one row for
    each of the client's `classes`, in that order."""

    key: ClientKey
    samples: int
    arrays: Arrays
    classes: Sequence[int] = ()

    def by_class(self, name: str) -> dict[int, NDArray[np.float32]]:
        """Return the rows of an array by class."""
        return dict(zip(self.classes, self.arrays[name], strict=True))


class SentModel(NamedTuple):
    """A model from a client, or the mean of the models of a node's clients (then client is "").

    samples, clients: the numbers of samples and clients that the model comes from.
    """

    key: ClientKey
    samples: int
    clients: int
    arrays: Arrays


class Total(NamedTuple):
    """The sums over a round's clients if masks hide each client's values.

    values: the sums by name. A sum of arrays by class is [C, …]. clients: the number of clients.
    by_class: for each class, how many clients have it [C]. groups: the sums over each group of
    enough nodes, if the method asks for them (`Sends.by_group`). Checkpoints do not keep these.
    """

    values: Mapping[str, NDArray[np.float64]]
    clients: int
    by_class: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    groups: Mapping[str, Total] = MappingProxyType({})


def mean_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of clients' rows [N, …], summed in float64."""
    mean: NDArray[np.float32] = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


@dataclass
class Round:
    """What a strategy knows about a round, and what it reports.

    number: the number of the round, from 1. facts: the declarations of every client that ever took
    part. class_names: the names of the labels. evaluated: whether the round's models are
    evaluated. refused: for each client whose values are not used, the reason. figures: the numbers
    that the method reports about the round.
    """

    number: int = 1
    facts: Mapping[ClientKey, ClientFacts] = field(default_factory=dict)
    class_names: Sequence[str] = ()
    evaluated: bool = True
    refused: dict[ClientKey, str] = field(default_factory=dict)
    figures: dict[str, float | None] = field(default_factory=dict)


class Received:
    """The arrays that clients sent in this round, and each client's latest remembered arrays.

    fresh: this round's accepted replies, in the order of the clients' names. total: the newest
    round's sums if masks hide each client's values.
    """

    def __init__(self, releases: Sequence[Sends] = (), combine: Combine = mean_of) -> None:
        self._combine = combine
        array_releases = [release for release in releases if not release.parameters]
        self._remembered = [
            n for release in array_releases if release.remember == "latest" for n in release.arrays
        ]
        self._of_round = {
            name: release.rows
            for release in array_releases
            if release.remember == "round"
            for name in release.arrays
        }
        self._latest: dict[ClientKey, Arrays] = {}
        self.total: Total | None = None
        self._means: dict[str, NDArray[np.float32]] = {}
        self.fresh: Sequence[ClientReply] = ()

    def take(self, replies: Sequence[ClientReply]) -> None:
        """Replace the replies of the previous round."""
        self.fresh, self._means = sorted(replies, key=lambda reply: reply.key), {}
        for reply in replies:
            latest = {n: reply.arrays[n] for n in self._remembered if n in reply.arrays}
            if latest:
                self._latest[reply.key] = latest

    def take_total(self, total: Total) -> None:
        """Replace everything received so far with a round's sums."""
        self.total, self._means = total, {}

    @property
    def clients(self) -> list[ClientKey]:
        """The clients whose latest values are remembered, in the order of their names."""
        return sorted(self._latest)

    @property
    def senders(self) -> list[ClientKey]:
        """The same clients in the order of their first replies."""
        return list(self._latest)

    def latest(self, key: ClientKey) -> Arrays | None:
        """Return a client's latest remembered arrays, or None if it has not sent any yet."""
        return self._latest.get(key)

    def stacked(self, name: str, clients: Sequence[ClientKey] | None = None) -> NDArray[np.float32]:
        """Return the latest arrays of these N ≥ 1 clients [N, …], by default of `self.clients`."""
        keys = self.clients if clients is None else clients
        return np.stack([self._latest[key][name] for key in keys])

    def totals(self) -> Arrays:
        """Return the sum of each remembered array over the clients as float32, or {} if there is
        none yet. Clients are added in the order of their names."""
        sums: dict[str, NDArray[np.float64]] = {}
        for key in self.clients:
            for name, array in self._latest[key].items():
                if name not in sums:
                    sums[name] = np.zeros(array.shape)
                sums[name] += array
        return {name: total.astype(np.float32) for name, total in sums.items()}

    def mean(self, name: str) -> NDArray[np.float32] | None:
        """Return the mean over the clients, or the result of the robust rule if one is set.

        The mean of a remembered array is taken over the latest values of all clients that ever
        replied, the mean of another array over this round's clients. With masked sums it is always
        over the newest round's clients. Return None if no client has sent the array yet, or if
        this round has none.
        """
        if name not in self._means:
            if self.total is not None:
                if name in self.total.values:
                    mean = self.total.values[name] / self.total.clients
                    self._means[name] = mean.astype(np.float32)
            elif name in self._remembered and self._latest:
                self._means[name] = self._combine(self.stacked(name))
            elif name not in self._remembered and self._has(name):
                self._means[name] = self._combine(np.stack([r.arrays[name] for r in self.fresh]))
        return self._means.get(name)

    def _has(self, name: str) -> bool:
        """Whether clients send the array in this round."""
        return bool(self.fresh) and name in self.fresh[0].arrays

    def class_means(
        self, name: str, classes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]] | None:
        """Return the mean of each class over this round's clients that have it [C, …], and whether
        any client has the class [C]. The mean is 0 for a class that none has. Return None if no
        client sent a row."""
        if self.total is not None and name not in self.total.values:
            return None
        if self.total is not None:
            counts = self.total.by_class
            sums = self.total.values[name]
            divisors = np.maximum(counts, 1).reshape(-1, *[1] * (sums.ndim - 1))
            return (sums / divisors).astype(np.float32), counts > 0
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for reply in self.fresh if self._has(name) else ():
            for label, row in reply.by_class(name).items():
                rows.setdefault(label, []).append(row)
        if not rows:
            return None
        means = np.zeros((classes, *next(iter(rows.values()))[0].shape), np.float32)
        for label, class_rows in rows.items():
            means[label] = self._combine(np.stack(class_rows))
        return means, np.isin(np.arange(classes), list(rows))

    def state(self) -> dict[str, AnyArray]:
        """Return what a checkpoint must hold: the remembered arrays in the order of `senders`, and
        the arrays that the next round's guidance may use."""
        if self.total is not None:
            return self._state_of_total(self.total)
        latest: dict[str, AnyArray] = {}
        if self._latest:
            stacked = {name: self.stacked(name, self.senders) for name in self._remembered}
            latest = {**key_arrays(self.senders), **stacked}
        return {**latest, **self._state_of_round()}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore what `state` returned."""
        self._means = {}
        if total := of_group(state, _TOTAL):
            values = of_group(total, _VALUES)
            self.total = Total(values, int(total["clients"]), total["by-class"])
        if "names" in state:
            for row, key in enumerate(keys_of(state)):
                self._latest[key] = {name: state[name][row] for name in self._remembered}
        if replies := of_group(state, _REPLIES):
            self.fresh = _replies_of(replies)

    def _state_of_total(self, total: Total) -> dict[str, AnyArray]:
        """Return the state of the sums, without the model's, whose mean the server has already."""
        names = [n for n in (*self._remembered, *self._of_round) if n in total.values]
        if not names:
            return {}
        values = under(_VALUES, {name: total.values[name] for name in names})
        counts = {"clients": np.array(total.clients), "by-class": np.array(total.by_class)}
        return under(_TOTAL, {**values, **counts})

    def _state_of_round(self) -> dict[str, AnyArray]:
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
        table = {
            **key_arrays(reply.key for reply in self.fresh),
            "samples": np.array([reply.samples for reply in self.fresh]),
            "counts": np.array([len(reply.classes) for reply in self.fresh]),
            "classes": np.array([label for reply in self.fresh for label in reply.classes], int),
            "by-class": np.array(by_class, dtype=np.str_),
        }
        return under(_REPLIES, {**table, **under(_VALUES, arrays)})


def _replies_of(state: Mapping[str, AnyArray]) -> list[ClientReply]:
    """Return the replies that this state holds."""
    replies, start = [], 0
    arrays, by_class = of_group(state, _VALUES), set(state["by-class"].tolist())
    for row, key in enumerate(keys_of(state)):
        places = slice(start, start + int(state["counts"][row]))
        client_arrays = {
            n: value[places] if n in by_class else value[row] for n, value in arrays.items()
        }
        classes = state["classes"][places].tolist()
        replies.append(ClientReply(key, int(state["samples"][row]), client_arrays, classes))
        start = places.stop
    return replies


def under(group: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the arrays with ``group/`` before their names, as in a state."""
    return {f"{group}/{name}": array for name, array in arrays.items()}


def of_group(state: Mapping[str, AnyArray], group: str) -> dict[str, AnyArray]:
    """Return the arrays of a state whose names begin with ``group/``, without this prefix."""
    start = group + "/"
    return {n.removeprefix(start): array for n, array in state.items() if n.startswith(start)}
