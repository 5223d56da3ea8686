"""What is asked of a Ray cluster before a simulation, with a stand-in for the process that asks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.ops import ray_cluster
from fedproto_app.ops.ray_cluster import Machine, RayCluster, cluster_at

ANSWER = {
    "address": "10.0.0.1:6379",
    "is_head": True,
    "head": "10.0.0.1",
    "machines": [[2, 0], [8, 1]],
    "free": 10.0,
}


def answers(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let this Python program answer instead of Ray's."""
    real = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        assert command[-1] == "auto"
        return real([sys.executable, "-c", program], **options)

    monkeypatch.setattr(subprocess, "run", run)


def test_the_address_and_the_machines_are_the_cluster_s(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, f"print('Ray says hello'); print({json.dumps(ANSWER)!r})")
    machines = [Machine(2, 0), Machine(8, 1)]
    assert cluster_at("auto", 8) == RayCluster("10.0.0.1:6379", machines)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ANSWER | {"is_head": False}, "run this command on the cluster's head, 10.0.0.1"),
        (ANSWER | {"free": 9.0}, "9 of 10 CPUs are free; a simulation needs all"),
        ({"error": "Version mismatch"}, "Version mismatch"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], message: str
) -> None:
    answers(monkeypatch, f"print({json.dumps(answer)!r})")
    with pytest.raises(SettingsError, match=f"^--ray-address auto: {message}$"):
        cluster_at("auto", 1)


def test_a_node_must_fit_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, f"print({json.dumps(ANSWER)!r})")
    message = "--cpus-per-node 9: the largest machine of the Ray cluster 10.0.0.1:6379 has 8"
    with pytest.raises(SettingsError, match=f"^{message}$"):
        cluster_at("auto", 9)


def test_a_failure_of_ray_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "import sys; sys.exit('GCS is\\nnot there')")
    with pytest.raises(
        SettingsError, match=r"^--ray-address auto: Ray failed: 'GCS is\\nnot there'$"
    ):
        cluster_at("auto", 1)


def test_a_cluster_that_does_not_answer_meets_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "import time; time.sleep(99)")
    monkeypatch.setattr(ray_cluster, "_ANSWER_DEADLINE", 0.2)
    with pytest.raises(SettingsError, match="no Ray cluster with a machine here answered within"):
        cluster_at("auto", 1)


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", ""])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    expected = re.escape(f"--ray-address {address}: must be HOST:PORT of a Ray cluster's head")
    with pytest.raises(SettingsError, match=expected):
        cluster_at(address, 1)
