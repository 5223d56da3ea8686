"""Runs over worker processes end as in one process, however many there are and however they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.parts import wait_until
from fedproto_app.core.errors import FederationError
from fedproto_app.core.wire import roster_query
from fedproto_app.engine import frames, simulation
from fedproto_app.engine.pool import WorkerPool
from fedproto_app.engine.simulation import WorkerGrid, simulate, simulate_without_workers
from fedproto_app.node import process
from fedproto_app.node.store import ClientStore
from fedproto_app.settings import Settings, settings_from
from tests.helpers.local_grid import (
    digits_settings,
    run_locally,
    sequence_settings,
    small_settings,
    synthetic_nodes,
)

NODES = 2
PATIENCE = {"nodes.start-deadline": 60.0, "nodes.round-deadline": 60.0}
PROGRAM = [sys.executable, "-c", "from fedproto_app.cli.main import main; main()"]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(4, tmp_path_factory.mktemp("pool") / "log") as started:
        yield started


def ignore(record: Mapping[str, Any]) -> None: ...


def clients_csv(folder: Path) -> bytes:
    return (folder / "clients.csv").read_bytes()


@pytest.mark.parametrize(
    ("make", "changes", "numbers"),
    [
        (small_settings, {"method": "fuels"}, (1, 2, 4)),
        (small_settings, {"method": "fedrep", "participation": 0.6, "evaluate-every": 2}, (4,)),
        (small_settings, {"method": "fedgru"}, (4,)),  # asks clients a question
        pytest.param(digits_settings, {"method": "gldp"}, (1, 2, 4), marks=pytest.mark.exhaustive),
        (sequence_settings, {"method": "fed-react"}, (4,)),
    ],
    ids=["fuels", "fedrep", "fedgru", "gldp", "fed-react"],
)
def test_any_number_of_workers_gives_the_same_bits(
    pool: WorkerPool, tmp_path: Path, make: Any, changes: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    """Cohorts of two clients: with four workers, two share the cohorts of each node."""
    changes = {**changes, **PATIENCE, "cohort-size": 2}
    local = make(tmp_path, **{**changes, "output.name": "here"})
    expected, _ = run_locally(local, synthetic_nodes(NODES, tmp_path / "state", local.data.source))
    for workers in numbers:
        shown: list[Mapping[str, Any]] = []
        simulated = make(tmp_path, **{**changes, "output.name": f"workers-{workers}"})
        folder = simulate(simulated, NODES, pool, workers, shown.append)
        assert clients_csv(folder.path) == clients_csv(expected.path), workers
        assert [line["round"] for line in shown] == list(range(1, simulated.all_rounds + 1))
        for node in ("0", "1"):  # what was in memory is on the disk in the end
            ours = ClientStore(folder.path / "state" / node)
            assert len(ours.kept_clients()) == 4
    in_process = make(tmp_path, **{**changes, "output.name": "without-workers"})
    folder = simulate_without_workers(in_process, NODES, ignore)
    assert clients_csv(folder.path) == clients_csv(expected.path)
    assert not process.in_simulation()


def test_parts_of_replies_are_read_by_one_thread(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads that parse the headers of numpy's arrays at once make Python 3.11 fail."""
    threads = set[int]()
    read = frames.read_part

    def observed(content: bytes) -> Any:
        threads.add(threading.get_ident())
        return read(content)

    monkeypatch.setattr(frames, "read_part", observed)
    settings = small_settings(tmp_path, **PATIENCE, method="solo", **{"cohort-size": 2})
    simulate(settings, NODES, pool, 4, ignore)
    assert threads == {threading.get_ident()}


def test_answers_that_nobody_wants_any_more_end_no_wait(pool: WorkerPool) -> None:
    """As after a deadline: the server would look for the others without a pause."""
    pool.start({}, 1, 0)
    grid = WorkerGrid(pool, 1, 1)
    [late] = grid.push_messages([roster_query(1000)])
    grid.wait(60.0)
    assert not [*grid.pull_messages([])]
    start = time.monotonic()
    grid.wait(0.3)
    assert time.monotonic() - start >= 0.3
    assert [*grid.pull_messages([late])]


def test_the_workers_of_a_node_are_nobody_elses_where_there_are_enough(pool: WorkerPool) -> None:
    def workers_by_node(nodes: int, workers: int) -> list[list[int]]:
        grid = WorkerGrid(pool, nodes, workers)
        return [grid.workers_of(node) for node in range(nodes)]

    assert workers_by_node(3, 2) == [[0], [1], [0]]
    assert workers_by_node(2, 2) == [[0], [1]]
    assert workers_by_node(2, 5) == [[0, 2, 4], [1, 3]]


class Killed(BaseException):
    """The engine ends here."""


