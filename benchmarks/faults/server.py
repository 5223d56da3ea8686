"""Faults of the server: its app, its SuperLink, its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable

from benchmarks.faults.rows import HIT, Harm, counts, harmed, log_lines
from benchmarks.faults.trial import NODES, Trial
from fedproto_app.core.errors import FederationError


def resumed(
    name: str, harm: str, after: int, *, method: str = "fuels", fault_of_server: str = ""
) -> Callable[[Harm], Harm]:
    """Enter a fault of a run that must be resumed. after: the round of the checkpoint that must be
    used, 0 without a checkpoint."""
    expected = f"resumed after round {after}" if after else "resumed from the start"
    enter = harmed(
        name,
        harm,
        expected,
        equal_to=method,
        changes={"method": method},
        fault_of_server=fault_of_server,
    )

    def with_resumption(do: Harm) -> Harm:
        def done(trial: Trial) -> tuple[bool, str]:
            good, also = do(trial)
            resumption = log_lines(trial, "^event=resumed")
            complete = all(answered == orders for answered, orders in counts(trial))
            also = "; ".join(part for part in (resumption, also) if part)
            return good and complete and resumption.endswith(f"round={after}`"), also

        return enter(done)

    return with_resumption


@resumed("server-killed-waiting", "ServerApp killed while waiting for nodes", 0)
def server_killed_waiting(trial: Trial) -> tuple[bool, str]:
    trial.add(*NODES[:2])
    trial.submit()
    trial.nodes[NODES[1]].wait_for_log("event=roster", deadline=200)
    trial.kill_serverapp()
    trial.add(NODES[2])
    trial.resume(0)
    trial.finish()
    return True, ""


@resumed("server-killed-train", "ServerApp killed in training of round 3", 2)
def server_killed_train(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    kill_server_in(trial, 3, "train")
    trial.resume(2)
    trial.finish()
    return True, ""


@resumed(
    "server-killed-evaluate",
    "ServerApp killed in evaluation of round 2 (FedAvg)",
    1,
    method="fedavg",
)
def server_killed_evaluate(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    kill_server_in(trial, 2, "evaluate")
    trial.resume(1)
    trial.finish()
    return True, ""


@resumed(
    "server-killed-checkpoint",
    "ServerApp killed while writing round 2's checkpoint; a file truncated",
    1,
    fault_of_server="crash-in-checkpoint",
)
def server_killed_checkpoint(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    trial.wait_until((trial.artefacts / "crashed").exists, "the crash in the checkpoint")
    trial.wait_until(lambda: not trial.has_serverapp(), "the end of the ServerApp", 20)
    files = sorted(path.name for path in (trial.artefacts / "checkpoint").iterdir())
    trial.resume(1)
    trial.finish()
    remains = " and ".join(f"`{name}`" for name in files)
    return files == ["new", "round-000001"], f"the crash left {remains}"


@resumed("superlink-killed", "SuperLink and ServerApp killed in training of round 3", 2)
def superlink_killed(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    trial.wait_for_order(HIT, 3)
    trial.federation.superlink.kill()
    trial.federation.start_superlink()
    trial.resume(2)
    trial.finish()
    old = trial.federation.connection.status(trial.runs[0])
    return True, f"Flower holds the first run for {old.status}"


@resumed(
    "checkpoint-damaged",
    "ServerApp killed in training of round 3; newest `server.json` cut in half",
    1,
)
def checkpoint_damaged(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    kill_server_in(trial, 3, "train")
    newest = trial.artefacts / "checkpoint" / "round-000002" / "server.json"
    os.truncate(newest, newest.stat().st_size // 2)
    trial.resume(1)
    trial.finish()
    refused = log_lines(trial, "^event=checkpoint-refused").replace(str(trial.artefacts), "…")
    return "round-000002" in refused, refused


def kill_server_in(trial: Trial, server_round: int, phase: str) -> None:
    """Send SIGKILL to the ServerApp when a node has begun with this order."""
    trial.wait_for_order(HIT, server_round, phase)
    trial.kill_serverapp()
    if len(trial.rounds()) >= server_round:
        raise FederationError(f"round {server_round} was done already")
