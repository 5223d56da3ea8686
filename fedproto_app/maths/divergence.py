"""The server's half of FUELS: divergences between prototypes, and the contrast prototypes.

Sources for FUELS: A = the AAAI 2025 paper, section "JSD-Based Aggregation" and A, Algorithm 1,
lines 9 and 10. P = its preprint, where PR and NR have numbers (P, eqs. 9 and 10). Both leave open
how a prototype becomes a distribution. Here a softmax over the d values turns each of its B rows
into one. The divergence of two clients is the Jensen-Shannon divergence of their rows, averaged
over the rows, in nats.

With m = (p + q) / 2, JS(p‖q) = H(m) − (H(p) + H(q)) / 2. The entropies H(p) are computed once per
client, so a pair costs one sum of m log m. Only the upper triangle is computed, in tiles that are
small enough for the caches. NumPy runs the inner loop. With AVX-512 its float32 logarithm is three
times as fast as torch's, and elsewhere equally fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.maths.threads import in_threads, pool_size

Indices = Sequence[int] | Tensor
# (members [K, N] bool, all clients' values [N, D], the clients that the K rows are for) → [K, D]
Combine = Callable[[Tensor, Tensor, Tensor], Tensor]

TILE_ROWS = 16  # tiles of 16 x 32 pairs were fastest. Smaller tiles wait for Python
TILE_COLUMNS = 32
TILE_VALUES = 1024  # longer prototypes are summed in pieces: each in float32, all in float64

CONTRAST_ROWS = 512  # clients in one matrix product that makes contrast prototypes

# The largest float32 not above ln 2. The number float32(ln 2) itself is rounded up.
LARGEST_DIVERGENCE = np.nextafter(np.float32(math.log(2)), np.float32(0))


def prototype_distributions(prototypes: Tensor) -> Tensor:
    """Return the softmax of every prototype row: [N, B, d] → [N, B, d] float64."""
    return prototypes.softmax(-1, dtype=torch.float64)


def pairwise_divergence(prototypes: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of every two clients' prototypes.

    prototypes: [N, B, d], finite.
    Returns [N, N] float32 in nats, 0 ... ln 2. It is bitwise symmetric, and exactly 0 for equal
    prototypes. The largest error, measured against float64 with sharply peaked rows, is 8e-7. For
    nearly uniform rows it is below 1e-7. Runs on `pool_size` threads.
    """
    return update_divergence(None, prototypes, range(len(prototypes)))


def update_divergence(divergence: Tensor | None, prototypes: Tensor, changed: Indices) -> Tensor:
    """Return the divergences after some clients sent new prototypes. As in A, the rest is reused.

    divergence: [M, M], the divergences of the first M clients before the update, or None if there
        are none (M = 0). Without newcomers (M = N) it is overwritten, because for 10,000 clients it
        takes 400 MB, and a copy would double that.
    prototypes: [N, B, d], N ≥ M, of all clients, including those that did not change.
    changed: the clients whose rows and columns are computed. It must include all clients from M on.
    Returns [N, N] float32, bitwise equal to `pairwise_divergence`. It is `divergence` itself, or a
    new matrix if there are newcomers.
    Raises ValueError if `changed` names a client beyond N or lacks a newcomer.
    """
    clients = len(prototypes)
    old_clients = 0 if divergence is None else len(divergence)
    changes = np.unique(np.asarray(changed, dtype=np.int64))
    unchanged = np.setdiff1d(np.arange(clients), changes)
    if (
        np.any((changes < 0) | (changes >= clients))
        or np.any(unchanged >= old_clients)
        or old_clients > clients
    ):
        raise ValueError(
            f"changed must lie in 0 ... {clients - 1} and hold every client from {old_clients} on"
        )
    matrix = np.empty((clients, clients), dtype=np.float32)
    if divergence is not None:
        if old_clients == clients:
            matrix = divergence.numpy()
        else:
            matrix[:old_clients, :old_clients] = divergence.numpy()
    # The changed clients come first, so what is new is the top rows from the diagonal rightwards.
    order = np.concatenate([changes, unchanged])
    halves = _scaled_halves(prototypes)[order]
    entropies = _own_sums(halves)
    strips = range(0, len(changes), TILE_ROWS)
    spare = [_tile_scratch() for _ in range(pool_size())]

    def compute(start: int) -> None:
        """Compute rows of changed clients, from the diagonal rightwards."""
        stop = min(start + TILE_ROWS, len(changes))
        scratch = spare.pop()
        rows = slice(start, stop), slice(start, None)
        strip = _divergence_strip(halves, entropies, *rows, scratch) / prototypes[0].numel()
        spare.append(scratch)
        strip = strip.clip(0, LARGEST_DIVERGENCE).astype(np.float32)
        matrix[np.ix_(order[start:stop], order[start:])] = strip

    def mirror(start: int) -> None:
        """Copy the entries above the diagonal to below it, row by row.

        Writing a column instead would touch another page of memory for each number.
        """
        above = changes[:start]
        rows = (changes if start < len(changes) else order)[start : start + TILE_ROWS]
        matrix[np.ix_(rows, above)] = matrix[np.ix_(above, rows)].T

    for work, places in (
        (compute, strips),
        (mirror, [*strips, *range(len(changes), clients, TILE_ROWS)]),
    ):
        for _ in in_threads(work, places):
            pass
    return torch.from_numpy(matrix)


