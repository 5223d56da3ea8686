"""The server's divergence matrix of random prototypes of 24 x 32 values: seconds and memory.

python -m benchmarks.jsd [--clients 1000 10000]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from rich.console import Console

from benchmarks.pages import Lines, print_table
from benchmarks.parts import peak_memory, timed
from fedproto_app.maths.divergence import (
    contrast_prototypes,
    pairwise_divergence,
    threshold,
    update_divergence,
)

ROWS, WIDTH = 24, 32


class Timing(NamedTuple):
    """A line of the table: times in seconds, memory in bytes."""

    clients: int
    full: float
    tenth: float
    contrast: float
    peak_memory: int

    @property
    def pairs_per_second(self) -> float:
        return self.clients * (self.clients - 1) / 2 / self.full


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the server's divergence matrix.")
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10000], metavar="N")
    sizes = sorted(parser.parse_args().clients)  # ascending, as peak memory only grows
    if sizes[0] < 2:
        parser.error(f"--clients {sizes[0]}: a pair needs at least 2 clients")

    with Console().status("") as status:
        timings = [measure(clients, status.update) for clients in sizes]
    print_table(table(timings), texts=0)


def measure(clients: int, progress: Callable[[str], None]) -> Timing:
    """Time the full matrix, a round with reports of 10%, and the contrast prototypes of all."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(clients, ROWS, WIDTH, generator=generator)
    reported = torch.randperm(clients, generator=generator)[: max(1, clients // 10)]

    progress(f"{clients} clients: full matrix")
    full, divergence = timed(lambda: pairwise_divergence(prototypes))
    progress(f"{clients} clients: a tenth reported")
    tenth, divergence = timed(lambda: update_divergence(divergence, prototypes, reported))
    progress(f"{clients} clients: contrast prototypes")
    contrast, _ = timed(
        lambda: contrast_prototypes(prototypes, divergence, threshold(divergence, "percentile", 50))
    )
    return Timing(clients, full, tenth, contrast, peak_memory())


def table(timings: list[Timing]) -> Lines:
    """Return our own measurements, each made once."""
    rows = [
        (
            f"{timing.clients:,}",
            f"{timing.full:.2f}",
            f"{timing.tenth:.2f}",
            f"{timing.contrast:.2f}",
            f"{timing.peak_memory / 1e9:.2f}",
            f"{timing.pairs_per_second:,.0f}",
        )
        for timing in timings
    ]
    headings = ("clients", "full s", "10% s", "contrast s", "peak GB", "pairs/s")
    return [headings, *rows]


if __name__ == "__main__":
    main()
