"""A client's epoch of training compiled by numba, for `kernel = "numba"`.

`gru.py` and `epoch.py` contain the formulas, and `cohort.py` applies them to a cohort's tensors.
Only this package imports numba, which the extra "fast" installs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache

from fedproto_app.core.version import __version__

Function = TypeVar("Function", bound=Any)

# What LLVM may rearrange to use vector instructions. It must respect NaN and infinity, because they
# show that a client's training diverged.
_REORDERED = {"contract", "reassoc", "nsz", "arcp"}
_log = logging.getLogger(__name__)


def compiled(function: Function) -> Function:
    """Return the function that numba compiles at its first call."""
    dispatcher: Function = numba.njit(function, fastmath=_REORDERED, error_model="numpy")
    return dispatcher


def cached(function: Function) -> Function:
    """Return the compiled function, which later processes read from `cache_folder`."""
    dispatcher = compiled(function)
    if folder := cache_folder():
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
        dispatcher._cache = _Cache(function)
        numba.config.CACHE_DIR = before
    else:
        _log.warning(
            "kernel = 'numba': no private folder can be written for the compiled kernel, so each "
            "process compiles it (NUMBA_CACHE_DIR names another place)"
        )
    return dispatcher


def cache_folder() -> Path | None:
    """Return the folder of the compiled kernel, or None if somebody else could write there too.

    The folder holds pickles, which run code when they are read. Its name contains a digest of the
    sources, because numba does not notice changes of functions that the cached function calls.
    """
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    name = f"fedproto-{__version__}-numba-{numba.__version__}-{sha256(sources).hexdigest()[:12]}"
    place = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(place).expanduser() / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    is_private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_private and os.access(folder, os.W_OK) else None


class _Cache(FunctionCache):  # type: ignore[misc]
    """A cache of numba's that is emptied if numba cannot read or write it."""

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # damaged pickles raise anything
            with suppress(OSError):
                self.flush()
