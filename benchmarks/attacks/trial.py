"""One run with hostile nodes, in this process: one client a node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, UserConfig

from benchmarks.attacks.lies import HonestReply, Lie
from benchmarks.in_process import clients_of
from fedproto_app.core.messages import Arrays
from fedproto_app.core.wire import ARRAYS, array_record, numpy_arrays
from fedproto_app.engine.flower_parts import FIRST_ID
from fedproto_app.engine.local import LocalGrid
from fedproto_app.settings import Settings

CLIENTS = 10
HOSTILE = (0, 1, 2, 4)  # of the ten
# Who is hostile first: where clients come in two halves or four kinds, about as many of each.
ORDER = (9, 4, 8, 3)
VICTIM = FIRST_ID  # never hostile
PREPARED_FOR = 0.4  # aggregation.hostile-share of all runs


@dataclass(frozen=True)
class Attack:
    """An attack. says: its text in the table. lie: makes the arrays that are sent. source: the
    poisoned training data. about: the arrays that the lie changes, () for all."""

    says: str
    lie: Lie | None = None
    source: str = ""
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A run of a study. settings: of all runs of the study."""

    settings: Mapping[str, Any] = field(hash=False)
    metric: str
    rule: str
    attack: Attack
    hostile: int


class HostileGrid(LocalGrid):
    """A grid on which some nodes lie."""

    def __init__(
        self, hostile: int, attack: Attack, settings: Settings, configs: Sequence[UserConfig]
    ) -> None:
        self.hostile = {FIRST_ID + number for number in ORDER[:hostile]}
        for number in ORDER[:hostile] if attack.source else ():
            configs[number]["data-source"] = attack.source
        super().__init__(settings, configs)
        self._attack = attack
        self._victim_arrays: Arrays = {}

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        order = message.metadata
        if order.message_type != MessageType.TRAIN or reply is None or reply.has_error():
            return reply
        if ARRAYS not in reply.content:
            return reply
        arrays = numpy_arrays(reply.content.array_records[ARRAYS])
        if order.dst_node_id == VICTIM:
            self._victim_arrays = arrays
        about = [name for name in arrays if name in (self._attack.about or arrays)]
        if order.dst_node_id in self.hostile and self._attack.lie and about:
            honest = self._honest_reply(message, {name: arrays[name] for name in about})
            lies = self._attack.lie(honest)
            changed = {name: lies[name].reshape(arrays[name].shape) for name in about}
            reply.content[ARRAYS] = array_record({**arrays, **changed})
        return reply

    def _honest_reply(self, message: Message, arrays: Arrays) -> HonestReply:
        """Return the honest reply, without the client axis (of length 1) of a personal model."""
        brought = message.content.array_records.get(ARRAYS)
        before = numpy_arrays(brought) if brought else {}
        before = {name: value for name, value in before.items() if name in arrays}
        after = {
            name: value.reshape(before[name].shape)
            if name in before and before[name].size == value.size
            else value
            for name, value in arrays.items()
        }
        before = {name: value for name, value in before.items() if value.size == arrays[name].size}
        return HonestReply(before, after, int(message.metadata.group_id), self._victim_arrays)


def figures_of(trial: Trial) -> dict[int, float]:
    """Return each client's metric by the last models, by number, or {} if the run stopped."""
    rule = {
        "aggregation.rule": trial.rule,
        "aggregation.hostile-share": PREPARED_FOR if trial.rule != "mean" else 0.0,
    }
    grid = partial(HostileGrid, trial.hostile, trial.attack)
    clients = clients_of({**trial.settings, **rule}, CLIENTS, grid)
    if clients is None:
        return {}
    return dict(zip(map(int, clients.nodes), clients[trial.metric].tolist(), strict=True))


def honest_mean(figures: Mapping[int, float], hostile: int) -> float:
    """Return the mean over the honest clients if so many are hostile, NaN if the run stopped."""
    honest = [
        figures[number] for number in range(CLIENTS) if number not in ORDER[:hostile] and figures
    ]
    return float(np.mean(honest)) if honest else math.nan
