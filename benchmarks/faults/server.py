"""Faults of the server: its app, its SuperLink, its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.rows import HIT, counts, found, row
from benchmarks.faults.table import Row, fault
from benchmarks.faults.trial import NODES, Trial
from fedproto_app.core.errors import FederationError


@fault("server-killed-waiting", "fuels")
def server_killed_waiting(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.add(*NODES[:2])
        trial.submit()
        trial.nodes[NODES[1]].wait_until_said("event=roster", deadline=200)
        trial.kill_serverapp()
        trial.add(NODES[2])
        trial.resume(0)
        trial.finish()
        yield resumed(trial, "SIGKILL of the ServerApp while it waits for nodes, resume", 0)


@fault("server-killed-train", "fuels")
def server_killed_train(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin()
        kill_server_in(trial, 3, "train")
        trial.resume(2)
        trial.finish()
        yield resumed(trial, "SIGKILL of the ServerApp in training of round 3, resume", 2)


@fault("server-killed-evaluate", "fedavg")
def server_killed_evaluate(folder: Path) -> Iterator[Row]:
    with Trial(folder, {"method": "fedavg"}) as trial:
        trial.begin()
        kill_server_in(trial, 2, "evaluate")
        trial.resume(1)
        trial.finish()
        what = "SIGKILL of the ServerApp in evaluation of round 2 (FedAvg), resume"
        yield resumed(trial, what, 1, method="fedavg")


@fault("server-killed-checkpoint", "fuels")
def server_killed_checkpoint(folder: Path) -> Iterator[Row]:
    with Trial(folder, fault="crash-in-checkpoint") as trial:
        trial.begin()
        trial.wait_until((trial.artefacts / "crashed").exists, "the crash in the checkpoint")
        trial.wait_until(lambda: not trial.has_serverapp(), "the end of the ServerApp", 20)
        left = sorted(path.name for path in (trial.artefacts / "checkpoint").iterdir())
        trial.resume(1)
        trial.finish()
        yield resumed(
            trial,
            "SIGKILL of the ServerApp while it writes the checkpoint of round 2, a file of which "
            "is cut off; resume",
            1,
            also=f"the crash left {' and '.join(f'`{name}`' for name in left)}",
            good=left == ["new", "round-000001"],
        )


@fault("superlink-killed", "fuels")
def superlink_killed(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin()
        trial.wait_for_order(HIT, 3)
        trial.federation.superlink.kill()
        trial.federation.start_superlink()
        trial.resume(2)
        trial.finish()
        old = trial.federation.connection.status(trial.runs[0])
        yield resumed(
            trial,
            "SIGKILL of the SuperLink and its ServerApp in training of round 3, restarted with its "
            "database, resume",
            2,
            also=f"Flower holds the first run for {old.status}",
        )


@fault("checkpoint-damaged", "fuels")
def checkpoint_damaged(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin()
        kill_server_in(trial, 3, "train")
        newest = trial.artefacts / "checkpoint" / "round-000002" / "server.json"
        os.truncate(newest, newest.stat().st_size // 2)
        trial.resume(1)
        trial.finish()
        refused = found(trial, "^event=checkpoint-refused")
        refused = refused.replace(str(trial.artefacts), "…")
        yield resumed(
            trial,
            "SIGKILL of the ServerApp in training of round 3, `server.json` of the newest "
            "checkpoint is cut in half, resume",
            1,
            also=refused,
            good="round-000002" in refused,
        )


def kill_server_in(trial: Trial, server_round: int, phase: str) -> None:
    """SIGKILL the ServerApp when a node has begun with this order."""
    trial.wait_for_order(HIT, server_round, phase)
    trial.kill_serverapp()
    if len(trial.rounds()) >= server_round:
        raise FederationError(f"round {server_round} was done already")


def resumed(
    trial: Trial, what: str, after: int, *, method: str = "fuels", also: str = "", good: bool = True
) -> Row:
    """The row of a run that was resumed. after: the round of the checkpoint that must be used."""
    resumption = found(trial, "^event=resumed")
    expected = f"goes on after round {after}" if after else "begins anew"
    complete = all(answered == asked for answered, asked in counts(trial))
    return row(
        trial,
        what,
        f"{expected}; the result is that of the uninterrupted run",
        good=good and complete and resumption.endswith(f"round={after}`"),
        method=method,
        also="; ".join(part for part in (resumption, also) if part),
    )
