"""``fedproto run`` through real Flower processes, with an app that trains nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.parts import wait_until
from fedproto_app.ops.guardian import marked_processes
from tests.cli.toy_app import write_app
from tests.report.made_runs import make_run

_FEDPROTO = [sys.executable, "-c", "from fedproto_app.cli.main import main; main()"]

pytestmark = pytest.mark.integration


def fedproto(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_FEDPROTO, "run", "--engine", "flower", "--app", "app", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_app(tmp_path / "app", make_run(tmp_path / "made"))
    return tmp_path


def test_a_run_completes_and_nothing_stays_behind(folder: Path) -> None:
    done = fedproto(folder, "--set", "output.name=first", "--verbose")
    assert done.returncode == 0, done.stderr
    assert "toy server at work" in done.stderr
    assert "round 3/40" in done.stderr
    assert "fuels on toy: 2 clients" in done.stdout
    run = folder / "runs" / "first"
    assert done.stdout.endswith(f"artefacts: {run}\n")
    assert "toy server at work" in (run / "flower.log").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "message"),
    [("fedavg", "error: node 1 never came\n"), ("solo", "RuntimeError: the toy breaks\n")],
)
def test_a_run_that_fails_in_flower_fails_here(folder: Path, method: str, message: str) -> None:
    done = fedproto(folder, "--set", f"method={method}", "--set", "output.name=first")
    assert done.returncode == 1
    assert message in done.stderr
    assert (folder / "runs" / "first" / "flower.log").exists()


def test_a_run_that_is_killed_leaves_nothing_behind(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # Ray's sockets need a short path
        process = subprocess.Popen(
            [
                *(*_FEDPROTO, "run", "--engine", "flower", "--app", "app"),
                *("--set=method=ditto", "--set=output.name=first"),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": short},
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until((folder / "runs" / "first" / "at-work").exists, "a client at work", 120)
            (home,) = Path(short).glob("fedproto-*")
            assert len(marked_processes(home)) > 3
        finally:
            process.kill()
            process.wait()
        wait_until(lambda: not home.exists(), "the end of the folder", 30)
        assert marked_processes(home) == {}
