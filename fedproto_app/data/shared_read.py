"""Read a source once for all nodes of a simulation that share a process, or are forked from one.

A deployed node reads only its own data, which are then freed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from fedproto_app.settings import DataSettings

Content = TypeVar("Content")

_newest: list[tuple[object, object]] = []  # what was read, and its content; at most one


def read_once(
    read: Callable[..., Content], settings: DataSettings, *further: object, keep: bool = True
) -> Content:
    """Return what `read(settings, *further)` returns, from memory if this process read it before.

    A file that has changed since is read again. In a folder only the files directly in it are
    checked. keep: whether the content stays in memory for the next call, instead of the previous
    content. The caller must not change it.
    """
    key = (read, settings, further, _stamps(settings.path), _stamps(settings.covariates))
    if _newest and _newest[0][0] == key:
        return _newest[0][1]  # type: ignore[return-value]  # the key holds `read`
    content = read(settings, *further)
    if keep:
        _newest[:] = [(key, content)]
    return content


def forget() -> None:
    """Free what was read, before a run that must see what the user's functions return now."""
    _newest.clear()


def _stamps(path: str) -> tuple[tuple[str, int, int], ...]:
    """Return the name, size and time of change of the file, or of each file in the folder."""
    if not path:
        return ()
    try:
        paths = [path]
        if os.path.isdir(path):
            paths += sorted(entry.path for entry in os.scandir(path))
        stats = [(name, os.stat(name)) for name in paths]
    except OSError:  # whoever reads it says why
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
