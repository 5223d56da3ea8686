"""The lock on a run's folder: one writer per run.

The process that writes a run holds an exclusive ``flock`` on ``<run>/lock``. The operating system
releases it when the process ends, however it ends, so no stale lock is left. The text in the file
is for people. It says who has held the lock since when.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import Self

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.events import tell

LOCK = "lock"
_DYING = 1.0  # seconds within which a killed holder's lock is released
_LOOK_EVERY = 0.05
# Errors of file systems without locks. Network file systems raise the last two.
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EIO)


class RunLock:
    """Holds the lock on an existing folder until `close`, or for a ``with`` block.

    Raise `SettingsError`, with the holder's name, if another process writes the run. On a file
    system without locks it only logs a warning.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if _is_taken(self._file):
                raise SettingsError(f"{folder} is being written by {_holder(self._file)}")
            os.ftruncate(self._file, 0)
            os.write(self._file, _own_name().encode())
        except OSError as error:
            self.close()
            if error.errno not in _NO_LOCKS:
                raise
            tell("no-lock", WARNING, folder=str(folder), reason=error.strerror)
        except SettingsError:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Release the lock. The file remains, empty."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_unwritten(folder: Path) -> None:
    """Raise `SettingsError`, with the holder's name, if a process writes the run in the folder.

    If that cannot be found out, for example in a read-only folder, raise nothing.
    """
    with suppress(OSError), RunLock(folder):
        pass


def _is_taken(file: int) -> bool:
    """Try for a moment to take the lock, and return whether another process has it."""
    deadline = time.monotonic() + _DYING
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return True
            time.sleep(_LOOK_EVERY)
        else:
            return False


def _own_name() -> str:
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}\n"


def _holder(file: int) -> str:
    return os.pread(file, 1000, 0).decode(errors="replace").strip() or "another process"
