"""Files that appear whole under their name or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mark: str = ".new", *, durable: bool = False) -> None:
    """Write the file, in place of one that is there; raises OSError, and then leaves nothing.

    mark: behind its name while it is written; writers of one file at once have one each.
    durable: return when it is on the disk, name and all: power may fail.
    """
    beside = path.with_name(path.name + mark)
    try:
        with beside.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(beside, path)
        if durable:
            flush(path.parent)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Put the file, or the folder's list of names, on the disk: power may fail."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
