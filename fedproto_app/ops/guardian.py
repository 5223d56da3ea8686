"""End the processes that a killed ``fedproto run`` left behind.

SIGKILL leaves a program no time to end the processes that it started. A small separate process
therefore waits at the other end of a pipe, which the operating system closes when the program dies.
It then ends every process with the program's FLWR_HOME in its environment, and removes this folder.

This file is also the program of the separate process. Python starts it without its site packages,
so it imports only the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

_DISMISSED = b"."  # what the guardian reads from a program that ended in order
_ENDING = 30.0  # seconds in which processes are ended, because one may still start another
_LOOK_EVERY = 0.05


class Guardian:
    """Watches over the processes whose FLWR_HOME is `home`, during a ``with`` block.

    A program that leaves the block in order has ended the processes itself. Raises OSError if the
    guardian cannot be started.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> Self:
        # -I, -S: use neither the user's environment nor site packages, to save time and memory.
        command = [sys.executable, "-I", "-S", __file__, str(self._home)]
        # A separate session, so that neither Ctrl-C nor closing the terminal reaches it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):  # someone killed it
            self._process.communicate(_DISMISSED)


def marked_processes(home: Path) -> dict[int, str]:
    """Return the ids and command lines of all running processes with this FLWR_HOME."""
    mark = f"FLWR_HOME={home}".encode()
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                processes[int(folder.name)] = b" ".join(words).decode(errors="replace")
    return processes


def _end_all(home: Path) -> None:
    """Kill the marked processes until none is left. Then remove the folder."""
    deadline = time.monotonic() + _ENDING
    while (remaining := marked_processes(home)) and time.monotonic() < deadline:
        for process in remaining:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_LOOK_EVERY)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    if sys.stdin.buffer.read() != _DISMISSED:
        _end_all(Path(sys.argv[1]))
