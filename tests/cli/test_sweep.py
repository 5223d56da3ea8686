"""``fedproto sweep`` with real runs, and what it refuses before any."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedproto_app.core.run_lock import RunLock
from fedproto_app.experiments.sweep import read_plan
from fedproto_app.experiments.sweep_runs import SweepProgress
from tests.cli.conftest import Fedproto

PROGRAM = [sys.executable, "-c", "from fedproto_app.cli.main import main; main()"]
LONGEST = 300.0  # seconds
SMALL = """
rounds = 15
[model]
representation-dim = 4
[data.synthetic]
clients = 2
days = 28
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of small settings, in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LONGEST
    while not true():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*PROGRAM, "sweep", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.exhaustive
def test_a_killed_sweep_goes_on_to_the_same_numbers(
    fedproto: Fedproto, config: Path, tmp_path: Path
) -> None:
    """Killed in the second run, the sweep goes on from there with the same command."""
    folder = tmp_path / "sweep"
    words = [config, "--grid", "method=naive,fuels", "--output", folder, "--parallel", 1]
    with started(*words) as killed:
        wait_until(lambda: any((folder / "002-s0" / "checkpoint").glob("round-*")), killed)
    with RunLock(folder):
        refused = fedproto("sweep", *words)
    assert refused.code == 2
    assert f"is being written by process {os.getpid()} on" in refused.err
    assert (folder / "001-s0" / "summary.json").exists()
    assert not (folder / "002-s0" / "summary.json").exists()
    finished = (folder / "001-s0" / "summary.json").stat().st_mtime_ns

    outcome = fedproto("sweep", *words)
    assert outcome.code == 0
    assert "2 trials × 1 seed = 2 runs, of them 1 done" in outcome.err
    assert (folder / "001-s0" / "summary.json").stat().st_mtime_ns == finished
    other_folder = tmp_path / "whole"
    assert fedproto("sweep", *words[:3], "--output", other_folder).code == 0
    for name in ("001-s0", "002-s0"):
        resumed, uninterrupted = (place / name / "clients.csv" for place in (folder, other_folder))
        assert resumed.read_bytes() == uninterrupted.read_bytes()

    records = json.loads((folder / "sweep.json").read_text())["trials"]
    chosen = [record["runs"]["0"] for record in records if record["chosen"]]
    assert len(chosen) == 1
    with_models = [path.parent.name for path in folder.glob("*/state")]
    assert with_models == chosen
    repeated = fedproto("sweep", "--resume", folder)  # all is done: the table once more
    assert repeated.code == 0
    assert repeated.out == outcome.out
    assert f"fedproto run {folder / chosen[0] / 'settings.toml'} --nodes 2" in repeated.out


def test_ctrl_c_ends_the_runs_and_tells_how_to_go_on(
    fedproto: Fedproto, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, running = tmp_path / "sweep", []

    def interrupt(self: SweepProgress) -> None:
        running.extend(job for job in self.jobs if (job.folder / "lock").exists())
        if running:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SweepProgress, "look", interrupt)
    outcome = fedproto("sweep", config, "--grid", "rounds=500,501", "--output", folder)
    assert outcome.code == 128 + signal.SIGINT
    assert outcome.err.endswith(
        f"stopped; 0 of 2 runs are finished; go on with: fedproto sweep --resume {folder}\n"
    )
    RunLock(running[0].folder).close()  # its process has ended
    RunLock(folder).close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "fuels.bta=1,2"], "fuels.bta: unknown setting; did you mean fuels.beta?"),
        (["--grid", "fuels.beta=1,-2"], "fuels.beta = -2: "),
        (
            ["--grid", "methods=fuels"],
            "methods: unknown setting; did you mean method or method-settings?",
        ),
        (["--grid", "rounds"], "--grid rounds: expected KEY="),
        (["--grid", "rounds=1", "--grid", "rounds=2"], "rounds: is swept twice"),
        (["--search", "random", "--trials", 3, "--range", "rounds=-5..0"], "rounds = -"),
        (["--grid", "rounds=1", "--seeds", "0,x"], "--seeds 0,x: expected whole numbers"),
        (["--grid", "rounds=1", "--set", "data.path=x"], "data.path"),
        (
            ["--grid", "method=fuels,gldp", "--grid", "rounds=1,2"],
            "method = 'gldp'",
        ),
        ([], "nothing to sweep"),
    ],
)
def test_all_is_checked_before_anything_starts(
    fedproto: Fedproto, config: Path, words: list[object], message: str
) -> None:
    outcome = fedproto("sweep", config, "--output", "out", *words)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert message in outcome.err
    assert not Path("out").exists()


def test_data_that_cannot_be_read_are_told_before_anything_starts(
    fedproto: Fedproto, config: Path
) -> None:
    Path("one.csv").write_text("a,b\n1,2\n")
    words = ["--set", "data.source=wide-csv", "--grid", "data.path=one.csv,two.csv"]
    outcome = fedproto("sweep", config, *words)
    assert outcome.code == 2
    assert "none of 2 clients can take part" in outcome.err
    assert not list(Path("sweeps").glob("*"))


def test_a_file_may_say_it_all(fedproto: Fedproto, config: Path) -> None:
    """Options go over the table [sweep]. Runs that fail are named, and run again by a repeat."""
    config.write_text(
        SMALL
        + """
[sweep]
search = "random"
trials = 2
seeds = [5]
nodes = 1
output = "told"
[sweep.grid]
method = ["naive", "seasonal-naive"]
[sweep.range]
"optimizer.learning-rate" = "1e-4..1e-2:log"
"""
    )
    wrong = fedproto("sweep", config, "--trials", "3", "--grid", "method=naiv")
    assert wrong.code == 2
    assert "did you mean 'naive'?" in wrong.err
    outcome = fedproto("sweep", config, "--trials", "1", "--grid", "method=naive")
    assert outcome.code == 0
    assert "1 trial × 1 seed = 1 run:" in outcome.err
    plan = read_plan(Path("told"))
    assert (plan.seeds, plan.nodes, plan.search, plan.trials) == ([5], 1, "random", 1)
    assert (Path("told") / "001-s5" / "summary.json").exists()
    changed = fedproto("sweep", config, "--trials", "1", "--grid", "method=seasonal-naive")
    assert "another sweep: grid.method = ['seasonal-naive'], was ['naive']" in changed.err
    more = fedproto("sweep", config, "--trials", "1", "--grid", "method=naive", "--seeds", "5,6")
    assert "add --extend to let it grow" in more.err
    resumed = fedproto("sweep", "--resume", "told", "--seeds", "5,6")
    assert "leave out all other options except --parallel" in resumed.err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("sweep = 3", "sweep = 3: must be a table"),
        ("[sweep]\nseed = [1]", "sweep.seed: unknown setting; did you mean sweep.seeds?"),
    ],
)
def test_a_wrong_table_is_refused(
    fedproto: Fedproto, config: Path, table: str, message: str
) -> None:
    config.write_text(table)
    outcome = fedproto("sweep", config)
    assert outcome.code == 2
    assert message in outcome.err
