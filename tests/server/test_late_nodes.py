"""Nodes that answer late or not at all, in whole runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, MessageType

from fedproto_app.core.wire import ALIVE, MASKING, QUESTION, read_order, required_masking_order
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.server import exchange
from fedproto_app.server_app import conduct
from fedproto_app.settings import Settings
from tests.local_grid import LocalGrid, run_locally, small_settings, synthetic_nodes

FEDAVG = {"method": "fedavg", "rounds": 1, "local-epochs": 1}
LATE = (1000, 1001)


def test_who_hung_in_training_is_not_asked_in_the_evaluation(tmp_path: Path) -> None:
    """Which would double what a hung node costs."""
    settings = small_settings(tmp_path, **FEDAVG)
    folder, grid = run_locally(
        settings,
        synthetic_nodes(3, tmp_path / "state"),
        tamper=lambda node, reply: (
            None if node == 1000 and reply.metadata.message_type == MessageType.TRAIN else reply
        ),
    )
    message_types = [
        message.metadata.message_type
        for message in grid.sent
        if message.metadata.dst_node_id == 1000
    ]
    assert MessageType.TRAIN in message_types
    assert MessageType.EVALUATE not in message_types
    [only] = read_rounds(folder.path)
    assert only["clients"] < 8


def test_who_hung_in_a_step_of_a_masked_sum_is_asked_for_nothing_more(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, **FEDAVG, **{"aggregation.secure": True, "aggregation.secure-share": 0.5}
    )
    grid = HungGrid(settings, synthetic_nodes(4, tmp_path / "state"), _is_last_step)
    with RunFolder(settings) as folder:
        conduct(grid, settings, folder)
    assert grid.owed == [MASKING]


def test_who_hung_while_graphs_are_learned_is_asked_for_nothing_more(tmp_path: Path) -> None:
    """It is skipped in the remaining steps of the round, and in its training."""
    settings = small_settings(tmp_path, method="cnfgnn", rounds=1)
    grid = HungGrid(settings, synthetic_nodes(4, tmp_path / "state"), _brings_steps)
    with RunFolder(settings) as folder:
        conduct(grid, settings, folder)
    assert grid.owed == [QUESTION]


def _is_last_step(message: Message) -> bool:
    kind = message.metadata.message_type
    return kind == MASKING and required_masking_order(message).step == "unmask"


def _brings_steps(message: Message) -> bool:
    return (
        message.metadata.message_type == QUESTION and "steps" in read_order(message).guidance.arrays
    )


class HungGrid(LocalGrid):
    """A node answers nothing any more from the first message of a kind on.

    owed: the types of these, without the probes.
    """

    def __init__(
        self,
        settings: Settings,
        configs: list[dict[str, Any]],
        hangs: Callable[[Message], bool],
    ) -> None:
        super().__init__(settings, configs)
        self._hangs = hangs
        self.owed: list[str] = []

    def answer(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id != LATE[0] or not (self.owed or self._hangs(message)):
            return super().answer(message)
        if message.metadata.message_type != ALIVE:
            self.owed.append(message.metadata.message_type)
        return None


class LateGrid(LocalGrid):
    """Two of the nodes that train answer some looks after the others."""

    def __init__(self, settings: Settings, configs: list[dict[str, Any]]) -> None:
        super().__init__(settings, configs)
        self._late: dict[str, Message] = {}
        self._looks = 0

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        metadata = message.metadata
        if (
            reply is None
            or metadata.message_type != MessageType.TRAIN
            or metadata.dst_node_id not in LATE
        ):
            return reply
        self._late[metadata.message_id], self._looks = reply, 0
        return None

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._looks += 1
        if self._looks == 8:
            self.replies |= self._late
            self._late = {}
        return super().pull_messages(message_ids)


def test_as_many_as_a_sum_must_have_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if fewer are enough for `nodes.enough`. The clock of the exchange goes by its looks."""
    clock = count()
    fake = SimpleNamespace(monotonic=lambda: next(clock) / 100, sleep=lambda seconds: None)
    monkeypatch.setattr(exchange, "time", fake)
    monkeypatch.setattr(exchange, "LEAST_PATIENCE", 0.0)
    late = {
        "aggregation.secure": True,
        "aggregation.secure-share": 0.67,
        "nodes.enough": 0.5,
        "nodes.round-deadline": 60.0,
    }
    settings = small_settings(tmp_path, **FEDAVG, **late)
    grid = LateGrid(settings, synthetic_nodes(4, tmp_path / "state"))
    with RunFolder(settings) as folder:
        conduct(grid, settings, folder)
    [only] = read_rounds(folder.path)
    assert only["clients"] == 8
