"""Settings of all tests, and the division into parts."""

from __future__ import annotations

from zlib import crc32

import pytest
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import settings

# A slow machine is no fault of the tested code.
settings.register_profile("fedproto", deadline=None)
settings.load_profile("fedproto")

# Flower's processes set this before an app runs; messages cannot be made without it.
TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="2/3: the second of three parts of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select a part by the tests' names, so that a new test does not move others."""
    part, parts = map(int, config.getoption("--part").split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part {part}/{parts}: 1/{parts} … {parts}/{parts}")
    selected = [crc32(item.nodeid.encode()) % parts == part - 1 for item in items]
    deselected = [item for item, is_there in zip(items, selected, strict=True) if not is_there]
    items[:] = [item for item, is_there in zip(items, selected, strict=True) if is_there]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
