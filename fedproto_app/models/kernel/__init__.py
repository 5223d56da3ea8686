"""A client's epoch of training compiled by numba, for `kernel = "numba"`.

`gru.py` and `epoch.py` have the formulas, `cohort.py` calls them for a cohort's tensors. Only this
package imports numba, which the extra "fast" installs.
"""

from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Any)

# What LLVM may reorder to use vector instructions. NaN and infinity stay what they are, because a
# client whose training diverged is recognised by them.
_REORDERED = {"contract", "reassoc", "nsz", "arcp"}


def compiled(function: Function) -> Function:
    """Return the function that numba compiles at its first call, and caches for later processes.

    It is not cached if no folder for the cache is writable.
    """
    try:
        return njit(function, cache=True, fastmath=_REORDERED, error_model="numpy")
    except RuntimeError:
        return njit(function, fastmath=_REORDERED, error_model="numpy")
