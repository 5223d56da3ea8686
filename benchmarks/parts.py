"""What benchmarks of parts share: a call that is timed, a process that is ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds by the clock, and what the call returned."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def end(process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    """SIGTERM, and SIGKILL if that does not help within so many seconds."""
    process.terminate()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
