"""A client's test error in blocks of consecutive steps, for the intervals of a verdict.

Blocks have absolute numbers on the source's clock, so that the same day is the same block for all
clients. A block is a day, or a period if the source has no clock. Its length is doubled until it is
no shorter than the horizon and the test part has at most `MOST_BLOCKS` blocks. One client's blocks
are therefore unions of the blocks of another client with a shorter test part.

A site may require that everything it sends rests on some number of periods (`data.least-periods`).
Then a block is at least that long, and steps outside the test part's whole blocks belong to the
nearest block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from fedproto_app.core.metrics import Metric
from fedproto_app.tasks.forecasting.metrics import (
    BLOCK_STEPS,
    FIRST_BLOCK,
    MOST_BLOCKS,
    STEP_SECONDS,
    block_metric,
)

_DAY = 86_400  # seconds


@dataclass(frozen=True)
class Blocks:
    """The blocks of a test part. step_seconds: 0 without a clock. steps: the length of a block.
    first: the number of the first block. count: the largest number of blocks that is kept."""

    step_seconds: float
    steps: int
    first: int
    count: int = MOST_BLOCKS


def blocks_of(
    first: int, last: int, horizon: int, period: int, step_seconds: float, least: int = 0
) -> Blocks:
    """Return the blocks for a test part whose values have positions first … last.

    least: the fewest steps behind a block, 0 for any.
    """
    steps = least or (ceil(_DAY / step_seconds) if step_seconds else period)
    while steps < horizon or last // steps - first // steps >= MOST_BLOCKS:
        steps *= 2
    if not least:
        return Blocks(step_seconds, steps, first // steps)
    first_whole, end_whole = -(-first // steps), (last + 1) // steps
    return Blocks(step_seconds, steps, first_whole, max(1, end_whole - first_whole))


def block_metrics(
    absolute: Tensor, test: Tensor, starts: Sequence[int], blocks: Sequence[Blocks]
) -> dict[Metric, list[float]]:
    """Return each block's part of the clients' test MAE, and the facts that identify the blocks.

    absolute, test: [K, n, H], the sizes of errors, and a mask of the test part. starts: the
    position of each client's first value. An error belongs to the block of the value that was
    forecast. The parts of a client add up to its MAE.
    """
    clients, samples, horizon = absolute.shape
    device = absolute.device
    offsets = torch.tensor([*starts], device=device)[:, None] + torch.arange(samples, device=device)
    steps = torch.tensor([b.steps for b in blocks], device=device)[:, None]
    first = torch.tensor([b.first for b in blocks], device=device)[:, None]
    newest = torch.tensor([b.count - 1 for b in blocks], device=device)[:, None]
    masked = absolute * test
    sums = absolute.new_zeros(clients, MOST_BLOCKS)
    for ahead in range(horizon):
        numbers = (offsets + ahead).div(steps, rounding_mode="floor") - first
        # The mask is 0 outside the test part, so it does not matter where those errors are added.
        places = torch.minimum(numbers.clamp(min=0), newest)
        sums.scatter_add_(1, places, masked[..., ahead])
    parts = (sums / test.flatten(start_dim=1).sum(dim=1, keepdim=True)).cpu()
    return {
        STEP_SECONDS: [b.step_seconds for b in blocks],
        BLOCK_STEPS: [float(b.steps) for b in blocks],
        FIRST_BLOCK: [float(b.first) for b in blocks],
        **{block_metric(number): parts[:, number].tolist() for number in range(MOST_BLOCKS)},
    }
