"""The server's divergence matrix of random prototypes of 24 x 32 values: seconds and memory.

    python -m benchmarks.jsd [--clients 1000 10000]

Times the full matrix, a round with reports of a tenth of the clients, and all contrast prototypes.
"""

from __future__ import annotations

import resource

import torch

from benchmarks.pages import print_table
from benchmarks.parts import parser_of, timed
from fedproto_app.maths.divergence import (
    contrast_prototypes,
    pairwise_divergence,
    threshold,
    update_divergence,
)

ROWS, WIDTH = 24, 32


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10000], metavar="N")
    sizes = sorted(parser.parse_args().clients)  # ascending, as peak memory only grows
    if sizes[0] < 2:
        parser.error(f"--clients {sizes[0]}: a pair needs at least 2 clients")
    headings = ("clients", "full s", "10% s", "contrast s", "peak GB", "pairs/s")
    print_table([headings, *map(row_of, sizes)], texts=0)


def row_of(clients: int) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(clients, ROWS, WIDTH, generator=generator)
    reported = torch.randperm(clients, generator=generator)[: max(1, clients // 10)]
    full, divergence = timed(lambda: pairwise_divergence(prototypes))
    tenth, divergence = timed(lambda: update_divergence(divergence, prototypes, reported))
    contrast, _ = timed(
        lambda: contrast_prototypes(prototypes, divergence, threshold(divergence, "percentile", 50))
    )
    seconds = [f"{span:.2f}" for span in (full, tenth, contrast)]
    pairs = clients * (clients - 1) / 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # Linux reports KiB
    return [f"{clients:,}", *seconds, f"{peak:.2f}", f"{pairs / full:,.0f}"]


if __name__ == "__main__":
    main()
