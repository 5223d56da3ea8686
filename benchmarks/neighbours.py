"""Find similar clients among 100,000 without the matrix of all pairs.

    python -m benchmarks.neighbours [--clients 100000] [--groups 1000] [--sample 100]

The matrix of 100,000 clients has 40 GB and 5·10⁹ pairs. Two ways around it are tried on prototypes
of 24 x 32 values, made as FUELS's are on M4 and Milano: 20 directions, the k-th with a k-th of the
first's variance, hold 98%; along them half of the variance comes from 300 centres, with unevenly
many clients at each, and half is a client's own. k-means puts the square roots of the rows'
probabilities (whose Euclidean distance is Hellinger's, a bound of the Jensen-Shannon divergence)
into groups, along the principal directions of a sample.

*Nearest*: a client's candidates are the members of the nearest groups; the exact divergence picks
among them. Recall is over its true 10 and 100 nearest. *Means*: FUELS asks for the means of the
clients below a threshold and of the others. A group is taken whole, by the divergence of its mean
prototype from the client's (a row of so many groups for each client) or from the client's own
group's mean (a matrix of groups alone). The truth is exact rows of a sample of clients.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA

from benchmarks.machine import machine_line
from benchmarks.parts import timed
from fedproto_app.maths.divergence import pairwise_divergence, prototype_distributions

ROWS, WIDTH = 24, 32
CENTRES, DIRECTIONS = 300, 20
DEVIATION, NOISE = 0.07, 0.02  # of a value; noise's share of the variance
PROJECTED = 64  # dimensions that k-means sees
LEARNT_FROM = 5000  # clients, for the directions of these
PROBES = (1, 4, 16, 64)  # groups whose members are candidates
NEAREST = (10, 100)
PERCENTILES = (5, 50)  # of all pairs; FUELS's default is 50
BLOCK = 64  # clients at a time whose values fit the caches

Floats = NDArray[np.float32]
Places = NDArray[np.intp]


class Grouped(NamedTuple):
    """labels [N], the groups' sizes [G], mean prototypes [G, D] and, projected, centres [G, P]."""

    labels: Places
    sizes: Places
    means: Floats
    centres: Floats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100_000, metavar="N")
    parser.add_argument("--groups", type=int, default=1000, metavar="N")
    parser.add_argument("--sample", type=int, default=100, metavar="N")
    arguments = parser.parse_args()
    in_order = max(PROBES) <= arguments.groups <= arguments.clients
    if not in_order or arguments.clients <= max(NEAREST):
        parser.error(f"--groups: {max(PROBES)} to --clients; --clients: more than {max(NEAREST)}")

    console = Console()
    with console.status("prototypes") as status:
        prototypes = made_prototypes(arguments.clients)
        halves, entropies = scaled_halves(prototypes)
        check_against_the_app(prototypes, halves, entropies)
        sample = np.sort(
            np.random.default_rng(1).permutation(arguments.clients)[: arguments.sample]
        )
        status.update(f"exact rows of {arguments.sample} clients")
        rows_took, exact = timed(lambda: divergences(halves, entropies, sample))
        status.update("groups")
        projecting, projected = timed(lambda: hellinger_projection(prototypes))
        grouping, grouped = timed(lambda: make_groups(projected, prototypes, arguments.groups))
        status.update("candidates")
        search = nearest_table(exact, sample, projected, grouped, halves, entropies)
        status.update("means")
        means = means_table(exact, sample, prototypes, projected, grouped)
    pairs = arguments.clients * arguments.sample / rows_took
    all_pairs = arguments.clients**2 / 2
    console.print(search)
    console.print(means)
    console.print(
        f"exact rows: {pairs / 1e6:.1f} M pairs/s; so the matrix of all {arguments.clients:,} "
        f"would take {all_pairs / pairs / 60:.0f} minutes and "
        f"{arguments.clients**2 * 4 / 1e9:.1f} GB. "
        f"Projection {projecting:.1f} s, {arguments.groups} groups {grouping:.1f} s; "
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2:.2f} GiB"
    )
    console.print(machine_line(), style="dim")


