"""The server's divergence matrix: seconds, memory and pairs per second.

    python -m benchmarks.jsd [--clients 1000 10000]

Random prototypes of 24 x 32 values. The peer is a loop over scipy's `jensenshannon` in the same
process, timed on a few pairs, as its seconds per pair do not depend on the number of clients.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from scipy.spatial.distance import jensenshannon

from fedproto_app.maths.divergence import (
    contrast_prototypes,
    pairwise_divergence,
    prototype_distributions,
    threshold,
    update_divergence,
)

ROWS, WIDTH = 24, 32
SCIPY_CLIENTS = 40


class Timing(NamedTuple):
    """One line of the table: times in seconds, memory in bytes."""

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

    console = Console()
    timings = []
    with console.status("scipy") as status:
        scipy_pairs_per_second = _scipy_pairs_per_second()
        for clients in sizes:
            timings.append(measure(clients, status.update))
    console.print(table(timings, scipy_pairs_per_second))


def measure(clients: int, progress: Callable[[str], None]) -> Timing:
    """Time the full matrix, a round in which 10% reported, and the contrast prototypes of all."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(clients, ROWS, WIDTH, generator=generator)
    reported = torch.randperm(clients, generator=generator)[: max(1, clients // 10)]

    progress(f"{clients} clients: full matrix")
    full, divergence = _timed(lambda: pairwise_divergence(prototypes))
    progress(f"{clients} clients: a tenth reported")
    tenth, divergence = _timed(lambda: update_divergence(divergence, prototypes, reported))
    progress(f"{clients} clients: contrast prototypes")
    contrast, _ = _timed(
        lambda: contrast_prototypes(prototypes, divergence, threshold(divergence, "percentile", 50))
    )
    peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux tells KiB
    return Timing(clients, full, tenth, contrast, peak_memory)


def table(timings: list[Timing], scipy_pairs_per_second: float) -> Table:
    """The measurements, with each full matrix as a multiple of scipy's rate."""
    result = Table(
        title=f"Jensen-Shannon divergence of {ROWS} x {WIDTH} prototypes, "
        f"{torch.get_num_threads()} threads",
        caption=f"scipy: {scipy_pairs_per_second:,.0f} pairs/s in a loop over the pairs of "
        f"{SCIPY_CLIENTS} clients; the ratio extrapolates it per pair",
    )
    for heading in ("clients", "full s", "10% s", "contrast s", "peak GB", "pairs/s", "× scipy"):
        result.add_column(heading, justify="right")
    for timing in timings:
        result.add_row(
            f"{timing.clients:,}",
            f"{timing.full:.2f}",
            f"{timing.tenth:.2f}",
            f"{timing.contrast:.2f}",
            f"{timing.peak_memory / 1e9:.2f}",
            f"{timing.pairs_per_second:,.0f}",
            f"{timing.pairs_per_second / scipy_pairs_per_second:,.0f}",
        )
    return result


def _scipy_pairs_per_second() -> float:
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(SCIPY_CLIENTS, ROWS, WIDTH, generator=generator)
    pairs = list(combinations(prototype_distributions(prototypes).numpy(), 2))
    seconds, _ = _timed(lambda: [(jensenshannon(p, q, axis=1) ** 2).mean() for p, q in pairs])
    return len(pairs) / seconds


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main()
