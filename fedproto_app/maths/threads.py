"""The threads of this process: how many cores it may use, and how work is divided among them."""

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
    """Return how many cores this process may use. A container's quota is taken into account."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return max(1, int(min(len(allowed) or os.cpu_count() or 1, _quota())))


def _quota() -> float:
    """Return how many cores' time the control group may use, infinite if it has no limit."""
    with suppress(OSError, ValueError):
        limit, period = (_GROUPS / "cpu.max").read_text().split()
        return float(limit) / float(period)  # fails for "max", which is not a number
    with suppress(OSError, ValueError):  # version 1 of control groups, where -1 means no limit
        limit = (_GROUPS / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (_GROUPS / "cpu" / "cpu.cfs_period_us").read_text()
        return float(limit) / float(period) if int(limit) > 0 else math.inf
    return math.inf


def in_threads(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """Yield the result of `work` for each part, in the order of the parts.

    Runs on `pool_size` threads. It suits large pieces of work in numpy or torch, which let other
    threads run meanwhile. The first error in `work` is raised.
    """
    with ThreadPoolExecutor(pool_size()) as pool:
        yield from pool.map(work, parts)


def pool_size() -> int:
    """Return the number of threads for large work: one per core, or at most OMP_NUM_THREADS."""
    set_number = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(set_number)) if set_number.isdecimal() else cores()


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use this many threads in a ``with`` block.

    A server's checks and sums are small. If torch ran them on several threads, each thread would
    wait for all others, on a busy machine 17 to 50 times as long as the work takes. Large work
    uses `in_threads`.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
