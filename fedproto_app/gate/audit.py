"""The audit log of a site or a server: JSON lines that are only appended.

    {"time": "2026-03-01T10:20:30+00:00", "event": "order", "run": 17, "digest": "…", …}

The gate writes it, from a process that the code of a run is kept apart from. When the file is full
it is renamed with ".1" at its end, in place of the one before it.
"""

from __future__ import annotations

import json
import os
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
        """Append one line; raises OSError if that cannot be, as nothing may happen unseen."""
        if self._file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "event": event, **_fit(fields)}) + "\n"  # ASCII: no codes
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._file.exists() and self._file.stat().st_size + len(line) > MOST_BYTES:
            os.replace(self._file, self._before)
        # One write of one line: gates of two orders may append at once.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def count_since(self, event: str, seconds: float) -> int:
        """How many such events the last so many seconds had."""
        if self._file is None:
            return 0
        first = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")
        count = 0
        for file in (self._file, self._before):
            if not file.exists():
                continue
            for line in reversed(file.read_text(encoding="ascii").splitlines()):
                entry = json.loads(line)
                if entry["time"] < first:
                    return count
                count += entry["event"] == event
        return count

    @property
    def _before(self) -> Path:
        assert self._file is not None
        return self._file.with_name(self._file.name + ".1")


def _fit(value: Any) -> Any:
    """The value with strangers' texts and tables cut to what a log can bear."""
    if isinstance(value, dict):
        named = list(value.items())[:MOST_ENTRIES]
        return {str(key)[:MOST_TEXT]: _fit(inner) for key, inner in named}
    if isinstance(value, list | tuple):
        return [_fit(inner) for inner in value[:MOST_ENTRIES]]
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else value[:MOST_TEXT] + " …"
    return value
