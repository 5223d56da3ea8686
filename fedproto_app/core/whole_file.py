"""Files that appear whole under their name or not at all, and who may read them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from glob import escape
from pathlib import Path

_LEFT_AFTER = 5.0  # seconds


def write_whole(
    path: Path,
    content: bytes,
    *,
    durable: bool = False,
    private: bool = False,
    concurrent: bool = False,
) -> None:
    """Write the file, or replace it. An OSError names the file and leaves no part of it.

    durable: return only when file and name are on the disk, in case power fails. private: only this
    user may read the file. concurrent: other processes may write it at the same time. If the
    process is killed, a file ``….new`` is left, which the next writer of the file removes.
    """
    if concurrent:
        _remove_leftovers(path)
    mark = f".{os.getpid()}.new" if concurrent else ".new"
    beside = path.with_name(path.name + mark)
    mode = 0o600 if private else 0o666
    try:
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
        if durable:
            put_in_place(beside, path)
        else:
            os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        error.filename = str(path)  # a failed write does not say which file it was
        raise


def _remove_leftovers(path: Path) -> None:
    """Remove what concurrent writers of this file left when they were killed.

    Files of the last seconds stay: a writer in another container counts processes differently.
    """
    for file in path.parent.glob(f"{escape(path.name)}.*.new"):
        process = file.suffixes[-2][1:]
        with suppress(OSError):
            old = time.time() - file.stat().st_mtime > _LEFT_AFTER
            if old and process.isdecimal() and not _lives(int(process)):
                file.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or no number of a process
        return True
    return True


def make_private(folder: Path) -> None:
    """Make the folder for this user alone. Missing ones above it get the usual mode.

    A folder that exists keeps its mode.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def put_in_place(beside: Path, path: Path) -> None:
    """Give the finished file its name and return when file and name are on the disk."""
    flush(beside)
    os.replace(beside, path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Write the file, or the folder's list of names, to the disk, in case power fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
