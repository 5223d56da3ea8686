"""A node that lies in a masked sum, where the server sees the total alone, and in the clear.

One of ten nodes sends its sums so many times, with targets of the opposite sign, or so many times
its model with the opposite sign. Of the numbers of times that are tried, the worst counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Message, MessageType, UserConfig

from benchmarks.attacks.declared import FIRST_ROUND, fields_of, say
from benchmarks.attacks.trial import CLIENTS
from benchmarks.in_process import clients_of
from benchmarks.pages import table_texts
from fedproto_app.core.messages import MaskingOrder
from fedproto_app.core.wire import ARRAYS, array_record, numpy_arrays, read_order
from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.engine.flower_parts import FIRST_ID
from fedproto_app.engine.local import LocalGrid
from fedproto_app.node.masking import Masking
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.tasks.table import small_run
from fedproto_app.trust.fixed_point import WEIGHT, Sums, Vector

LIAR = FIRST_ID + CLIENTS - 1
TIMES = (1.0, 10.0, 20.0, 1000.0)
NOTE = (
    "One node of ten lies about its sums or its model, and the worst lie counts: of all that were "
    "tried, mean test MSE of the honest clients. {command}, {machine}."
)


def opposite(
    arrays: Mapping[str, Any], times: float, start: Mapping[str, Any], weight: float = 1.0
) -> dict[str, Any]:
    """Return sums of opposite targets, so many times, or models with the step from `start` in the
    other direction, so many times as long.

    weight: of the models in their sum.
    """
    return {
        name: start[name] * weight - times * (array - start[name] * weight)
        if name in start
        else _factor(name, times) * array
        for name, array in arrays.items()
    }


def _factor(name: str, times: float) -> float:
    """Return the factor of a sum, which is 1 for all sums but A and B."""
    return {"gram": times, "moment": -times}.get(name.removeprefix("response-"), 1.0)


@dataclass(frozen=True)
class Trial:
    """A run. times: of the lie, 0 for an honest run."""

    settings: Mapping[str, Any] = field(hash=False)
    name: str
    masked: bool
    times: float


class LyingGrid(LocalGrid):
    """A grid whose last node lies about what it sends, and about the length of its steps."""

    def __init__(self, times: float, settings: Settings, configs: Sequence[UserConfig]) -> None:
        super().__init__(settings, configs)
        self._times = times

    def answer(self, message: Message) -> Message | None:
        is_order = message.metadata.message_type == MessageType.TRAIN
        if not (is_order and message.metadata.dst_node_id == LIAR):
            return super().answer(message)
        order, honest = read_order(message), Masking.masked
        start = order.guidance.arrays

        def lying(masking: Masking, of_sum: MaskingOrder, sums: Sums, *noise: Any) -> Vector:
            weight = float(sums.counts[WEIGHT])
            false = opposite(sums.values, self._times, start, weight)
            return honest(masking, of_sum, replace(sums, values=false), *noise)

        with patch.object(Masking, "masked", lying):
            reply = super().answer(message)
        assert reply is not None
        if ARRAYS in reply.content:
            arrays = numpy_arrays(reply.content.array_records[ARRAYS])
            false = opposite(arrays, self._times, start)
            in_float32 = {name: array.astype(np.float32) for name, array in false.items()}
            reply.content[ARRAYS] = array_record(in_float32)
        if steps := fields_of(reply)["steps"]:
            limit = order.longest_step or FIRST_ROUND * steps[0]
            say(reply, steps=[limit] * len(steps))
        return reply


def error_of(trial: Trial) -> float:
    """Return the mean test MSE of the honest clients, NaN if the run stops."""
    grid = partial(LyingGrid, trial.times) if trial.times else LocalGrid
    changes = {**trial.settings, "aggregation.secure": trial.masked}
    clients = clients_of(changes, CLIENTS, grid)
    if clients is None:
        return math.nan
    errors = clients["mse"].tolist()
    pairs = zip(clients.nodes, errors, strict=True)
    return float(np.mean([error for node, error in pairs if int(node) != LIAR - FIRST_ID]))


def weather_series(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield hourly series of three weeks that answer to a temperature, known in advance."""
    hours = np.arange(21 * 24)
    clock = Clock(np.timedelta64(1, "h"), np.timedelta64(0, "s"), utc=False)
    for number in range(CLIENTS):
        rng = np.random.default_rng(number)
        day = np.sin(2 * np.pi * hours / 24)
        temperature = 10 + 5 * day + np.cumsum(rng.normal(0, 0.5, len(hours)))
        values = 50 + 2 * np.maximum(15 - temperature, 0) + 5 * day + rng.normal(0, 3, len(hours))
        yield ClientSeries(
            f"site-{number}",
            values,
            0,
            clock=clock,
            known=temperature[:, None],
            columns=("temperature",),
        )


_SERIES = {**small_run("forecasting"), "data.synthetic.clients": CLIENTS}
_WEATHER = {
    "data.source": f"{__name__}:weather_series",
    "data.known": "temperature",
    "data.period": 24,
    "data.horizon": 24,
}
CASES: Mapping[str, Mapping[str, Any]] = {
    "`fedavg`": {**_SERIES, "method": "fedavg", "rounds": 5, "evaluate-every": 5},
    '`kindred`, `sharing = "common"`': {
        **_SERIES,
        "method": "kindred",
        "kindred.sharing": "common",
        "rounds": 1,
    },
    "the response, then `seasonal-naive`": {**_WEATHER, "method": "seasonal-naive"},
    "own response, then `seasonal-naive`": {
        **_WEATHER,
        "method": "seasonal-naive",
        "response.sharing": "none",
    },
}


def trials() -> Iterator[Trial]:
    """Yield every run of the table."""
    for name, settings in CASES.items():
        shares = settings.get("response.sharing") != "none"
        for masked in (True, False) if shares else (False,):
            for times in (0.0, *TIMES) if shares else (0.0,):
                yield Trial(settings, name, masked, times)


def table(errors: Mapping[Trial, float]) -> list[str]:
    """Return a line for each method: by how much the worst lie raises its error, masked and in the
    clear."""
    lines = [["what is shared", "no attack", "masked", "in the clear"]]
    for name in CASES:
        by_lie = {(t.masked, t.times): error for t, error in errors.items() if t.name == name}
        clean = by_lie[False, 0.0]
        cells = [
            _worst({t: error for (m, t), error in by_lie.items() if m == masked and t}, clean)
            for masked in (True, False)
        ]
        lines.append([name, f"{clean:.3g}", *cells])
    return table_texts(lines)


def _worst(errors: Mapping[float, float], clean: float) -> str:
    """Format the largest error, which has the number of times of its lie as key."""
    finite = {times: error for times, error in errors.items() if not math.isnan(error)}
    if not finite:
        return "-"
    times = max(finite, key=lambda times: finite[times])
    ratio = finite[times] / clean
    change = f"× {ratio:.3g}" if ratio > 11 else f"{100 * (ratio - 1):+.1f}%"
    return f"{change} (times {times:g})"
