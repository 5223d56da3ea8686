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
from fedproto_app.experiments.sweep import one_run
from fedproto_app.experiments.sweep.conduct import Sweep
from fedproto_app.experiments.sweep.plan import read_plan
from fedproto_app.experiments.sweep.progress import SweepProgress
from fedproto_app.settings import flat_settings
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


def test_a_killed_sweep_goes_on_to_the_same_numbers(
    fedproto: Fedproto, config: Path, tmp_path: Path
) -> None:
    """Killed when the first run is finished and the second is under way; then the same command."""
    folder = tmp_path / "sweep"
    words = [config, "--grid", "method=naive,fuels", "--output", folder, "--parallel", 1]
    with started(*words) as killed:
        wait_until(lambda: any((folder / "002-s0" / "checkpoint").glob("round-*")), killed)
    with RunLock(folder):
        taken = fedproto("sweep", *words)
    assert taken.code == 2
    assert f"is being written by process {os.getpid()} on" in taken.err
    assert (folder / "001-s0" / "summary.json").exists()
    assert not (folder / "002-s0" / "summary.json").exists()
    finished = (folder / "001-s0" / "summary.json").stat().st_mtime_ns

    outcome = fedproto("sweep", *words)
    assert outcome.code == 0
    assert "2 trials × 1 seed = 2 runs, of them 1 done" in outcome.err
    assert (folder / "001-s0" / "summary.json").stat().st_mtime_ns == finished
    plan, trials = read_plan(folder)
    whole = Sweep(tmp_path / "whole", plan, trials)
    for trial in trials:
        settings = whole.settings(trial, 0)
        one_run.make(one_run.Order(flat_settings(settings), plan.nodes, 1))
        name = trial.run_name(0)
        ours, theirs = ((one / name / "clients.csv") for one in (folder, tmp_path / "whole"))
        assert ours.read_bytes() == theirs.read_bytes()

    told = json.loads((folder / "sweep.json").read_text())["trials"]
    chosen = [one["runs"]["0"] for one in told if one["chosen"]]
    assert len(chosen) == 1
    with_models = [one.parent.name for one in folder.glob("*/state")]
    assert with_models == chosen
    again = fedproto("sweep", "--resume", folder)  # all is done: the table once more
    assert again.code == 0
    assert again.out == outcome.out
    assert f"fedproto run {folder / chosen[0] / 'settings.toml'} --nodes 2" in again.out


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
    ("words", "told"),
    [
        (["--grid", "fuels.bta=1,2"], "fuels.bta: unknown setting; did you mean fuels.beta?"),
        (["--grid", "fuels.beta=1,-2"], "fuels.beta = -2: "),
        (
            ["--grid", "methods=fuels"],
            "methods: unknown setting; did you mean method or method-settings?",
        ),
        (["--range", "fuels.beta=1..5"], "a grid has no ranges"),
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
    fedproto: Fedproto, config: Path, words: list[object], told: str
) -> None:
    outcome = fedproto("sweep", config, "--output", "out", *words)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert told in outcome.err
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
    """The table [sweep]; options go over it. Runs that fail are named, and tried again."""
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
    plan, trials = read_plan(Path("told"))
    assert (plan.seeds, plan.nodes, plan.search, len(trials)) == ((5,), 1, "random", 1)
    assert (Path("told") / "001-s5" / "summary.json").exists()
    other = fedproto("sweep", config, "--trials", "1", "--grid", "method=seasonal-naive")
    assert "told holds another sweep: method: seasonal-naive, was naive" in other.err
    more = fedproto("sweep", config, "--trials", "1", "--grid", "method=naive", "--seeds", "5,6")
    assert "say --extend to let it grow" in more.err
    asked = fedproto("sweep", "--resume", "told", "--seeds", "5,6")
    assert "only --parallel may be given" in asked.err


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("sweep = 3", "sweep = 3: must be a table"),
        ("[sweep]\nseed = [1]", "sweep.seed: unknown; did you mean 'seeds'"),
        ("[sweep]\nseeds = 3", "sweep.seeds = 3: must be whole numbers"),
        ("[sweep]\ntrials = 0", "sweep.trials = 0: must be a whole number from 1 on"),
        ("[sweep]\nsearch = 'gird'", "did you mean 'grid'"),
        ("[sweep]\ngrid = 3", "sweep.grid = 3: must be a table"),
        ("[sweep]\noutput = 3\n[sweep.grid]\nrounds = [1]", "sweep.output = 3: must be a folder"),
        ("[sweep.grid]\nrounds = 3", "sweep.grid.rounds = 3: expected a list"),
        ("[sweep.range]\nrounds = [1, 3]", "sweep.range.rounds = [1, 3]: expected LOW..HIGH"),
    ],
)
def test_a_wrong_table_is_refused(fedproto: Fedproto, config: Path, table: str, told: str) -> None:
    config.write_text(table)
    outcome = fedproto("sweep", config)
    assert outcome.code == 2
    assert told in outcome.err


def test_a_folder_of_something_else_is_left_alone(fedproto: Fedproto, config: Path) -> None:
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("dear")
    outcome = fedproto("sweep", config, "--grid", "rounds=1", "--output", "mine")
    assert outcome.code == 2
    assert "holds no sweep, but 'letter.txt'" in outcome.err
    assert Path("mine/letter.txt").exists()
