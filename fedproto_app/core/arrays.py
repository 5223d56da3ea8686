"""The type of an array of any kind of numbers, as states and tables of results hold them."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

AnyArray: TypeAlias = NDArray[Any]
