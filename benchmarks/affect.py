"""The server's half of Fed-REACT's second phase: seconds and memory of one round of AFFECT.

    python -m benchmarks.affect [--clients 100 1000 10000]

Random heads of 10 classes x 321 weights around three centres and a past of the round before. AFFECT
stops once its clusters repeat; a round is six clusterings and five estimates of α at most. The peer
of the clustering is sklearn's `AgglomerativeClustering` on the same matrix in the same process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import rand_score

from benchmarks.machine import machine_line
from benchmarks.parts import peak_memory, timed
from benchmarks.tables import figure_table
from fedproto_app.maths.clustering import Labels, Matrix, agglomerate, match_labels, similarity
from fedproto_app.strategies.fed_react.strategy import affect, forgetting_factor

CLUSTERS, WEIGHTS = 3, 10 * 321
NOISE = 10.0  # of a head, in units of the centres': a snapshot does not find the clusters


class Timing(NamedTuple):
    """One line of the table: times in seconds, memory in bytes."""

    clients: int
    similarity: float
    affect: float
    match: float
    factor: float
    cluster: float
    sklearn: float
    agreement: float
    peak_memory: int


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the server's round of AFFECT.")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10000], metavar="N")
    sizes = sorted(parser.parse_args().clients)  # ascending, as peak memory only grows
    if sizes[0] < CLUSTERS:
        parser.error(f"--clients {sizes[0]}: {CLUSTERS} clusters need as many clients")

    console = Console()
    with console.status("start") as status:
        timings = [measure(clients, status.update) for clients in sizes]
    headings = ["clients", "similarity s", "affect s", "match s", "one α s", "one clustering s"]
    rows = [
        (
            f"{timing.clients:,}",
            f"{timing.similarity:.2f}",
            f"{timing.affect:.2f}",
            f"{timing.match:.3f}",
            f"{timing.factor:.3f}",
            f"{timing.cluster:.3f}",
            f"{timing.sklearn:.3f}",
            f"{timing.sklearn / timing.cluster:.1f}",
            f"{timing.agreement:.3f}",
            f"{timing.peak_memory / 1e9:.2f}",
        )
        for timing in timings
    ]
    title = f"One round of AFFECT, heads of {WEIGHTS:,} weights, {CLUSTERS} clusters"
    headings += ["sklearn s", "× sklearn", "Rand index", "peak GB"]
    console.print(figure_table(headings, rows, title=title, caption=machine_line(), texts=0))


def measure(clients: int, progress: Callable[[str], None]) -> Timing:
    """Time a round of all clients, from their heads to clusters numbered as in the round before."""
    progress(f"{clients} clients: the round before")
    past = similarity(_heads(clients, 0), "cosine")
    previous = agglomerate(past, CLUSTERS)

    heads = _heads(clients, 1)
    progress(f"{clients} clients: similarity")
    similar, current = timed(lambda: similarity(heads, "cosine"))
    progress(f"{clients} clients: AFFECT")
    round_of_affect, (labels, _, psi) = timed(lambda: affect(past, current, CLUSTERS))
    match, _ = timed(lambda: match_labels(previous, labels, CLUSTERS))
    progress(f"{clients} clients: one estimate, one clustering")
    factor, _ = timed(lambda: forgetting_factor(past, current, labels))
    cluster, _ = timed(lambda: agglomerate(psi, CLUSTERS))
    peak = peak_memory()

    progress(f"{clients} clients: sklearn")
    sklearn, reference = timed(lambda: _sklearn_labels(psi))
    agreement = rand_score(labels, reference)
    return Timing(
        clients, similar, round_of_affect, match, factor, cluster, sklearn, agreement, peak
    )


def _heads(clients: int, seed: int) -> Matrix:
    """Return the heads of one round, [N, WEIGHTS], client i around centre i mod CLUSTERS."""
    centres = np.random.default_rng(2).standard_normal((CLUSTERS, WEIGHTS), np.float32)
    heads = np.random.default_rng(seed).standard_normal((clients, WEIGHTS), np.float32)
    heads *= NOISE
    heads += centres[np.arange(clients) % CLUSTERS]
    return heads


def _sklearn_labels(psi: Matrix) -> Labels:
    peer = AgglomerativeClustering(CLUSTERS, metric="precomputed", linkage="average")
    labels: NDArray[np.int64] = peer.fit_predict(np.maximum(1 - psi, 0))
    return labels


if __name__ == "__main__":
    main()
