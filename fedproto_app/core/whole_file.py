"""Files that appear whole under their name or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mark: str = ".new", *, durable: bool = False) -> None:
    """Write the file, or replace it. After an OSError no partial file is left.

    mark: suffix of the name while the file is written; concurrent writers need different marks.
    durable: return only when file and name are on the disk, in case power fails.
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
    """Write the file, or the folder's list of names, to the disk, in case power fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
