"""A node that declares 10⁹ samples for each of its clients, and what it then sends.

Three nodes share ten clients, and the last node lies. Figures are the honest clients' mean error
over their error without the attack.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, MessageType, UserConfig

from benchmarks.attacks.trial import CLIENTS
from benchmarks.in_process import clients_of
from benchmarks.pages import table_texts
from fedproto_app.core.messages import Arrays, Order
from fedproto_app.core.tasks import FIRST_TASK
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
from fedproto_app.engine.local import LocalGrid
from fedproto_app.settings import Settings
from fedproto_app.tasks.table import small_run

NODES, LIAR = 3, FIRST_ID + 2
DECLARED = 10**9 // 168 * 168  # a multiple of every period
FAR = -5.0  # every value of the model that is sent
TIMES = 1e6  # sums
FIRST_ROUND = 9.0  # usual steps, where no limit is known yet and ten are refused
NOTE = (
    "One node of three declares 10⁹ samples for each client. It sends −5 in place of every "
    "value (sums: of opposite targets, times 10⁶), or its honest step reversed, as long as "
    "it may be (sums: of as many samples as it may claim). {command}: mean error of the honest "
    "clients, 5 rounds on series, 4 on images; {machine}."
)


class FalseReply(NamedTuple):
    """What the lying node sends: arrays, and how far it says that its clients' models moved."""

    arrays: Arrays
    step: float


# Of the order, the honest arrays, and the samples that may be claimed for each that exists.
Lie = Callable[[Order, Arrays, float], FalseReply]


def far_model(order: Order, honest: Arrays, claimed: float) -> FalseReply:
    """Return models whose every value is −5, and sums of opposite targets, times 10⁶."""
    start = order.guidance.arrays
    arrays = {
        name: np.full_like(value, FAR) if name in start else _opposite(name, value, TIMES)
        for name, value in honest.items()
    }
    return FalseReply(arrays, _length(arrays, start))


def longest_step(order: Order, honest: Arrays, claimed: float) -> FalseReply:
    """Return the honest step in the other direction, as long as the order allows, and sums of as
    many samples with opposite targets as may be claimed."""
    start, size = order.guidance.arrays, _length(honest, order.guidance.arrays)
    limit = order.longest_step or FIRST_ROUND * size
    factor = np.float32(limit / size) if size else np.float32(0)
    arrays = {
        name: start[name] - factor * (value - start[name])
        if name in start
        else _opposite(name, value, claimed)
        for name, value in honest.items()
    }
    return FalseReply(arrays, limit)


def _opposite(name: str, value: Any, times: float) -> Any:
    """Return sums of opposite targets, so many times. Prototypes are negated but not larger,
    because larger prototypes are refused."""
    if name.endswith("prototypes"):
        return np.asarray(-value)
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
    """A grid whose last node declares too many samples and sends a lie."""

    def __init__(self, lie: Lie, settings: Settings, configs: Sequence[UserConfig]) -> None:
        super().__init__(settings, configs)
        self._lie = lie

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.dst_node_id != LIAR or reply is None:
            return reply
        if message.metadata.message_type == ROSTER:
            fields = fields_of(reply)
            say(reply, samples=dict.fromkeys(fields["samples"], DECLARED))
        elif message.metadata.message_type == MessageType.TRAIN:
            order, names = read_order(message), fields_of(reply)["names"]
            count, true = min(DECLARED, order.most_samples or DECLARED), fields_of(reply)["samples"]
            say(reply, samples=[count] * len(names))
            if ARRAYS in reply.content:
                honest = numpy_arrays(reply.content.array_records[ARRAYS])
                false_reply = self._lie(order, honest, count / max(true))
                reply.content[ARRAYS] = array_record(false_reply.arrays)
                if fields_of(reply)["steps"]:
                    say(reply, steps=[false_reply.step] * len(names))
        return reply


