"""The threads of this process: how many cores it has, and parts of a piece of work on them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")

_GROUPS = Path("/sys/fs/cgroup")  # a container's limits


def cores() -> int:
    """Return the number of cores that this process may use, also under a container's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return max(1, int(min(len(allowed) or os.cpu_count() or 1, _quota(_GROUPS))))


def _quota(groups: Path) -> float:
    """Return the number of cores whose time the control group may use, infinite without a limit."""
    with suppress(OSError, ValueError):
        limit, period = (groups / "cpu.max").read_text().split()
        return float(limit) / float(period)  # "max" is no number
    with suppress(OSError, ValueError):  # version 1, where -1 is no limit
        limit = (groups / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (groups / "cpu" / "cpu.cfs_period_us").read_text()
        return float(limit) / float(period) if int(limit) > 0 else math.inf
    return math.inf


def in_threads(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """What work makes of each part, in the order of the parts, whichever is done first.

    Runs on `pool_size` threads, for large pieces of work in numpy or torch, which let other threads
    run meanwhile. Raises the first error of work.
    """
    with ThreadPoolExecutor(pool_size()) as pool:
        yield from pool.map(work, parts)


def pool_size() -> int:
    """Return the number of threads for large work: one a core, or OMP_NUM_THREADS."""
    set_number = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(set_number)) if set_number.isdecimal() else cores()


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use this many threads in a ``with`` block.

    A server's checks and sums are small. On several threads each waits for all the others, on a
    busy machine for 17 to 50 times as long as the work takes. What is large uses `in_threads`.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
