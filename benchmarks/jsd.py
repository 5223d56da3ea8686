"""The server's divergence matrix: seconds, memory, and pairs per second beside its peers.

    python -m benchmarks.jsd [--clients 1000 10000]

Random prototypes of 24 x 32 values. The peers compute the same of 500 clients in the same
process, in turns with us: scipy's C code, ``pdist(…, "jensenshannon")`` once for each of the 24
rows, in float64 on one thread; and torch in float32, blocks of pairs at a time within the caches,
on all threads. Their results must be ours.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.spatial.distance import pdist, squareform
from torch import Tensor

from benchmarks.parts import peak_memory, timed
from benchmarks.tables import figure_table, print_with_machine
from fedproto_app.maths.divergence import (
    contrast_prototypes,
    pairwise_divergence,
    prototype_distributions,
    threshold,
    update_divergence,
)

ROWS, WIDTH = 24, 32
PEERS_CLIENTS, REPETITIONS = 500, 3
BLOCK = 32  # clients by clients whose values torch holds at once, 3 MB
AGREEMENT = 1e-6  # nats
OURS = "this app"


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

    with Console().status("peers") as status:
        rates = peers(status.update)
        timings = [measure(clients, status.update) for clients in sizes]
    print_with_machine(table(timings), peer_table(rates))


def peers(progress: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the pairs per second of each repetition, ours and the peers'; exit if results
    differ."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(PEERS_CLIENTS, ROWS, WIDTH, generator=generator)
    contestants = {OURS: pairwise_divergence, "torch, float32": by_torch, "scipy, C": by_scipy}
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for repetition in range(1, REPETITIONS + 1):
        results = {}
        for name, compute in contestants.items():
            progress(f"{name}, {PEERS_CLIENTS} clients, {repetition} of {REPETITIONS}")
            seconds, results[name] = timed(partial(compute, prototypes))
            rates[name].append(PEERS_CLIENTS * (PEERS_CLIENTS - 1) / 2 / seconds)
        for name, result in results.items():
            if (apart := (result.double() - results[OURS].double()).abs().max()) > AGREEMENT:
                sys.exit(f"{name} differs from us by {apart:.2g} nats")
    return rates


def by_scipy(prototypes: Tensor) -> Tensor:
    """Return the divergences, [N, B, d] → [N, N]; scipy gives their square roots, row by row."""
    rows = prototype_distributions(prototypes).transpose(0, 1).numpy()  # (B, N, d)
    roots = np.stack([pdist(row, "jensenshannon") for row in rows])
    return torch.from_numpy(squareform(np.square(roots).mean(axis=0)))


def by_torch(prototypes: Tensor) -> Tensor:
    """Return the upper triangle of H(m) − (H(p) + H(q)) / 2, [N, B, d] → [N, N]."""
    clients = len(prototypes)
    flat = prototype_distributions(prototypes).float().flatten(1)
    entropies = -torch.special.xlogy(flat, flat).sum(1)
    result = torch.zeros(clients, clients)
    for top in range(0, clients, BLOCK):
        for column in range(top, clients, BLOCK):
            means = (flat[top : top + BLOCK, None] + flat[None, column : column + BLOCK]).div_(2)
            mixed = means.log().mul_(means).sum(2)
            entropy_sums = (
                entropies[top : top + BLOCK, None] + entropies[None, column : column + BLOCK]
            )
            block = (-mixed - entropy_sums / 2) / ROWS
            result[top : top + BLOCK, column : column + BLOCK] = block
            result[column : column + BLOCK, top : top + BLOCK] = block.T
    return result


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


def table(timings: list[Timing]) -> Table:
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
    title = f"Jensen-Shannon divergence of {ROWS} x {WIDTH} prototypes, "
    title += f"{torch.get_num_threads()} threads"
    headings = ("clients", "full s", "10% s", "contrast s", "peak GB", "pairs/s")
    return figure_table(headings, rows, title=title, texts=0)


def peer_table(rates: dict[str, list[float]]) -> Table:
    """Return medians; the ratio's spread is over the repetitions."""
    rows = []
    for name, peer_rates in rates.items():
        ratios = np.array(rates[OURS]) / np.array(peer_rates)
        spread = f"{ratios.min():.1f}–{ratios.max():.1f}"
        median = f"{statistics.median(peer_rates):,.0f}"
        rows.append((name, median, f"{np.median(ratios):.1f}", spread))
    title = f"{PEERS_CLIENTS:,} clients, {REPETITIONS} times in turns"
    return figure_table(("", "pairs/s", "ratio", "spread"), rows, title=title)


if __name__ == "__main__":
    main()