def made_prototypes(clients: int) -> Floats:
    """Return prototypes, [N, ROWS·WIDTH]: a centre and a personal part along DIRECTIONS, and
    noise."""
    draws = np.random.default_rng(0)
    size = ROWS * WIDTH
    scales = 1 / np.sqrt(np.arange(1, DIRECTIONS + 1))
    scales *= DEVIATION * np.sqrt((1 - NOISE) / 2 / np.square(scales).sum())  # centre, own: half
    directions = draws.standard_normal((DIRECTIONS, size), np.float32)
    centres = draws.standard_normal((CENTRES, DIRECTIONS)) * scales
    shares = draws.dirichlet(np.ones(CENTRES))  # unevenly many at each
    along = centres[draws.choice(CENTRES, clients, p=shares)]
    along += draws.standard_normal((clients, DIRECTIONS)) * scales
    prototypes = along.astype(np.float32) @ directions
    for rows in _blocks(clients, 4096):
        noise = draws.standard_normal((rows.stop - rows.start, size), np.float32)
        prototypes[rows] += DEVIATION * math.sqrt(NOISE) * noise
    return prototypes


def scaled_halves(prototypes: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Return d·p/2 of each client's rows, [N, D], and Σ x log x of x = d·p, [N], as in the app."""
    halves = np.empty_like(prototypes)
    entropies = np.empty(len(prototypes))
    for rows in _blocks(len(prototypes), 4096):
        shaped = torch.from_numpy(prototypes[rows]).reshape(-1, ROWS, WIDTH)
        x = (prototype_distributions(shaped) * WIDTH).float().flatten(1).numpy()
        np.maximum(x, np.finfo(np.float32).tiny, out=x)
        halves[rows], entropies[rows] = x / 2, np.vecdot(x, np.log(x))
    return halves, entropies


def divergences(
    halves: Floats, entropies: NDArray[np.float64], rows: Places, columns: Places | None = None
) -> Floats:
    """Return the divergences of these clients from all or some others, [K, M], in nats."""
    compared = np.arange(len(halves)) if columns is None else columns
    result = np.empty((len(rows), len(compared)), np.float32)

    def fill(block: slice) -> None:
        chosen = compared[block]
        near = halves[chosen]
        for place, row in enumerate(rows):
            x = near + halves[row]
            apart = (entropies[row] + entropies[chosen]) / 2 - np.vecdot(x, np.log(x))
            result[place, block] = np.maximum(apart, 0) / (ROWS * WIDTH)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(fill, _blocks(len(compared), BLOCK)):
            pass
    return result


def check_against_the_app(
    prototypes: Floats, halves: Floats, entropies: NDArray[np.float64]
) -> None:
    """Check that these divergences are the app's."""
    rows = np.arange(30)
    shaped = torch.from_numpy(prototypes[rows]).reshape(-1, ROWS, WIDTH)
    np.testing.assert_allclose(
        divergences(halves, entropies, rows, rows), pairwise_divergence(shaped).numpy(), atol=1e-6
    )


def hellinger_projection(prototypes: Floats) -> Floats:
    """Return √probabilities along a sample's principal directions, [N, PROJECTED]."""

    def roots(rows: slice) -> Floats:
        shaped = torch.from_numpy(prototypes[rows]).reshape(-1, ROWS, WIDTH)
        distributions: Floats = prototype_distributions(shaped).sqrt().float().flatten(1).numpy()
        return distributions

    fitted = PCA(PROJECTED, svd_solver="randomized", random_state=0).fit(roots(slice(LEARNT_FROM)))
    blocks = _blocks(len(prototypes), 4096)
    return np.concatenate([fitted.transform(roots(rows)).astype(np.float32) for rows in blocks])


def make_groups(projected: Floats, prototypes: Floats, groups: int) -> Grouped:
    """Group clients by k-means; empty groups are dropped."""
    kmeans = MiniBatchKMeans(groups, batch_size=8192, n_init=1, max_iter=20, random_state=0)
    used_groups, labels = np.unique(kmeans.fit_predict(projected), return_inverse=True)
    sizes = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(sizes) - sizes
    means = np.stack(
        [
            prototypes[order[begin : begin + size]].mean(axis=0)
            for begin, size in zip(starts, sizes, strict=True)
        ]
    )
    return Grouped(labels, sizes, means, kmeans.cluster_centers_[used_groups].astype(np.float32))


def nearest_table(
    exact: Floats,
    sample: Places,
    projected: Floats,
    grouped: Grouped,
    halves: Floats,
    entropies: NDArray[np.float64],
) -> Table:
    """Return the recall of the true nearest among the members of the nearest groups."""
    result = Table(title=f"Nearest of {len(sample)} clients among {len(projected):,}")
    headings = ("groups looked into", "candidates", "ms a client")
    for heading in (*headings, *(f"recall of {k}" for k in NEAREST)):
        result.add_column(heading, justify="right")
    order = np.argsort(grouped.labels, kind="stable")
    starts = np.cumsum(grouped.sizes) - grouped.sizes
    members = [order[b : b + n] for b, n in zip(starts, grouped.sizes, strict=True)]
    for probes in PROBES:
        shares, recalls = [], []
        started, searches = time.perf_counter(), []
        for client in sample:
            near = np.square(grouped.centres - projected[client]).sum(axis=1)
            candidates = np.concatenate([members[g] for g in np.argsort(near)[:probes]])
            apart = divergences(halves, entropies, np.array([client]), candidates)[0]
            searches.append((candidates, apart))
        seconds = time.perf_counter() - started
        for number, (candidates, apart) in enumerate(searches):
            shares.append(len(candidates) / len(projected))
            recalls.append(
                [
                    np.isin(
                        _nearest(exact[number], k),
                        candidates[_nearest(apart, min(k, len(apart)))],
                    ).mean()
                    for k in NEAREST
                ]
            )
        result.add_row(
            str(probes),
            f"{np.mean(shares):.2%}",
            f"{1000 * seconds / len(sample):.1f}",
            *(f"{recall:.1%}" for recall in np.mean(recalls, axis=0)),
        )
    return result


def means_table(
    exact: Floats, sample: Places, prototypes: Floats, projected: Floats, grouped: Grouped
) -> Table:
    """Return how well groups find the clients below the threshold, and the error of the means."""
    result = Table(title=f"Clients below the threshold; {len(grouped.sizes)} groups")
    for heading in ("threshold", "compared", "recall", "precision", "error of PR", "pairs a round"):
        result.add_column(heading, justify="left" if heading == "compared" else "right")
    clients, groups = len(prototypes), len(grouped.sizes)
    vectors = np.concatenate([grouped.means, prototypes[sample]])
    halves, entropies = scaled_halves(vectors)
    columns = np.arange(groups)
    of_clients = divergences(halves, entropies, np.arange(groups, len(vectors)), columns)
    of_groups = divergences(halves, entropies, grouped.labels[sample], columns)
    squares = np.square(projected).sum(axis=1)
    took, flat = timed(
        lambda: squares[sample, None] + squares - 2 * projected[sample] @ projected.T
    )
    for percentile in PERCENTILES:
        truth = exact <= np.percentile(exact, percentile)
        for name, near, pairs in (
            ("projected clients", flat, clients**2 / 2),
            ("client, groups", of_clients[:, grouped.labels], clients * groups),
            ("group, groups", of_groups[:, grouped.labels], groups**2 / 2),
        ):
            chosen = near <= np.percentile(near, percentile)
            hits = np.count_nonzero(truth & chosen, axis=1)
            errors = mean_errors(prototypes, truth, chosen)
            result.add_row(
                f"{percentile}%",
                name,
                f"{np.mean(hits / truth.sum(axis=1)):.1%}",
                f"{np.mean(hits / np.maximum(chosen.sum(axis=1), 1)):.1%}",
                f"{np.median(errors):.1%}",
                f"{pairs:.1g}",
            )
    result.caption = (
        "error of PR: its distance from the true mean, over that of PR and NR; median. "
        f"Projected: {flat.size / took / 1e6:.0f} M pairs/s"
    )
    return result


def mean_errors(
    prototypes: Floats, truth: NDArray[np.bool_], chosen: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return how far the means of the chosen clients are from the true PR, over the distance of PR
    and NR, [K].

    prototypes: [N, D]. truth, chosen: [K, N], whether a client is below the threshold.
    """

    def means(chosen: NDArray[np.bool_]) -> Floats:
        counts = np.maximum(chosen.sum(axis=1, keepdims=True), 1).astype(np.float32)
        mean_prototypes: Floats = chosen.astype(np.float32) @ prototypes / counts
        return mean_prototypes

    positive = means(truth)
    apart = np.linalg.norm(positive - means(~truth), axis=1)
    return np.asarray(np.linalg.norm(means(chosen) - positive, axis=1) / apart, np.float64)


def _nearest(apart: Floats, count: int) -> Places:
    """Return the indices of the smallest values."""
    return np.argpartition(apart, count - 1)[:count]


def _blocks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


if __name__ == "__main__":
    main()