def test_a_run_that_is_killed_between_checkpoints_ends_the_same(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints after rounds 2 and 4 of 6. The run is killed after 3 and, resumed, after 5.

    Each time other processes work for the nodes: first one each, then two each, then one for both.
    """
    changes = {"method": "fedrep", "rounds": 6, **PATIENCE}
    uninterrupted = small_settings(tmp_path, **{**changes, "output.name": "whole"})
    expected, _ = run_locally(uninterrupted, synthetic_nodes(NODES, tmp_path / "state"))

    def is_due(self: simulation.WithState, *, last: bool) -> bool:
        rounds.append(rounds[-1] + 1 if rounds else 1)
        return last or rounds[-1] % 2 == 0

    monkeypatch.setattr(simulation.WithState, "is_due", is_due)

    def killed_after(server_round: int) -> Any:
        def show(record: Mapping[str, Any]) -> None:
            if record["round"] == server_round:
                raise Killed

        return show

    cut = small_settings(tmp_path, **{**changes, "output.name": "cut"})
    for kill, resume, workers in ((3, False, 2), (5, True, 4), (0, True, 1)):
        rounds: list[int] = [2] if resume else []
        rounds = [4] if kill == 0 else rounds
        settings = resumed(cut) if resume else cut
        # What they held in memory is gone with them.
        with WorkerPool(workers, tmp_path / "log") as new_pool:
            if kill:
                with pytest.raises(Killed):
                    simulate(settings, NODES, new_pool, workers, killed_after(kill))
            else:
                simulate(settings, NODES, new_pool, workers, ignore)
    assert clients_csv(tmp_path / "runs" / "cut") == clients_csv(expected.path)


@pytest.mark.parametrize(("interval", "waits"), [(5.0, 8.0), (9.0, 9.0), (0.0, 0.0)])
def test_checkpoints_that_take_long_are_rare(
    monkeypatch: pytest.MonkeyPatch, interval: float, waits: float
) -> None:
    """Two seconds of writing: the next is due four times as long after its end."""
    clock = [100.0]
    monkeypatch.setattr("fedproto_app.engine.simulation.time.monotonic", lambda: clock[0])

    class SlowPool:
        def flush(self) -> None:
            clock[0] += 2.0

    state: Any = simulation.WithState(cast(WorkerPool, SlowPool()), interval)
    assert state.is_due(last=False)  # after the first round
    state.prepare()
    clock[0] += max(0.0, waits - 0.1)
    assert state.is_due(last=False) == (waits == 0)
    assert state.is_due(last=True)
    clock[0] += 0.2
    assert state.is_due(last=False)


def test_state_that_workers_share_never_runs_ahead_of_the_checkpoint(
    pool: WorkerPool, tmp_path: Path
) -> None:
    """Quick rounds, two workers per node, killed after round 7: the states are from round 6."""
    changes = {"method": "solo", "rounds": 8, "cohort-size": 2, **PATIENCE}
    uninterrupted = small_settings(tmp_path, **{**changes, "output.name": "whole"})
    expected, _ = run_locally(uninterrupted, synthetic_nodes(NODES, tmp_path / "state"))
    cut = small_settings(tmp_path, **{**changes, "output.name": "cut"})

    def kill(record: Mapping[str, Any]) -> None:
        if record["round"] == 7:
            raise Killed

    with pytest.raises(Killed):
        simulate(cut, NODES, pool, 4, kill)
    repeated_rounds: list[int] = []
    simulate(resumed(cut), NODES, pool, 4, lambda record: repeated_rounds.append(record["round"]))
    assert repeated_rounds == [7, 8]
    assert clients_csv(tmp_path / "runs" / "cut") == clients_csv(expected.path)


def resumed(settings: Settings) -> Settings:
    table = settings.model_dump(by_alias=True)
    table["output"]["resume"] = True
    return settings_from(table)


def test_a_worker_that_is_killed_is_told_and_stops_the_run(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, rounds=40, **PATIENCE)
    before = first_workers()
    with WorkerPool(2, tmp_path / "log") as pool:

        def kill(record: Mapping[str, Any]) -> None:
            if record["round"] == 2:
                (victim,) = first_workers() - before
                os.kill(victim, signal.SIGKILL)

        with pytest.raises(FederationError, match="worker process 1 of 2 has ended"):
            simulate(settings, NODES, pool, 2, kill)
    assert "worker process" in (tmp_path / "runs" / "test" / "error.txt").read_text()


def test_sigkill_of_the_command_leaves_no_worker(tmp_path: Path) -> None:
    changes = ["--set=rounds=400", "--set=data.synthetic.clients=4", "--set=output.name=mine"]
    command = [*PROGRAM, "run", "--workers", "3", *changes]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        rounds = tmp_path / "runs" / "mine" / "rounds.jsonl"
        wait_until(lambda: rounds.exists() and rounds.stat().st_size > 0, "a round", 120)
        workers = descendants_of(process.pid)
        assert len(workers) == 4  # with the starter
        process.kill()
    wait_until(lambda: not any(map(is_alive, workers)), "the end of the workers", 10)


def first_workers() -> set[int]:
    """Return the first worker of each pool of this process."""
    return {worker for starter in children_of(os.getpid()) for worker in children_of(starter)}


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def children_of(process: int) -> list[int]:
    """Return the engine's processes, without pytest-xdist's."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            words = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == process and b"engine.starter" in words and fields[0] != "Z":
            children.append(int(stat.parent.name))
    return children


def descendants_of(process: int) -> list[int]:
    children = children_of(process)
    return children + [further for child in children for further in descendants_of(child)]


def test_a_flush_that_fails_names_the_reason_and_ends_no_worker(
    pool: WorkerPool, tmp_path: Path
) -> None:
    settings = small_settings(tmp_path, rounds=2, **PATIENCE)
    lost = tmp_path / "runs" / "test" / "state"
    flush = pool.flush

    def without_a_place() -> None:
        shutil.rmtree(lost)
        lost.touch()
        flush()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "flush", without_a_place)
        with pytest.raises(FederationError, match=r"worker process cannot write its state: Not a"):
            simulate(settings, NODES, pool, 2, ignore)
    next_run = small_settings(tmp_path, rounds=1, **PATIENCE, **{"output.name": "after"})
    simulate(next_run, NODES, pool, 2, ignore)
