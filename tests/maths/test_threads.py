"""The cores of this process, also within a container's quota."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproto_app.maths import threads


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_a_quota_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(threads, "_GROUPS", tmp_path)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads.cores() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.pool_size() == min(2, expected)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads.pool_size() == expected
