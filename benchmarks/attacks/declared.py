"""A node that declares 10⁹ samples for each of its clients, and what it then sends.

Three nodes share ten clients; the last of them lies. Figures are the honest clients' mean error
over their error without the attack.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, MessageType

from benchmarks.attacks.trial import CLIENTS
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays, Order
from fedproto_app.core.methods import METHODS
from fedproto_app.core.tasks import FIRST_TASK, small_run
from fedproto_app.core.wire import (
    ARRAYS,
    FIELDS,
    JSON,
    ROSTER,
    array_record,
    numpy_arrays,
    read_order,
)
from fedproto_app.engine.flower_parts import FIRST_ID
from fedproto_app.engine.local import AT_ONCE, LocalGrid, nodes_sharing
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_clients
from fedproto_app.server_app import conduct
from fedproto_app.settings import settings_from
from fedproto_app.settings.fit import releases_of

NODES, LIAR = 3, FIRST_ID + 2
DECLARED = 10**9 // 168 * 168  # a multiple of every period
FAR = -5.0  # every value of the model that is sent
TIMES = 1e6  # sums


class Sent(NamedTuple):
    """What the lying node sends: arrays, and how far it says that its clients' models moved."""

    arrays: Arrays
    step: float


Lie = Callable[[Order, Arrays], Sent]  # the order, and the honest arrays


def far_model(order: Order, honest: Arrays) -> Sent:
    """Return models whose every value is −5; sums of opposite targets, times 10⁶."""
    start = order.guidance.arrays
    arrays = {
        name: np.full_like(value, FAR) if name in start else _opposite(name, value)
        for name, value in honest.items()
    }
    return Sent(arrays, _length(arrays, start))


def longest_step(order: Order, honest: Arrays) -> Sent:
    """Return the model that lies on the way to −5 as far as the order allows, and sums of opposite
    targets that are as large as the honest ones."""
    start, (arrays, step) = order.guidance.arrays, far_model(order, honest)
    honest_step = _length(honest, start)
    limit = order.longest_step or 9.9 * honest_step  # in round 1, ten times what is usual
    factor = np.float32(limit / step) if step > limit else np.float32(1)
    moved = {
        name: start[name] + factor * (value - start[name])
        if name in start
        else _opposite(name, honest[name], 1.0)
        for name, value in arrays.items()
    }
    return Sent(moved, min(step, limit))


def _opposite(name: str, value: Any, times: float = TIMES) -> Any:
    if name == "counts":
        return value
    return np.asarray(np.float32(-times if name == "moment" else times) * value)


def _length(arrays: Arrays, start: Arrays) -> float:
    steps = [arrays[name].astype(np.float64) - start[name] for name in arrays if name in start]
    return float(np.sqrt(sum(np.square(step).sum() for step in steps)))


@dataclass(frozen=True)
class Trial:
    """A run. lie: None for an honest run. guarded: whether the two limits hold."""

    settings: Mapping[str, Any] = field(hash=False)
    metric: str
    lie: Lie | None
    guarded: bool


class DeclaringGrid(LocalGrid):
    """A grid whose last node declares and sends what a trial says."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.settings = settings_from({**trial.settings, **_limits(trial.guarded), **AT_ONCE})
        self._lie = trial.lie
        super().__init__(self.settings, nodes_sharing(self.settings.data, NODES, folder))

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if self._lie is None or message.metadata.dst_node_id != LIAR or reply is None:
            return reply
        if message.metadata.message_type == ROSTER:
            fields = _fields(reply)
            _say(reply, samples=dict.fromkeys(fields["samples"], DECLARED))
        elif message.metadata.message_type == MessageType.TRAIN:
            order, names = read_order(message), _fields(reply)["names"]
            count = min(DECLARED, order.most_samples or DECLARED)
            _say(reply, samples=[count] * len(names))
            if ARRAYS in reply.content:
                sent = self._lie(order, numpy_arrays(reply.content.array_records[ARRAYS]))
                reply.content[ARRAYS] = array_record(sent.arrays)
                if _fields(reply)["steps"]:
                    _say(reply, steps=[sent.step] * len(names))
        return reply


def _limits(guarded: bool) -> dict[str, float]:
    return {} if guarded else {"aggregation.weight-limit": 0.0, "aggregation.step-limit": 0.0}


def _fields(reply: Message) -> dict[str, Any]:
    text = reply.content.config_records[FIELDS][JSON]
    assert isinstance(text, bytes)
    fields: dict[str, Any] = json.loads(text)
    return fields


def _say(reply: Message, **changed: Any) -> None:
    reply.content.config_records[FIELDS][JSON] = json.dumps(_fields(reply) | changed).encode()


def error_of(trial: Trial) -> float | None:
    """Return the mean error of the honest nodes' clients; None if the run stopped."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        more = {"output.dir": place, "output.name": "run", "output.pictures": False, "keep": "last"}
        settings = {**trial.settings, **more}
        grid = DeclaringGrid(Trial(settings, trial.metric, trial.lie, trial.guarded), folder / "s")
        try:
            with RunFolder(grid.settings) as run:
                conduct(grid, grid.settings, run)
                rows = read_clients(run.path)
        except FederationError:
            return None
    honest = [row for row in rows if int(row["node"]) != LIAR - FIRST_ID]
    figures = [float(row[trial.metric]) for row in honest]
    higher = trial.metric.startswith("accuracy")
    return float(np.mean([1 - figure if higher else figure for figure in figures]))


def methods() -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield each method of forecasts that averages models or adds up sums, then those of images:
    name, settings and the column of clients.csv."""
    series = {
        **small_run(FIRST_TASK),
        "data.synthetic.clients": CLIENTS,
        "rounds": 10,
        "evaluate-every": 10,
    }
    for name, method in METHODS.items():
        if method.works_with(FIRST_TASK) and not method.pretraining:
            settings = settings_from({**series, "method": name})
            if any(release.combine in ("mean", "sum") for release in releases_of(method, settings)):
                yield name, {**series, "method": name}, "mse"
    yield (
        "analytic, federated",
        {**series, "method": "analytic", "analytic.sharing": "federated"},
        "mse",
    )
