"""Measure how much lower a method's errors are than a rival's, client by client, and how surely.

`Gain.finding` is the only rule that says whether a method pays. The whole app follows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from statistics import median

import numpy as np

from fedproto_app.data.clock import CALENDAR_UNITS
from fedproto_app.maths.two_way_bootstrap import LEVEL, Floats, median_ratio_interval
from fedproto_app.report.run_files import read_table

# With five clients, even if all five gain, a sign test gives only p = 2 / 2⁵ = 0.06. With fewer
# than seven days, an interval holds the true gain in less than 90% of cases if clients correlate by
# 0.3 (docs/results/sharing.md, "The interval").
FEWEST_CLIENTS, FEWEST_BLOCKS = 6, 7
RELEVANT = 0.01  # a smaller gain of the median client makes no difference
_EQUAL = 0.0005  # a smaller gain prints as 0.0% and counts for neither side
_DAY, _HOUR = 86_400, 3600  # seconds


class Finding(Enum):
    """What a comparison shows for the median client. The values are the words in tables."""

    PAYS = "pays"
    HARMS = "harms"
    NO_DIFFERENCE = "no difference"
    OPEN = "open"


@dataclass(frozen=True)
class Blocks:
    """A client's test MAE, split among the blocks of its test part: one row of blocks.csv.

    step_seconds: the step of the client's clock, 0 without a clock. steps: the length of a block.
    first: the number of the first block on the clock. parts: each block's part of the MAE, which is
    their sum.
    """

    step_seconds: float
    steps: int
    first: int
    parts: Sequence[float]


# A client, and its blocks with a method and with the rival of the same run.
ClientBlocks = tuple[str, Blocks, Blocks]


@dataclass(frozen=True)
class Gain:
    """The comparison of a method's errors with a rival's.

    ratios: each client's error divided by the rival's, infinite for a client without an error.
    interval: the 95% interval of the median ratio, None with too few clients or blocks. blocks: the
    number of blocks of the test part, None where the task has no blocks. block: the length of a
    block in words, such as "day".
    """

    ratios: Mapping[str, float]
    interval: tuple[float, float] | None
    blocks: int | None = None
    block: str = ""

    @cached_property
    def ratio(self) -> float:
        """The median ratio over the clients."""
        return float(median(self.ratios.values()))

    @property
    def better(self) -> int:
        """The number of clients with a lower error."""
        return sum(ratio <= 1 - _EQUAL for ratio in self.ratios.values())

    @property
    def worse(self) -> int:
        """The number of clients with a higher error."""
        return sum(ratio >= 1 + _EQUAL for ratio in self.ratios.values())

    @property
    def finding(self) -> Finding:
        """What the comparison shows.

        The method pays or harms if the interval excludes equal errors and the median client's error
        differs from the rival's by 1% or more. It makes no difference if the interval excludes
        equal errors but the median differs by less, or if the whole interval lies within 1% of
        equal errors. Otherwise the comparison is open.
        """
        if self.interval is None:
            return Finding.OPEN
        low, high = self.interval
        if high < 1 or low > 1:
            if abs(1 - self.ratio) < RELEVANT:
                return Finding.NO_DIFFERENCE
            return Finding.PAYS if high < 1 else Finding.HARMS
        within = low > 1 - RELEVANT and high < 1 + RELEVANT
        return Finding.NO_DIFFERENCE if within else Finding.OPEN

    @property
    def basis(self) -> str:
        """What was compared, in words."""
        clients = f"{len(self.ratios)} client{'s' * (len(self.ratios) != 1)}"
        return clients if self.blocks is None else f"{clients}, {self.test_part}"

    @property
    def test_part(self) -> str:
        """The length of the test part, in words."""
        if self.block.isalpha():  # a single step or day
            return f"{self.blocks} test {self.block}{'s' * (self.blocks != 1)}"
        return f"{self.blocks} test block{'s' * (self.blocks != 1)} of {self.block}"

    @property
    def why_open(self) -> str:
        """Why the comparison is open: there is no interval, or the difference may be chance."""
        if len(self.ratios) == 1:
            return "only one client can be compared"
        if len(self.ratios) < FEWEST_CLIENTS:
            return f"a {LEVEL}% interval needs {FEWEST_CLIENTS} clients"
        if self.interval is None:
            unit = self.block if self.block.isalpha() else "block"
            return f"a {LEVEL}% interval needs {FEWEST_BLOCKS} test {unit}s"
        return "the difference may be chance"


def gain_of(
    errors: Mapping[str, float], rival: Mapping[str, float], pairs: Iterable[ClientBlocks] = ()
) -> Gain:
    """Compare the clients' errors with a rival's. All clients of the rival are compared.

    pairs: the clients' blocks in all runs behind the errors. Clients whose blocks are unknown on
    either side are left out, so there are none where the task has no blocks.
    """
    ratios = {client: _ratio(errors.get(client, inf), error) for client, error in rival.items()}
    sums, rival_sums, blocks, block = _by_block(list(ratios), pairs)
    if blocks is None:  # one column: only clients are drawn
        sums = np.array([[ratio] for ratio in ratios.values()])
        rival_sums = np.ones_like(sums)
    fails = [not isfinite(errors.get(client, inf)) for client in ratios]
    sums[fails] = inf
    enough = len(ratios) >= FEWEST_CLIENTS and (blocks is None or blocks >= FEWEST_BLOCKS)
    interval = median_ratio_interval(sums, rival_sums) if enough else None
    return Gain(ratios, interval, blocks, block)


def is_lower(error: float, rival: float) -> bool:
    """Return whether an error is lower than a rival's by more than rounding."""
    return error < rival and error <= (1 - _EQUAL) * rival


