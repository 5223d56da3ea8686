"""Run the rounds through Flower's public strategy interface, and write checkpoints.

Flower's own loop, `Strategy.start`, counts from 1 to N. It can neither stop early nor resume from a
checkpoint nor report the cost of a phase, so this module has its own loop. Listeners observe the
run (`listeners.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedproto_app.core.stored import Memory
from fedproto_app.core.wire import numpy_arrays
from fedproto_app.server.checkpoint import Checkpoint, State
from fedproto_app.server.federation import Federation
from fedproto_app.server.listeners import Listener, RoundEnd, reason_to_stop
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy


@dataclass
class Progress:
    """The progress of a run: the global model, and the number of finished rounds."""

    model: ArrayRecord
    rounds: int = 0


def run_rounds(
    strategy: FlowerStrategy,
    federation: Federation,
    grid: Grid,
    progress: Progress,
    listeners: Sequence[Listener],
) -> str:
    """Train for the set number of rounds, or until a listener stops the run.

    Return why the run stopped: "rounds", or the listener's reason. progress: where the run starts.
    It is updated after each round.
    """
    for server_round in range(progress.rounds + 1, federation.settings.all_rounds + 1):
        if reason_to_stop(listeners, server_round):
            break
        federation.history.begin_round(server_round)
        if server_round > 1:
            federation.members.await_clients(grid)
        seconds = _one_round(strategy, federation, grid, server_round, progress)
        progress.rounds = server_round
        history, evaluated = federation.history, federation.selection.evaluates(server_round)
        ended = RoundEnd(server_round, seconds, progress.model, history, evaluated)
        for listener in listeners:
            listener.round_ended(ended)
    return reason_to_stop(listeners, progress.rounds + 1) or "rounds"


def _one_round(
    strategy: FlowerStrategy,
    federation: Federation,
    grid: Grid,
    server_round: int,
    progress: Progress,
) -> dict[str, float]:
    """Train, aggregate and evaluate. Return the seconds that each of these took."""
    ask = federation.pipeline.ask
    start = time.perf_counter()
    messages = strategy.configure_train(server_round, progress.model, ConfigRecord(), grid)
    replies = ask(grid, messages)
    trained = time.perf_counter()
    arrays, _ = strategy.aggregate_train(server_round, replies)
    if arrays is not None:
        progress.model = arrays
    aggregated = time.perf_counter()
    messages = list(strategy.configure_evaluate(server_round, progress.model, ConfigRecord(), grid))
    if messages:
        strategy.aggregate_evaluate(server_round, ask(grid, messages))
    end = time.perf_counter()
    return {
        "train": trained - start,
        "aggregate": aggregated - trained,
        "evaluate": end - aggregated,
        "total": end - start,
    }


class Persistence:
    """Decides when a run writes checkpoints: after every round, if nodes keep their own state."""

    def is_due(self, *, last: bool) -> bool:
        """Return whether to write a checkpoint after a round. last: whether it is the last one."""
        return True

    def prepare(self) -> None:
        """Called before a checkpoint is written, so that it is not ahead of the nodes' state."""


class Checkpoints(Listener):
    """Writes the run's checkpoints.

    write: writes a checkpoint into the run's folder. state: returns the strategy's state.
    listeners: the listeners whose memory is stored in a checkpoint. They are called before this
    listener.
    """

    def __init__(
        self,
        write: Callable[[Checkpoint], None],
        state: Callable[[], State],
        federation: Federation,
        listeners: Sequence[Listener],
        persistence: Persistence,
    ) -> None:
        self._write, self._state, self._federation = write, state, federation
        self._listeners, self._persistence = listeners, persistence

    def round_ended(self, ended: RoundEnd) -> None:
        federation = self._federation
        last = ended.number == federation.settings.all_rounds
        last = last or bool(reason_to_stop(self._listeners, ended.number + 1))
        if not self._persistence.is_due(last=last):
            return
        self._persistence.prepare()
        memory: Memory = {}
        for listener in self._listeners:
            memory |= listener.memory()
        self._write(
            Checkpoint(
                ended.number,
                federation.token,
                nodes=federation.members.roster.partitions(),
                model=numpy_arrays(ended.model),
                strategy=self._state(),
                federation=federation.memory(),
                listeners=memory,
            )
        )
