"""A running Ray cluster that ``fedproto run --engine flower --ray-address`` simulates on.

Ray is asked in a process of its own, which is this file's program: Ray retries for minutes where no
cluster answers, and this process must stay outside of Ray.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedproto_app.core.errors import SettingsError
from fedproto_app.node.process import RAY_HEAD

_ANSWER_DEADLINE = 30.0  # seconds
_FREE_DEADLINE = 10.0  # seconds in which the CPUs of a run that has just ended become free


class Machine(NamedTuple):
    """What Ray may use of a machine."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class RayCluster:
    """A cluster whose head is this machine. address: HOST:PORT."""

    address: str
    machines: list[Machine]


def cluster_at(address: str, cpus: int) -> RayCluster:
    """Return the cluster at HOST:PORT, or with "auto" the cluster that Ray finds.

    cpus: CPUs of a simulated node. Raises `SettingsError` unless the cluster answers, this machine
    is its head, no other job uses its CPUs and a node fits on one of its machines.
    """
    option = f"--ray-address {address}"
    if address != "auto" and not re.fullmatch(r"[^/\s]+:\d+", address):
        raise SettingsError(f"{option}: must be HOST:PORT of a Ray cluster's head, or auto")
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_DEADLINE,
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise SettingsError(
            f"{option}: no Ray cluster with a machine here answered within {_ANSWER_DEADLINE:.0f} s"
        ) from None
    except (IndexError, ValueError):
        raise SettingsError(f"{option}: Ray failed: {done.stderr.strip()[-300:]!r}") from None
    if "error" in answer:
        raise SettingsError(f"{option}: {answer['error']}")
    machines = [Machine(*machine) for machine in answer["machines"]]
    if not answer["is_head"]:
        raise SettingsError(f"{option}: run this command on the cluster's head, {answer['head']}")
    total, largest = sum(machine.cpus for machine in machines), max(machines).cpus
    if answer["free"] < total:
        raise SettingsError(
            f"{option}: {answer['free']:g} of {total} CPUs are free; a simulation needs all"
        )
    if cpus > largest:
        raise SettingsError(
            f"--cpus-per-node {cpus}: the largest machine of the Ray cluster {answer['address']} "
            f"has {largest}"
        )
    return RayCluster(answer["address"], machines)


def _ask(address: str) -> dict[str, Any]:
    """Return what Ray says of the cluster, as JSON's types."""
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # also for other versions of Python and Ray
        return {"error": " ".join(str(error).split())}
    driver = ray.get_runtime_context()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    [head] = [node for node in nodes if RAY_HEAD in node["Resources"]]
    machines = [[int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU")] for node in nodes]
    free, deadline = -1.0, time.monotonic() + _FREE_DEADLINE
    while free < sum(cpus for cpus, _ in machines) and time.monotonic() < deadline:
        time.sleep(0.2)
        free = ray.available_resources().get("CPU", 0)
    return {
        "address": driver.gcs_address,
        "is_head": head["NodeID"] == driver.get_node_id(),
        "head": head["NodeManagerAddress"],
        "machines": machines,
        "free": free,
    }


if __name__ == "__main__":
    print(json.dumps(_ask(sys.argv[1])))
