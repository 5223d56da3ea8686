"""Settings of all tests, and the division into parts."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from zlib import crc32

import pytest
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import settings

from fedproto_app.experiments import simulation
from fedproto_app.node import state_file

# A slow machine is no fault of the tested code.
settings.register_profile("fedproto", deadline=None)
settings.load_profile("fedproto")

# Flower's processes set this before an app runs; messages cannot be made without it.
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


@pytest.fixture(scope="session", autouse=True)
def _without_worker_processes() -> Iterator[None]:
    """Let runs train in this process, because each process would spend seconds on imports.

    `tests/engine/test_simulation.py` shows that the results are the same, and programs that tests
    start, such as the notebook of `tests/test_api.py`, have worker processes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "WorkerPool", lambda *_: nullcontext())
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_waiting_for_the_disk() -> Iterator[None]:
    """Do not wait until the writes of the tests' own process reach the disk.

    The operating system keeps them even if the process is killed. Waiting would take a sixth of the
    time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_file, "_PRAGMAS", (*state_file._PRAGMAS, "synchronous = OFF"))
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Start one worker more than there are processors, because some tests wait for processes."""
    workers = yield
    return workers + ("PYTEST_XDIST_AUTO_NUM_WORKERS" not in os.environ)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "2/3: of the tests marked exhaustive, only the second of three parts"
    parser.addoption("--part", default="1/1", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the other parts, by the tests' names, so that a new test does not move others."""
    part, parts = map(int, config.getoption("--part").split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part {part}/{parts}: 1/{parts} … {parts}/{parts}")
    kept, left_out = [], []
    for item in items:
        elsewhere = crc32(item.nodeid.encode()) % parts != part - 1
        is_out = elsewhere and item.get_closest_marker("exhaustive")
        (left_out if is_out else kept).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)
