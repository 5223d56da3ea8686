"""Faults of the server: its app, its SuperLink, its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.rows import HIT, counts, log_lines, row
from benchmarks.faults.table import Row, fault
from benchmarks.faults.trial import NODES, Trial
from fedproto_app.core.errors import FederationError


@fault("server-killed-waiting", "fuels")
def server_killed_waiting(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.add(*NODES[:2])
        trial.submit()
        trial.nodes[NODES[1]].wait_for_log("event=roster", deadline=200)
        trial.kill_serverapp()
        trial.add(NODES[2])
        trial.resume(0)
        trial.finish()
        yield resumed(trial, "ServerApp killed while waiting for nodes", 0)


@fault("server-killed-train", "fuels")
def server_killed_train(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin()
        kill_server_in(trial, 3, "train")
        trial.resume(2)
        trial.finish()
        yield resumed(trial, "ServerApp killed in training of round 3", 2)


@fault("server-killed-evaluate", "fedavg")
def server_killed_evaluate(folder: Path) -> Iterator[Row]:
    with Trial(folder, {"method": "fedavg"}) as trial:
        trial.begin()
        kill_server_in(trial, 2, "evaluate")
        trial.resume(1)
        trial.finish()
        harm = "ServerApp killed in evaluation of round 2 (FedAvg)"
        yield resumed(trial, harm, 1, method="fedavg")


@fault("server-killed-checkpoint", "fuels")
def server_killed_checkpoint(folder: Path) -> Iterator[Row]:
    with Trial(folder, fault="crash-in-checkpoint") as trial:
        trial.begin()
        trial.wait_until((trial.artefacts / "crashed").exists, "the crash in the checkpoint")
        trial.wait_until(lambda: not trial.has_serverapp(), "the end of the ServerApp", 20)
        files = sorted(path.name for path in (trial.artefacts / "checkpoint").iterdir())
        trial.resume(1)
        trial.finish()
        yield resumed(
            trial,
            "ServerApp killed while writing round 2's checkpoint; a file truncated",
            1,
            also=f"the crash left {' and '.join(f'`{name}`' for name in files)}",
            good=files == ["new", "round-000001"],
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
            "SuperLink and ServerApp killed in training of round 3",
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
        refused = log_lines(trial, "^event=checkpoint-refused")
        refused = refused.replace(str(trial.artefacts), "…")
        yield resumed(
            trial,
            "ServerApp killed in training of round 3; newest `server.json` cut in half",
            1,
            also=refused,
            good="round-000002" in refused,
        )


def kill_server_in(trial: Trial, server_round: int, phase: str) -> None:
    """Send SIGKILL to the ServerApp when a node has begun with this order."""
    trial.wait_for_order(HIT, server_round, phase)
    trial.kill_serverapp()
    if len(trial.rounds()) >= server_round:
        raise FederationError(f"round {server_round} was done already")


def resumed(
    trial: Trial, harm: str, after: int, *, method: str = "fuels", also: str = "", good: bool = True
) -> Row:
    """Return the row of a resumed run. after: the round of the checkpoint that must be used."""
    resumption = log_lines(trial, "^event=resumed")
    expected = f"resumed after round {after}" if after else "resumed from the start"
    complete = all(answered == expected_replies for answered, expected_replies in counts(trial))
    return row(
        trial,
        harm,
        expected,
        good=good and complete and resumption.endswith(f"round={after}`"),
        method=method,
        also="; ".join(part for part in (resumption, also) if part),
    )
