"""Faults of identity: another node's name, a new key, a revoked key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.faults.nodes import kill_in_training
from benchmarks.faults.rows import HIT, counts, log_lines, row
from benchmarks.faults.table import Row, fault
from benchmarks.faults.trial import NODES, ROUNDS, Trial

PRETENDER = "pretender"  # the name under which the hostile node is registered


@fault("node-new-key")
def node_new_key(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        kill_in_training(trial)
        trial.federation.add_node(f"{HIT}-2", trial.config(HIT), known_as=HIT)
        trial.finish()
        yield row(
            trial,
            "node killed in training, restarted with a new key registered under its name",
            "absent until Flower drops its old id, then back with its state",
            good=counts(trial)[-1] == (3, 3) and len(counts(trial)) == ROUNDS,
            also=log_lines(trial, f"^event=left.*{HIT}", f"^event=joined.*{HIT}"),
        )


@fault("name-taken")
def name_taken(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        kill_in_training(trial)
        trial.federation.add_node(PRETENDER, trial.config(HIT)).wait_until_joined()
        taken_in = trial.restart(HIT)
        trial.finish()
        yield row(
            trial,
            "node killed in training; another registered node uses its name; the first restarted",
            "the other refused by name; the first back",
            good=counts(trial)[-1] == (3, 3) and bool(refused(trial)),
            also=f"{refused(trial)}; {taken_in}",
        )


@fault("name-early", "fuels")
def name_early(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.submit()
        trial.federation.add_node(PRETENDER, trial.config(HIT))
        trial.wait_until(lambda: bool(refused(trial)), f"the refusal of {PRETENDER}")
        trial.add(*NODES)
        trial.finish()
        yield row(
            trial,
            "registered node uses the name of a node that has never connected",
            "refused by name; the run waits for the right node",
            good=counts(trial) == [(3, 3)] * ROUNDS and bool(refused(trial)),
            method="fuels",
            also=refused(trial),
        )


@fault("key-revoked")
def key_revoked(folder: Path) -> Iterator[Row]:
    with Trial(folder) as trial:
        trial.begin()
        trial.wait_for_rounds(1)
        trial.federation.unregister(trial.nodes[HIT].wait_until_joined())
        trial.finish()
        trial.nodes[HIT].kill()
        trial.nodes[HIT].start()
        code = trial.nodes[HIT].wait_until_ended(deadline=120)
        yield row(
            trial,
            "a node's key revoked in round 2, the node restarted",
            "later rounds go on without it; cannot reconnect",
            good=counts(trial)[-1] == (2, 2) and code == 1,
            also=f"{log_lines(trial, f'^event=left.*{HIT}')}; "
            f"flower-supernode ended with code {code}",
        )


def refused(trial: Trial) -> str:
    return log_lines(trial, f"^event=refused.*node={PRETENDER}.*calls itself")
