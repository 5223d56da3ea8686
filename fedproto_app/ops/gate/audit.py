"""The append-only audit log of a site or a server, as JSON lines.

    {"time": "2026-03-01T10:20:30+00:00", "event": "order", "run": 17, "digest": "…", …}

The gate writes it, from a process that is separate from a run's code. A full file is renamed with
".1" at its end, and replaces the earlier file of this name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

MOST_BYTES = 16 * 2**20  # of one file; there are two
MOST_TEXT = 300  # characters of a stranger's text
MOST_ENTRIES = 50  # of one table or list


class AuditLog:
    """The log in a file; without a file nothing is written."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def write(self, event: str, **fields: object) -> None:
        """Append one line; raises OSError if this fails, because nothing may happen unlogged."""
        if self._file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "event": event, **_fit(fields)}) + "\n"  # ASCII: no codes
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._file):
            if self._file.exists() and self._file.stat().st_size + len(line) > MOST_BYTES:
                os.replace(self._file, self._before)
            _append(self._file, line.encode())

    def count_since(self, event: str, seconds: float) -> int:
        """Return how often the event occurred in the last so many seconds."""
        if self._file is None or not self._file.parent.exists():
            return 0
        now = datetime.now(UTC)
        first, last = (
            moment.isoformat(timespec="seconds")
            for moment in (now - timedelta(seconds=seconds), now)
        )
        with _locked(self._file):
            texts = [file.read_bytes() for file in (self._file, self._before) if file.exists()]
        # Check every line: the clock may have been wrong, so lines need not be in order of time.
        of_it = json.dumps(event).encode()
        lines = (line for text in texts for line in text.splitlines() if of_it in line)
        entries = filter(None, map(_entry, lines))
        return sum(entry["event"] == event and first <= entry["time"] <= last for entry in entries)

    @property
    def _before(self) -> Path:
        assert self._file is not None
        return self._file.with_name(self._file.name + ".1")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock out other gates: of another order, or of another site with the same log.

    The lock file can be opened by this user only, so a run's code, which may read the folder,
    cannot hold the lock.
    """
    descriptor = os.open(file.with_name(file.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # which gives the lock back


def _append(file: Path, line: bytes) -> None:
    """Append the line completely or not at all; raises OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # power failed within a line
            line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    finally:
        os.close(descriptor)


def _entry(line: bytes) -> dict[str, Any] | None:
    """Parse a line; return None if it is incomplete."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    complete = isinstance(entry, dict) and "event" in entry and isinstance(entry.get("time"), str)
    return entry if complete else None


def _fit(value: Any) -> Any:
    """Return the value with long texts and tables cut, as they may come from an attacker."""
    if isinstance(value, dict):
        entries = list(value.items())[:MOST_ENTRIES]
        return {str(key)[:MOST_TEXT]: _fit(inner) for key, inner in entries}
    if isinstance(value, list | tuple):
        return [_fit(inner) for inner in value[:MOST_ENTRIES]]
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else value[:MOST_TEXT] + " …"
    return value
