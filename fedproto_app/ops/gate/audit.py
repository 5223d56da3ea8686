"""Write and check the append-only audit log of a site or a server, as JSON lines.

    {"time": "2026-03-01T10:20:30+00:00", "event": "order", "run": 17, …, "previous": "9f2c…"}

The gate writes the log, from a process that is separate from a run's code. When the file is full,
".1" is added to its name. An earlier file of that name is replaced.

The lines form a chain: `previous` is the SHA-256 of the line before. No line can thus be changed,
removed or inserted without changing all later ones (`verify`). A program that can write the file
could write a whole new chain. Only a hash that was noted elsewhere reveals this.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fedproto_app.core.errors import DataError
from fedproto_app.core.whole_file import flush

MOST_BYTES = 16 * 2**20  # of each of two files
MOST_TEXT = 300  # characters of a text that comes from a stranger
MOST_ENTRIES = 50  # of one table or list
_TAIL = 8192  # bytes of a file's end that are read first


class AuditLog:
    """The audit log in a file. Without a file, nothing is written."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def write(self, event: str, **fields: object) -> None:
        """Append one line, and return when it is on the disk.

        Raises OSError if this fails, because nothing must happen without being logged.
        """
        if self._file is None:
            return
        time_now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"time": time_now, "event": event, **_fit_table(fields)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._file):
            entry["previous"] = _digest(_last_line(self._file))
            line = json.dumps(entry) + "\n"  # ASCII: no control codes
            if self._file.exists() and self._file.stat().st_size + len(line) > MOST_BYTES:
                os.replace(self._file, _before(self._file))
            _append(self._file, line.encode())

    def count_since(self, events: Collection[str], seconds: float) -> int:
        """Return how often these events occurred within the last `seconds` seconds."""
        if self._file is None or not self._file.parent.exists():
            return 0
        time_now = datetime.now(UTC)
        first, last = (
            moment.isoformat(timespec="seconds")
            for moment in (time_now - timedelta(seconds=seconds), time_now)
        )
        with _locked(self._file):
            texts = [file.read_bytes() for file in _files(self._file)]
        # Check every line, because they may not be sorted by time if the clock was wrong.
        marks = [json.dumps(event).encode() for event in events]
        lines = (
            line for text in texts for line in _lines(text) if any(mark in line for mark in marks)
        )
        entries = filter(None, map(_entry, lines))
        return sum(entry.event in events and first <= entry.time <= last for entry in entries)


class Entry(NamedTuple):
    """What every line says. previous: the hash of the line before, None if the line lacks it."""

    time: str
    event: str
    previous: object


@dataclass(frozen=True)
class Chain:
    """An audit log where each line continues the line before.

    unreadable: the number of lines that are not entries, for example because power failed. last:
    the hash of the last line.
    """

    lines: int
    unreadable: int
    first_time: str
    last_time: str
    last: str


def verify(file: Path, noted: str = "") -> Chain:
    """Check that each line continues the line before, in the older file and in this one.

    noted: a hash that an earlier check returned. A line must still have it. Raises `DataError` if
    the file has no entry, or if a line does not continue the line before. The error names the first
    such line. Raises `OSError` if the log cannot be read.
    """
    files = _files(file)
    if not files:
        raise DataError(f"{file}: no such file")
    lines = [
        (part, number, line)
        for part in files
        for number, line in enumerate(_lines(part.read_bytes()), start=1)
    ]
    last = ""
    times, hashes = list[str](), set[str]()
    for place, (part, number, line) in enumerate(lines):
        if (entry := _entry(line)) is not None:  # else power failed while the line was written
            # What came before the older file is gone, so its first line cannot be checked.
            checked = place > 0 or len(files) == 1
            if checked and entry.previous != last:
                raise DataError(f"{part}, line {number}: does not continue the line before")
            times.append(entry.time)
        last = _digest(line)
        hashes.add(last)
    if not times:
        raise DataError(f"{file}: no line is an entry of an audit log")
    if noted and noted not in hashes:
        rotated = f"; if it was noted before {times[0]}, its line is gone" if len(files) > 1 else ""
        raise DataError(f"{file}: no line has the hash that was noted, {noted}{rotated}")
    return Chain(len(lines), len(lines) - len(times), times[0], times[-1], last)


def entries(file: Path) -> Iterator[tuple[float, str]]:
    """Yield the time in seconds since 1970 and the event of each line, oldest file first."""
    for part in _files(file):
        for entry in filter(None, map(_entry, _lines(part.read_bytes()))):
            with suppress(ValueError):
                yield datetime.fromisoformat(entry.time).timestamp(), entry.event


def _files(file: Path) -> list[Path]:
    """Return the files of a log, the older file first."""
    return [part for part in (_before(file), file) if part.exists()]


def _before(file: Path) -> Path:
    return file.with_name(file.name + ".1")


def _digest(line: bytes) -> str:
    """Return the hash of a line without its end, or "" if there is no line."""
    return sha256(line).hexdigest() if line else ""


def _last_line(file: Path) -> bytes:
    """Return the last line without its end, or b"" if the file is missing or empty."""
    for part in reversed(_files(file)):
        with part.open("rb") as opened:
            size, tail = opened.seek(0, os.SEEK_END), b""
            while len(tail) < size and b"\n" not in tail.rstrip(b"\n"):
                length = min(size, max(_TAIL, 2 * len(tail)))
                opened.seek(size - length)
                tail = opened.read(length)
        if lines := _lines(tail):
            return lines[-1]
    return b""


def _lines(text: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if line]


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock out other gates, for another order or for another site with the same log.

    Only this user can open the lock file. A run's code, which may be able to read the folder, can
    thus not hold the lock.
    """
    descriptor = os.open(file.with_name(file.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # this releases the lock


def _append(file: Path, line: bytes) -> None:
    """Append the line, completely or not at all, to the file on the disk. Raise OSError if this
    fails."""
    is_new = not file.exists()
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # power failed in the last line
            line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        flush(file.parent)


def _entry(line: bytes) -> Entry | None:
    """Parse a line, or return None if it is incomplete."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match entry:
        case {"time": str(time), "event": str(event)}:
            return Entry(time, event, entry.get("previous"))
    return None


def _fit(value: object) -> object:
    """Return the value. Long texts and tables are cut, because they may come from an attacker."""
    if isinstance(value, dict):
        return _fit_table(value)
    if isinstance(value, list | tuple):
        return [_fit(inner) for inner in value[:MOST_ENTRIES]]
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else value[:MOST_TEXT] + " …"
    return value


def _fit_table(table: Mapping[str, object]) -> dict[str, object]:
    entries = list(table.items())[:MOST_ENTRIES]
    return {str(key)[:MOST_TEXT]: _fit(value) for key, value in entries}