def divergence_from(prototypes: Tensor, references: Tensor) -> Tensor:
    """Return the divergence of each prototype from each of the references, [N, M] float32.

    prototypes: [N, B, d]. references: [M, B, d]. Both are as in `pairwise_divergence`.
    """
    clients = len(prototypes)
    halves = np.concatenate([_scaled_halves(prototypes), _scaled_halves(references)])
    entropies = _own_sums(halves)

    def strip(start: int) -> NDArray[np.float32]:
        rows = slice(start, min(start + TILE_ROWS, clients)), slice(clients, None)
        sums = _divergence_strip(halves, entropies, *rows, _tile_scratch())
        return (sums / prototypes[0].numel()).clip(0, LARGEST_DIVERGENCE).astype(np.float32)

    return torch.from_numpy(np.concatenate([*in_threads(strip, range(0, clients, TILE_ROWS))]))


def threshold(divergence: Tensor, kind: Literal["percentile", "absolute"], beta: float) -> float:
    """Return the largest divergence at which another client counts as similar (A, section 4.3).

    divergence: [N, N], symmetric.
    kind: with "percentile", β (0 ... 100) is a percentile of the divergences of all pairs of two
        different clients, linearly interpolated. With "absolute" it is in nats.
    A single client has no pairs, and the percentile is then 0.
    """
    if kind == "absolute":
        return beta
    if len(divergence) < 2:
        return 0.0
    pairs = np.concatenate([row[n + 1 :] for n, row in enumerate(divergence.numpy())])
    return float(np.percentile(pairs, beta, overwrite_input=True))


