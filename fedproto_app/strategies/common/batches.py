"""Batches of a task, put together as a method needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Pair:
    """Two batches for one step, of the same first k clients of a cohort."""

    first: Any
    second: Any

    @property
    def inputs(self) -> Tensor:
        """The values of the second batch, [k]."""
        inputs: Tensor = self.second.inputs
        return inputs


def pairs_of(batches: Iterator[Any]) -> Iterator[Pair]:
    """Every two batches of an epoch as one; a client's odd last one is left out."""
    for first in batches:
        second = next(batches, None)
        if second is None:
            return
        yield Pair(_first_clients(first, len(second.inputs)), second)


def _first_clients(batch: Any, count: int) -> Any:
    """The batch of the first clients alone."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    cut = {name: value[:count] for name, value in values.items() if isinstance(value, Tensor)}
    return replace(batch, **cut)
