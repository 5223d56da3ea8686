"""Parts of a piece of work on the cores of the machine, where numpy does the work: it lets others
run meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def in_threads(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """What work makes of each part, in the order of the parts, whichever is done first.

    On as many threads as torch is set to. Raises the first error of work.
    """
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        yield from pool.map(work, parts)