def contrast_prototypes(
    prototypes: Tensor,
    divergence: Tensor,
    beta_value: float,
    chosen: Indices | None = None,
    places: Tensor | None = None,
    combine: Combine | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the global positive and negative prototypes PR_n and NR_n of the chosen clients.

    They are the means over PC_n = {m : JS(R_n‖R_m) ≤ β} and over its complement NC_n (A, Algorithm
    1, line 10; P, eqs. 9 and 10). A client is always in its own PC_n, because its divergence from
    itself is 0.

    prototypes: [N, B, d]. divergence: [N, N]. beta_value: in nats, ≥ 0.
    chosen: K clients, in the order of the result. None means all.
    places: [N] in 0 ... 1, for a control: places of the clients on a circle. PC_n keeps the size
        that divergence gives it, but its members are the clients nearest to n on the circle.
    combine: what replaces the mean of the members (`trust/averaging.py`).
    Returns PR [K, B, d], NR [K, B, d] (0 if NC_n is empty), and whether NC_n has members [K] bool.
    """
    clients = range(len(prototypes)) if chosen is None else chosen
    flat = prototypes.flatten(1)
    combine = combine or _mean_of_members
    positive = flat.new_empty(len(clients), flat.shape[1])
    negative = torch.empty_like(positive)
    has_negative = torch.empty(len(clients), dtype=torch.bool)

    def fill(start: int) -> None:
        block = slice(start, start + CONTRAST_ROWS)
        rows = torch.as_tensor(clients[block], dtype=torch.int64)
        similar = divergence[rows] <= beta_value  # [block, N]
        if places is not None:
            similar = _nearest(places, rows, similar.sum(dim=1))
        positive[block] = combine(similar, flat, rows)
        negative[block] = combine(~similar, flat, rows)
        has_negative[block] = ~similar.all(dim=1)

    for _ in in_threads(fill, range(0, len(clients), CONTRAST_ROWS)):
        pass
    shape = (len(clients), *prototypes.shape[1:])
    return positive.reshape(shape), negative.reshape(shape), has_negative


def _nearest(places: Tensor, rows: Tensor, sizes: Tensor) -> Tensor:
    """Return which clients are nearest to each row's client on the circle, itself included.

    sizes: how many for each row [K]. Returns [K, N] bool.
    """
    apart = (places[rows].unsqueeze(1) - places).abs()
    apart = torch.minimum(apart, 1 - apart)
    apart[torch.arange(len(rows)), rows] = -1  # itself first, even if others have its place
    ranks = apart.argsort(dim=1, stable=True).argsort(dim=1)
    return ranks < sizes.unsqueeze(1)


def _mean_of_members(members: Tensor, flat: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of flat's rows over the members: [K, N] bool, [N, D] → [K, D], 0 if none."""
    return members.to(flat.dtype) @ flat / members.sum(dim=1, keepdim=True).clamp(min=1)


def _scaled_halves(prototypes: Tensor) -> NDArray[np.float32]:
    """Return d·p/2 for each client's rows p: [N, B, d] → [N, B·d]. Two such halves add up to d·m.

    With the factor d, the logarithm of a nearly uniform row is nearly 0. The entropies, which
    almost cancel, become distances from the uniform distribution, so small numbers keep their
    digits. No value is exactly 0, so x log x needs no special case: zeros become the smallest
    normal float32, which changes no sum.
    """
    halves = prototype_distributions(prototypes).mul_(prototypes.shape[-1] / 2)
    return halves.float().clamp_(min=torch.finfo(torch.float32).tiny).flatten(1).numpy()


def _divergence_strip(
    halves: NDArray[np.float32],
    entropies: NDArray[np.float64],
    rows: slice,
    columns: slice,
    scratch: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return B·d times the divergence of the clients in these rows from those in the columns."""
    p, q = halves[rows, None], halves[None, columns]
    of_p, of_q = entropies[rows, None], entropies[None, columns]
    strip = np.empty((len(p), q.shape[1]))
    for begin in range(0, q.shape[1], TILE_COLUMNS):
        tile = slice(begin, begin + TILE_COLUMNS)
        means = (of_p + of_q[:, tile]) / 2
        strip[:, tile] = means - _x_log_x_sums(p, q[:, tile], scratch)
    return strip


def _own_sums(halves: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return Σ x log x of each client's x = d·p: [N, D] → [N].

    The sums are computed as for pairs, so that equal prototypes cancel to exactly 0.
    """
    scratch = _tile_scratch()
    step = TILE_ROWS * TILE_COLUMNS
    blocks = (halves[start : start + step] for start in range(0, len(halves), step))
    return np.concatenate([_x_log_x_sums(block, block, scratch) for block in blocks])


def _tile_scratch() -> NDArray[np.float32]:
    """Allocate the memory for one tile's x and log x, which a thread reuses."""
    return np.empty((2, TILE_ROWS * TILE_COLUMNS * TILE_VALUES), dtype=np.float32)


def _x_log_x_sums(
    first: NDArray[np.float32], second: NDArray[np.float32], scratch: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return Σ x log x over the last axis of the broadcast x = first + second: [..., D] → [...]."""
    *pairs, values = np.broadcast_shapes(first.shape, second.shape)
    sums = np.zeros(pairs)
    for start in range(0, values, TILE_VALUES):
        width = min(TILE_VALUES, values - start)
        used = scratch[:, : sums.size * width].reshape(2, *pairs, width)
        x = np.add(first[..., start : start + width], second[..., start : start + width], used[0])
        sums += np.vecdot(x, np.log(x, used[1]))
    return sums
