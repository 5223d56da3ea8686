"""Files that appear whole under their name or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mark: str = ".new") -> None:
    """Write the file, in place of one that is there; raises OSError, and then leaves nothing.

    mark: behind its name while it is written; writers of one file at once have one each.
    """
    beside = path.with_name(path.name + mark)
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
