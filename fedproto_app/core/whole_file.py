"""Writes files so that they appear whole or not at all, and limits who may read them."""

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
    """Write or replace the file. After an OSError, which names it, no part of the content is left.

    durable: return only when the file and its name are on the disk, in case the power fails.
    private: only this user may read the file. concurrent: other processes may write it at the same
    time. A killed process leaves a file ``….new``, which the next writer of the file removes.
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

    Files from the last few seconds stay, because their writer may be a process in another
    container, whose number means nothing here.
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
    except (OSError, OverflowError):  # another user's process, or not the number of a process
        return True
    return True


def make_private(folder: Path) -> None:
    """Make a folder that only this user may enter. Missing parent folders get the usual mode.

    A folder that exists keeps its mode.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def put_in_place(beside: Path, path: Path) -> None:
    """Give the finished file its name. Return when the file and its name are on the disk."""
    flush(beside)
    os.replace(beside, path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Write a file, or a folder's list of names, to the disk, in case the power fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
