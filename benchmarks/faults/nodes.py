"""Faults of nodes: killed, replaced, gone, late, hung, with a full disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.rows import HIT, counts, found, row
from benchmarks.faults.table import Row, fault
from benchmarks.faults.trial import NODES, ROUNDS, Trial, told

DISK_SIZE = 1 << 20


def kill_in_training(trial: Trial) -> None:
    """SIGKILL one node while it trains in round 2."""
    trial.begin()
    trial.wait_for_order(HIT, 2)
    trial.nodes[HIT].kill()
    trial.require_unfinished(HIT, 2)


@fault("clientapp-killed", "fuels")
def clientapp_killed(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin()
        trial.wait_for_order(HIT, 2)
        os.kill(trial.nodes[HIT].child("flwr-clientapp"), signal.SIGKILL)
        trial.require_unfinished(HIT, 2)
        trial.finish()
        yield row(
            trial,
            "SIGKILL of a node's ClientApp in training",
            "its order is sent again at once, nothing is missing",
            good=counts(trial) == [(3, 3)] * ROUNDS,
            method="fuels",
            also=found(trial, "^event=order-lost"),
        )


@fault("node-killed")
def node_killed(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        kill_in_training(trial)
        taken_in = trial.restart(HIT)
        trial.finish()
        yield row(
            trial,
            "SIGKILL of a node in training, restarted with its key until it is taken in",
            "Flower refuses it until it has given up the old process; then in again",
            good=counts(trial)[-1] == (3, 3),
            also=taken_in,
        )


@fault("node-restarted", "fuels")
def node_restarted(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin()
        trial.wait_for_order(HIT, 2)
        trial.nodes[HIT].signal(signal.SIGTERM)
        trial.require_unfinished(HIT, 2)
        trial.nodes[HIT].wait_until_ended()
        trial.nodes[HIT].kill()  # its children, if they are slower
        taken_in = trial.restart(HIT)
        trial.finish()
        yield row(
            trial,
            "SIGTERM of a node in training, as `docker restart` does; started with its key",
            "its lost order is sent again, nothing is missing",
            good=counts(trial) == [(3, 3)] * ROUNDS,
            method="fuels",
            also="; ".join(filter(None, [taken_in, found(trial, "^event=order-lost")])),
        )


@fault("node-gone")
def node_gone(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        kill_in_training(trial)
        impostor = trial.federation.add_node(f"{HIT}-2", trial.config(HIT), has_key=False)
        code = impostor.wait_until_ended(deadline=120)
        trial.finish()
        yield row(
            trial,
            "SIGKILL of a node in training, which never comes back",
            "Flower answers for it after a minute, later rounds do without it",
            good=counts(trial)[-2:] == [(2, 2)] * 2,
            also=found(trial, f"^event=left.*{HIT}"),
        )
        reason = re.search(r"must be registered", impostor.said())
        yield Row(
            "the killed node restarted without a key",
            "refused; the others train on",
            f"flower-supernode ended with exit code {code}; {told(trial.rounds()[-2:])}",
            good=code == 1 and reason is not None and counts(trial)[-1] == (2, 2),
        )


@fault("late-joiner")
def late_joiner(folder: Path) -> Iterator[Row]:
    with Trial(folder, {"nodes.minimum": 2}) as trial:
        trial.add(*(name for name in NODES if name != HIT))
        trial.submit()
        trial.wait_for_rounds(1)
        trial.add(HIT)
        trial.finish()
        yield row(
            trial,
            "a third node is registered and started after round 1",
            "asked from the round on that begins after it has come",
            good=counts(trial)[0] == (2, 2) and counts(trial)[-1] == (3, 3),
            also=found(trial, f"^event=joined.*{HIT}"),
        )


@fault("node-hangs")
def node_hangs(folder: Path) -> Iterator[Row]:
    with Trial(folder, {"nodes.round-deadline": 30.0}) as trial:
        trial.begin()
        trial.wait_for_order(HIT, 2)
        trial.nodes[HIT].stop()
        trial.require_unfinished(HIT, 2)
        trial.wait_for_rounds(2)
        trial.nodes[HIT].cont()
        trial.finish()
        back = found(trial, "^event=back")
        yield row(
            trial,
            "SIGSTOP of a node in training until `nodes.round-deadline` = 30 s has passed, SIGCONT",
            "asked for nothing until its late reply comes, which is not used; then in again",
            good=counts(trial)[1:3] == [(2, 3), (2, 2)]
            and counts(trial)[-1] == (3, 3)
            and "late reply" in back,
            also=back,
        )


@fault("node-slow")
def node_slow(folder: Path) -> Iterator[Row]:
    with Trial(folder, {"nodes.enough": 0.6}) as trial:
        trial.begin()
        trial.wait_for_order(HIT, 2)
        trial.nodes[HIT].stop()
        trial.require_unfinished(HIT, 2)
        trial.wait_for_rounds(2)
        trial.nodes[HIT].cont()
        trial.finish()
        back = found(trial, "^event=back")
        yield row(
            trial,
            "the same with `nodes.enough` = 0.6 and a deadline of 180 s",
            "waited for ten seconds after the others, or as long again; then as above",
            good=counts(trial)[1:3] == [(2, 3), (2, 2)]
            and counts(trial)[-1] == (3, 3)
            and "late reply" in back,
            also=back,
        )


@fault("disk-full")
def disk_full(folder: Path) -> Iterator[Row]:
    what = "the disk of a node's `state-dir` (a tmpfs) full from round 2, freed after it"
    expected = "its clients are refused for that reason, later they contribute again"
    with Trial(folder) as trial, small_disk(trial.state_dir(HIT)) as mounted:
        if not mounted:
            yield Row(what, expected, "skipped: only root can mount a small disk", good=True)
            return
        trial.begin()
        trial.wait_for_rounds(1)
        filler = trial.state_dir(HIT) / "filler"
        with filler.open("wb") as file:
            size = shutil.disk_usage(trial.state_dir(HIT)).free
            file.write(bytes(size))
        trial.wait_for_rounds(2)
        filler.unlink()
        trial.finish()
        second = trial.rounds()[1]["refused"]
        yield row(
            trial,
            what,
            expected,
            good="No space left" in str(second)
            and counts(trial)[-1] == (3, 3)
            and trial.rounds()[-1]["clients"] == 6,
        )


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own at the folder, until the nodes have ended; False if not allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False, timeout=20)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:  # its node still lives, so at once is not possible
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)
