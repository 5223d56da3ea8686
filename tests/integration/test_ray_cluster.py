"""`fedproto run --ray-address` on a Ray cluster of two machines, which are two raylets here.

Ray tells them apart by their ids alone, so state that the second uses travels as over a network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.events import parse_event
from fedproto_app.ops.guardian import Guardian, marked_processes
from fedproto_app.ops.superlink import free_port
from fedproto_app.settings import flat_settings
from tests.helpers.local_grid import small_settings

ROOT = Path(__file__).parents[2]
NODES, ROUNDS = 4, 3
_FEDPROTO = [sys.executable, "-c", "from fedproto_app.cli.main import main; main()"]

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two machines with a CPU each."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        home, port = Path(name), free_port()
        with Guardian(home):
            try:
                start_machine(home, "head", "--head", f"--port={port}", "--include-dashboard=false")
                start_machine(home, "other", f"--address=127.0.0.1:{port}")
                yield f"127.0.0.1:{port}"
            finally:
                end_all(home)


def start_machine(home: Path, name: str, *options: str) -> None:
    program = Path(sys.executable).with_name("ray")
    ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    folder = f"--temp-dir={home / name}"
    marked = {"FLWR_HOME": str(home), "SPT_NOENV": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [program, "start", *options, *ports, folder, "--num-cpus=1", "--disable-usage-stats"],
        env={**os.environ, **marked},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def end_all(home: Path) -> None:
    deadline = time.monotonic() + 30
    while (running := marked_processes(home)) and time.monotonic() < deadline:
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_FEDPROTO, "run", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def settings_of(folder: Path, name: str) -> list[str]:
    changes: dict[str, Any] = {"method": "ditto", "rounds": ROUNDS, "output.name": name}
    settings = small_settings(folder, **changes, **{"nodes.start-deadline": 120.0})
    table = flat_settings(settings) | {"nodes.round-deadline": 120.0}
    changed = [f"--set={key}={value}" for key, value in table.items()]
    return [change.replace("=True", "=true").replace("=False", "=false") for change in changed]


def test_a_cluster_gives_the_results_of_one_machine(tmp_path: Path, cluster: str) -> None:
    options = {
        "process": [],
        "flower": ["--engine=flower"],
        "cluster": ["--engine=flower", "--ray-address=auto"],
    }
    for name, chosen in options.items():
        changes = settings_of(tmp_path, name)
        done = run(tmp_path, f"--nodes={NODES}", *chosen, *changes, RAY_ADDRESS=cluster)
        assert done.returncode == 0, done.stderr
    runs = {name: tmp_path / "runs" / name for name in options}
    assert len({(folder / "clients.csv").read_bytes() for folder in runs.values()}) == 1

    orders = 2 * ROUNDS * NODES  # train and evaluate
    assert 0 < borrowings(runs["cluster"]) < orders  # both machines work
    assert borrowings(runs["flower"]) == 0  # RAY_ADDRESS alone selects no cluster

    for name in ("process", "cluster"):  # the state is whole: a run goes on here
        done = run(tmp_path, "--resume", str(runs[name]), f"--set=rounds={ROUNDS + 2}")
        assert done.returncode == 0, done.stderr
    resumed = {(runs[name] / "clients.csv").read_bytes() for name in ("process", "cluster")}
    assert len(resumed) == 1


def borrowings(folder: Path) -> int:
    """Return how many orders have given changed state back."""
    events = map(parse_event, (folder / "flower.log").read_text().splitlines())
    return sum(e.get("event") == "borrowed" and e["returned"] != "0" for e in events)


def test_what_a_cluster_has_not_is_refused(tmp_path: Path, cluster: str) -> None:
    options = ["--engine=flower", "--ray-address", cluster, "--cpus-per-node=2"]
    done = run(tmp_path, *options)
    assert done.returncode == 2
    assert "error: --cpus-per-node 2: the largest machine of the Ray cluster " in done.stderr
