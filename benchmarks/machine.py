"""The machine a benchmark ran on: its cores and its versions."""

from __future__ import annotations

import os
from pathlib import Path
from platform import machine, python_version

import torch


def machine_line() -> str:
    """Return a line for a table's note: cores, processor, versions, other programs' load."""
    load, _, _ = os.getloadavg()
    return f"{processors()}, torch {torch.__version__}, Python {python_version()}, load {load:.1f}"


def processors() -> str:
    """Return the cores that this process may use, and their kind."""
    return f"{_cores()} cores, {_processor()}"


def _cores() -> int:
    """Return the cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, machine())