def _ratio(error: float, rival: float) -> float:
    if error == rival:
        return 1.0
    return error / rival if rival > 0 else inf


def _by_block(
    clients: Sequence[str], pairs: Iterable[ClientBlocks]
) -> tuple[Floats, Floats, int | None, str]:
    """Return each side's sums of errors by client and block, [K, D], the number of blocks D, and
    the length of a block in words. Shorter blocks are merged to the longest of any client."""
    rows = {client: row for row, client in enumerate(clients)}
    compared = [(rows[client], sides) for client, *sides in pairs if client in rows]
    no_errors = np.zeros((len(clients), 1))
    if not compared:
        return no_errors, no_errors, None, ""
    longest = max((blocks for _, sides in compared for blocks in sides), key=lambda b: b.steps)
    sums: dict[tuple[float, int], Floats] = defaultdict(lambda: np.zeros((2, len(clients))))
    for row, sides in compared:
        for side, blocks in enumerate(sides):
            for number, part in enumerate(blocks.parts, start=blocks.first):
                if part > 0:
                    place = blocks.step_seconds, number * blocks.steps // longest.steps
                    sums[place][side, row] += part
    if not sums:  # all errors are 0
        return no_errors, no_errors, 0, _length(longest)
    errors, rival = np.stack([sums[place] for place in sorted(sums)], axis=2)
    return errors, rival, len(sums), _length(longest)


def _length(blocks: Blocks) -> str:
    """Return the length of a block in words."""
    seconds = blocks.step_seconds * blocks.steps
    if unit := CALENDAR_UNITS.get(blocks.step_seconds):
        number = float(blocks.steps)
    elif not seconds or seconds % _HOUR:
        return f"{blocks.steps} steps"
    else:
        number, unit = (seconds / _DAY, "day") if seconds % _DAY == 0 else (seconds / _HOUR, "hour")
    return unit if number == 1 else f"{number:.0f} {unit}s"


def read_blocks(folder: Path) -> dict[tuple[str, str], Blocks]:
    """Return the blocks of a run's clients by client and node, or {} if the run has none."""
    file = folder / "blocks.csv"
    if not file.exists():
        return {}
    table = read_table(file, ("client", "node"))
    columns = (column.tolist() for column in table.numbers.values())
    return {
        (client, node): Blocks(seconds, int(steps), int(first), parts)
        for client, node, seconds, steps, first, *parts in zip(
            table.clients, table.nodes, *columns, strict=True
        )
    }
