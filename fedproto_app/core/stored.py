"""The types of values in checkpoints and tables of results."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

AnyArray: TypeAlias = NDArray[Any]  # of any kind of numbers
Memory: TypeAlias = dict[str, Any]  # by name, of values that JSON has
