"""Shared by benchmarks: time a call, start and end a process."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

# For `python -c`: the command line with this tree's code, without an installed program.
PROGRAM = "from fedproto_app.cli.main import main; main()"


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the clock's seconds, and the call's result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def end(process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    """Send SIGTERM, and SIGKILL if the process still runs after so many seconds."""
    process.terminate()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
