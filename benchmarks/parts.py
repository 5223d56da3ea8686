"""Shared by benchmarks: command lines, settings of runs, measured calls and processes."""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

Result = TypeVar("Result")

# For `python -c`: the command line with this tree's code, without an installed program.
PROGRAM = "from fedproto_app.cli.main import main; main()"


def geometric_mean(values: ArrayLike) -> float:
    """Return the geometric mean of ratios, NaN without any."""
    ratios = np.asarray(values, dtype=np.float64)
    return float(np.exp(np.log(ratios).mean())) if ratios.size else np.nan


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the clock's seconds, and the call's result."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def processor_seconds(*processes: int) -> float:
    """Return user and system time of these living processes, from /proc."""
    ticks = 0
    for process in processes:
        with suppress(OSError):  # it has ended
            stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def output_in(folder: Path, name: str = "run") -> dict[str, object]:
    """Return the settings of a run that writes its folder of this name here, without pictures."""
    return {"output.dir": str(folder), "output.name": name, "output.pictures": False}


def changes_of(settings: Mapping[str, object]) -> list[str]:
    """Return settings as options of a command: ``--set=key=value``."""
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in settings.items()}
    return [f"--set={key}={text}" for key, text in texts.items()]


def wait_until(
    holds: Callable[[], object], awaited: str, seconds: float, interval: float = 0.05
) -> None:
    """Wait until a condition holds. Raises `TimeoutError` if it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{awaited}: not within {seconds:.0f} s")
        time.sleep(interval)


def end(process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    """Send SIGTERM, and SIGKILL if the process still runs after so many seconds."""
    process.terminate()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def parser_of(documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser whose --help prints the module's documentation as it is."""
    return argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawTextHelpFormatter
    )


def require_names(
    parser: argparse.ArgumentParser, names: Iterable[str], available: Iterable[str], kind: str
) -> None:
    """End with an error about the first name that is not available."""
    available = list(available)
    for name in names:
        if name not in available:
            parser.error(f"unknown {kind} {name!r}; known: {', '.join(available)}")
