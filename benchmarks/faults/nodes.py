"""Faults of nodes: killed, replaced, gone, late, hung, under another name, with a full disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.rows import COMPLETE, HIT, counts, harmed, log_lines, row
from benchmarks.faults.table import Row, fault
from benchmarks.faults.trial import NODES, ROUNDS, Trial, summary

DISK_SIZE = 1 << 20
PRETENDER = "pretender"  # the name under which the hostile node is registered


def kill_in_training(trial: Trial) -> None:
    """SIGKILL one node while it trains in round 2."""
    trial.begin()
    trial.wait_for_order(HIT, 2)
    trial.nodes[HIT].kill()
    trial.require_unfinished(HIT, 2)


@harmed(
    "clientapp-killed",
    "a node's ClientApp killed in training",
    "order sent again at once; nothing missing",
    equal_to="fuels",
)
def clientapp_killed(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    trial.wait_for_order(HIT, 2)
    os.kill(trial.nodes[HIT].child("flwr-clientapp"), signal.SIGKILL)
    trial.require_unfinished(HIT, 2)
    trial.finish()
    return counts(trial) == COMPLETE, log_lines(trial, "^event=order-lost")


@harmed(
    "node-killed",
    "node killed in training, restarted until it is accepted",
    "refused until Flower drops the old process, then back",
)
def node_killed(trial: Trial) -> tuple[bool, str]:
    kill_in_training(trial)
    taken_in = trial.restart(HIT)
    trial.finish()
    return counts(trial)[-1] == (3, 3), taken_in


@harmed(
    "node-restarted",
    "node restarted in training (SIGTERM, as `docker restart` sends)",
    "order sent again; nothing missing",
    equal_to="fuels",
)
def node_restarted(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    trial.wait_for_order(HIT, 2)
    trial.nodes[HIT].signal(signal.SIGTERM)
    trial.require_unfinished(HIT, 2)
    trial.nodes[HIT].wait_until_ended()
    trial.nodes[HIT].kill()  # its children, if they are slower
    taken_in = trial.restart(HIT)
    trial.finish()
    also = "; ".join(filter(None, [taken_in, log_lines(trial, "^event=order-lost")]))
    return counts(trial) == COMPLETE, also


@fault("node-gone")
def node_gone(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        kill_in_training(trial)
        impostor = trial.federation.add_node(f"{HIT}-2", trial.config(HIT), has_key=False)
        code = impostor.wait_until_ended(deadline=120)
        trial.finish()
        yield row(
            trial,
            "node killed in training, never returns",
            "reported missing after a minute; later rounds go on without it",
            good=counts(trial)[-2:] == [(2, 2)] * 2,
            also=log_lines(trial, f"^event=left.*{HIT}"),
        )
        reason = re.search(r"must be registered", impostor.log_text())
        yield Row(
            "killed node restarted without a key",
            "refused; the others continue",
            f"flower-supernode ended with exit code {code}; {summary(trial.rounds()[-2:])}",
            good=code == 1 and reason is not None and counts(trial)[-1] == (2, 2),
        )


@harmed(
    "late-joiner",
    "third node registered and started after round 1",
    "takes part from the next round that begins",
    changes={"nodes.minimum": 2},
)
def late_joiner(trial: Trial) -> tuple[bool, str]:
    trial.add(*(name for name in NODES if name != HIT))
    trial.submit()
    trial.wait_for_rounds(1)
    trial.add(HIT)
    trial.finish()
    good = counts(trial)[0] == (2, 2) and counts(trial)[-1] == (3, 3)
    return good, log_lines(trial, f"^event=joined.*{HIT}")


@harmed(
    "node-slow",
    "the same with `nodes.enough` = 0.6, deadline 180 s",
    "waited for ten seconds, or as long as the others took; then as above",
    changes={"nodes.enough": 0.6},
)
@harmed(
    "node-hangs",
    "node stopped in training until after `nodes.round-deadline` = 30 s (SIGSTOP, SIGCONT)",
    "not asked until its late reply, which is not used; then back",
    changes={"nodes.round-deadline": 30.0},
)
def stopped_for_a_round(trial: Trial) -> tuple[bool, str]:
    """Stop a node in round 2 and let it go on after the round, which ends without it."""
    trial.begin()
    trial.wait_for_order(HIT, 2)
    trial.nodes[HIT].stop()
    trial.require_unfinished(HIT, 2)
    trial.wait_for_rounds(2)
    trial.nodes[HIT].cont()
    trial.finish()
    back = log_lines(trial, "^event=back")
    without = counts(trial)[1:3] == [(2, 3), (2, 2)] and counts(trial)[-1] == (3, 3)
    return without and "late reply" in back, back


@fault("disk-full")
def disk_full(folder: Path) -> Iterator[Row]:
    harm = "disk of a node's `state-dir` (a tmpfs) full in round 2, then freed"
    expected = "its clients refused with that reason, later back"
    with Trial(folder) as trial, small_disk(trial.state_dir(HIT)) as mounted:
        if not mounted:
            yield Row(harm, "skipped: only root can mount a small disk", "", good=True)
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
            harm,
            expected,
            good="No space left" in str(second)
            and counts(trial)[-1] == (3, 3)
            and trial.rounds()[-1]["clients"] == 6,
        )


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system at the folder until the nodes have ended, False if not allowed."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False, timeout=20)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:  # its node still lives, so at once is not possible
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


# --- identity: another node's name, a new key, a revoked key -----------------------------------


@harmed(
    "node-new-key",
    "node killed in training, restarted with a new key registered under its name",
    "absent until Flower drops its old id, then back with its state",
)
def node_new_key(trial: Trial) -> tuple[bool, str]:
    kill_in_training(trial)
    trial.federation.add_node(f"{HIT}-2", trial.config(HIT), known_as=HIT)
    trial.finish()
    good = counts(trial)[-1] == (3, 3) and len(counts(trial)) == ROUNDS
    return good, log_lines(trial, f"^event=left.*{HIT}", f"^event=joined.*{HIT}")


@harmed(
    "name-taken",
    "node killed in training; another registered node uses its name; the first restarted",
    "the other refused by name; the first back",
)
def name_taken(trial: Trial) -> tuple[bool, str]:
    kill_in_training(trial)
    trial.federation.add_node(PRETENDER, trial.config(HIT)).wait_until_joined()
    taken_in = trial.restart(HIT)
    trial.finish()
    good = counts(trial)[-1] == (3, 3) and bool(refused(trial))
    return good, f"{refused(trial)}; {taken_in}"


@harmed(
    "name-early",
    "registered node uses the name of a node that has never connected",
    "refused by name; the run waits for the right node",
    equal_to="fuels",
)
def name_early(trial: Trial) -> tuple[bool, str]:
    trial.submit()
    trial.federation.add_node(PRETENDER, trial.config(HIT))
    trial.wait_until(lambda: bool(refused(trial)), f"the refusal of {PRETENDER}")
    trial.add(*NODES)
    trial.finish()
    return counts(trial) == COMPLETE and bool(refused(trial)), refused(trial)


@harmed(
    "key-revoked",
    "a node's key revoked in round 2, the node restarted",
    "later rounds go on without it; cannot reconnect",
)
def key_revoked(trial: Trial) -> tuple[bool, str]:
    trial.begin()
    trial.wait_for_rounds(1)
    trial.federation.unregister(trial.nodes[HIT].wait_until_joined())
    trial.finish()
    trial.nodes[HIT].kill()
    trial.nodes[HIT].start()
    code = trial.nodes[HIT].wait_until_ended(deadline=120)
    departure = log_lines(trial, f"^event=left.*{HIT}")
    good = counts(trial)[-1] == (2, 2) and code == 1
    return good, f"{departure}; flower-supernode ended with code {code}"


def refused(trial: Trial) -> str:
    return log_lines(trial, f"^event=refused.*node={PRETENDER}.*calls itself")