def fields_of(reply: Message) -> dict[str, Any]:
    text = reply.content.config_records[FIELDS][JSON]
    assert isinstance(text, bytes)
    fields: dict[str, Any] = json.loads(text)
    return fields


def say(reply: Message, **changed: Any) -> None:
    reply.content.config_records[FIELDS][JSON] = json.dumps(fields_of(reply) | changed).encode()


def error_of(trial: Trial) -> float | None:
    """Return the mean error of the honest nodes' clients, or None without any."""
    weight, step = (5.0, 3.0) if trial.guarded else (0.0, 0.0)
    limits = {"aggregation.weight-limit": weight, "aggregation.step-limit": step}
    grid = partial(DeclaringGrid, trial.lie) if trial.lie else LocalGrid
    clients = clients_of({**trial.settings, **limits}, NODES, grid)
    if clients is None:
        return None
    figures = [
        figure
        for node, figure in zip(clients.nodes, clients[trial.metric].tolist(), strict=True)
        if int(node) != LIAR - FIRST_ID and isfinite(figure)
    ]
    if not figures:  # a total that cannot come from samples gives no classifier
        return None
    higher = trial.metric.startswith("accuracy")
    return float(np.mean([1 - figure if higher else figure for figure in figures]))


_SERIES = {
    **small_run(FIRST_TASK),
    "data.synthetic.clients": CLIENTS,
    "rounds": 5,
    "evaluate-every": 5,
}
_DIGITS = {
    **small_run("classification"),
    "data.partition.clients": CLIENTS,
    "data.partition.samples": 40,
    "data.partition.stages": 1,
    "data.partition.classes": 5,
    "evaluate-every": 4,
}
_AVERAGING = (
    *("fedavg", "fedavg-ft", "fedprox", "per-fedavg", "pfedme", "fedala"),
    *("knn-per", "fedrep", "fedpcl", "ditto", "apfl"),
)
CASES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    **{f"`{name}`": ({**_SERIES, "method": name}, "mse") for name in _AVERAGING},
    "`analytic`, one solution": (
        {**_SERIES, "method": "analytic", "rounds": 1, "analytic.sharing": "federated"},
        "mse",
    ),
    "`analytic`": ({**_SERIES, "method": "analytic", "rounds": 1}, "mse"),
    "`kindred`": ({**_SERIES, "method": "kindred", "rounds": 1}, "mse"),
    "`analytic`, images, one classifier": (
        {**_DIGITS, "method": "analytic", "analytic.sharing": "federated"},
        "accuracy_global",
    ),
    "`census`, images": ({**_DIGITS, "method": "census", "census.features": 4}, "accuracy_local"),
}


def trials() -> Iterator[Trial]:
    """Yield every run of the table."""
    for settings, metric in CASES.values():
        yield Trial(settings, metric, None, guarded=True)
        for lie in (far_model, longest_step):
            for guarded in (False, True):
                yield Trial(settings, metric, lie, guarded)


def table(errors: Mapping[Trial, float | None]) -> list[str]:
    """Return a line for each method: its error without an attack, and by how much attacks raise it
    without and with the two limits."""

    def cell(trial: Trial, clean: float | None) -> str:
        error = errors[trial]
        if error is None or not clean:
            return "no result"
        change = 100 * (error / clean - 1)
        return f"{change:+.1f}%" if abs(change) < 1000 else f"× {error / clean:.3g}"

    titles = ["method", "no attack", "−5, no limits", "−5", "reversed, no limits", "reversed"]
    lines = [titles]
    for name, (settings, metric) in CASES.items():
        clean = errors[Trial(settings, metric, None, guarded=True)]
        cells = [
            cell(Trial(settings, metric, lie, guarded), clean)
            for lie in (far_model, longest_step)
            for guarded in (False, True)
        ]
        lines.append([name, "no result" if clean is None else f"{clean:.3g}", *cells])
    return table_texts(lines)
