"""The commands that README.md prints, run as they stand there in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedproto_app.ops.guardian import marked_processes
from fedproto_app.ops.superlink import free_port

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "configs", "fedproto_app", "fedproto_compared")

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


@pytest.fixture
def flower_home(tmp_path: Path) -> Iterator[Path]:
    """A home for the SuperLink that ``flwr run .`` starts and leaves behind."""
    home = tmp_path / "home"
    home.mkdir()
    yield home
    while running := marked_processes(home):
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def block_with(words: str) -> str:
    """Return the only fenced block of README.md that contains these words."""
    blocks = re.findall(r"^```\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (block,) = (block for block in blocks if words in block)
    return str(block)


def test_the_methods_of_the_papers_run_and_compare(tmp_path: Path, flower_home: Path) -> None:
    """Flower's own command ends with the run's table, and installs nothing."""
    checkout = tmp_path / "fedproto-app"
    checkout.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir():
            no_cache = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=no_cache)
        else:
            shutil.copy(ROOT / name, checkout)
    script = block_with("flwr run")
    done = subprocess.run(
        ["bash", "-euxc", script],
        cwd=checkout,
        env={
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(checkout),
            "FLWR_HOME": str(flower_home),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "SPT_NOENV": "1",  # Ray's renamed processes keep the environment that marks them
        },
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fuels on synthetic-traffic: 24 clients, 5 rounds" in done.stdout, done.stdout
    compared = done.stdout.rpartition("\nsynthetic-traffic\n")[2]
    assert "\nFedAvg" in compared
    assert "\nFUELS" in compared, compared
    assert list(flower_home.rglob("torch")) == []
