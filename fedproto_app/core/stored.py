"""The types of values in checkpoints and tables of results."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

AnyArray: TypeAlias = NDArray[Any]  # an array of numbers of any type
Memory: TypeAlias = dict[str, Any]  # by name, values that JSON can hold
