"""Settings of all tests, and the division into parts."""

from __future__ import annotations

from contextlib import nullcontext
from zlib import crc32

import pytest
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import settings

# A slow machine is no fault of the tested code.
settings.register_profile("fedproto", deadline=None)
settings.load_profile("fedproto")

# Flower's processes set this before an app runs; messages cannot be made without it.
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


@pytest.fixture(autouse=True)
def _without_worker_processes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let runs train in this process unless a test is about the processes.

    A run's results are the same, as `tests/engine/test_simulation.py` shows, and each process
    would spend seconds on imports.
    """
    if "worker_processes" not in request.fixturenames:
        pool = "fedproto_app.experiments.simulation.WorkerPool"
        monkeypatch.setattr(pool, lambda *_: nullcontext())


@pytest.fixture
def worker_processes() -> None:
    """Let runs start worker processes, as outside of tests."""


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
