"""Read a source once for all nodes of a simulation, in one process or in processes forked from it.

A deployed node reads only its own data, and then frees them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from fedproto_app.settings import DataSettings

Content = TypeVar("Content")

_newest: list[tuple[object, object]] = []  # at most one pair: what was read, and its content


def read_once(
    read: Callable[..., Content], settings: DataSettings, *further: object, keep: bool = True
) -> Content:
    """Return what `read(settings, *further)` returns, from memory if this process read it before.

    A file that has changed since is read again. In a folder, only the files directly in it are
    checked for changes. keep: whether to keep the content in memory for the next call, in place of
    the previous content. The caller must not change the content.
    """
    key = (read, settings, further, _stamps(settings.path), _stamps(settings.covariates))
    if _newest and _newest[0][0] == key:
        return _newest[0][1]  # type: ignore[return-value]  # the key holds `read`
    content = read(settings, *further)
    if keep:
        _newest[:] = [(key, content)]
    return content


def forget() -> None:
    """Free what was read, so that the next run calls the user's functions again."""
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
    except OSError:  # reading the file will report why
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
