"""Similarities of clients' heads and the clusters that follow, within one round of Fed-REACT.

Paper: Fed-REACT, section 2 (docs/fed-react.md lists what it leaves open). Shapes: N clients, P
parameters of a head. Matrices [N, N] are float32, which is 400 MB for 10,000 clients. Sums are
float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# scipy and sklearn are imported where needed, as it takes a second and most methods need neither.

Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]
Pairs = NDArray[np.int64]
Heads = NDArray[np.float32]
Cosine = Literal["cosine", "centred-cosine"]
HeadSimilarity = Literal[Cosine, "class-norms", "predictions"]

MOST_CLUSTERS = 20  # the largest number that the silhouette may choose
BLOCK = 1024  # products have at most so many rows and columns, so no [N, N] is held in float64


def head_similarity(
    heads: Heads, kind: HeadSimilarity, probe: NDArray[np.float64] | None = None
) -> Matrix:
    """Return the similarities W of heads, as ``fed-react.similarity`` defines them.

    Shapes: [N, outputs, D + 1] → [N, N]. "class-norms" (ours) compares only the centred norms of
    the class rows. They show which classes a client has seen, and clusters of clients differ in
    their classes. The rows' directions are mostly the noise of a few samples. "predictions" (ours,
    mainly for regression) compares the heads' outputs for the vector `probe` [D]. Only this kind
    needs a probe.
    """
    if kind == "predictions":
        if probe is None:
            raise ValueError("probe = None: missing; 'predictions' needs a vector")
        exact = heads.astype(np.float64)
        return closeness(exact[:, :, :-1] @ probe + exact[:, :, -1])
    if kind == "class-norms":
        norms = np.linalg.norm(heads.astype(np.float64), axis=2)  # float32's squares overflow
        return similarity(norms, "centred-cosine")
    return similarity(heads.reshape(len(heads), -1), kind)


def similarity(heads: Matrix | NDArray[np.float64], kind: Cosine) -> Matrix:
    """Return W, the cosine of every two heads (Fed-REACT, eq. 2): [N, P] → [N, N], symmetric.

    "centred-cosine" first subtracts the mean head, to bring out the differences between heads that
    have much in common. A head of zeros has similarity 0 with the others. The diagonal is 1.
    """
    directions = heads.astype(np.float64)
    if kind == "centred-cosine":
        directions -= directions.mean(axis=0)
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    directions /= np.where(norms > 0, norms, 1)

    cosines = np.empty((len(heads), len(heads)), np.float32)
    for rows in spans(len(heads), BLOCK):
        for columns in spans(len(heads), BLOCK, rows.start):
            block = directions[rows] @ directions[columns].T  # float32 rounds 1 + 1e-13 to 1
            cosines[columns, rows] = block.T
            cosines[rows, columns] = block
    _mirror_diagonal_blocks(cosines)
    return cosines


def closeness(points: NDArray[np.float64]) -> Matrix:
    """Return exp(−½·(distance / median)²) of every two points: [N, k] → [N, N], symmetric.

    The median is taken over the distances above 0. A hostile client far away changes it little.
    """
    from scipy.spatial.distance import cdist

    near = np.empty((len(points), len(points)), np.float32)
    for rows in spans(len(points), BLOCK):
        near[rows] = cdist(points[rows], points)
    apart = near[near > 0]
    if len(apart):
        near /= np.median(apart)
    np.minimum(near, 100, out=near)  # exp(−5000) is 0, and no square overflows
    near *= near
    near *= -0.5
    return np.exp(near, out=near)


def find_clusters(psi: Matrix, clusters: int) -> Labels:
    """Form C clusters, or if C is 0 as many as the silhouette chooses: [N, N] → [N]."""
    return agglomerate(psi, clusters) if clusters else agglomerate_by_silhouette(psi)


def agglomerate(psi: Matrix, clusters: int) -> Labels:
    """Form exactly C clusters by average linkage on 1 − ψ: [N, N] → [N].

    If there are fewer than C clients, each is a cluster. Clusters are numbered 0 … C−1 by first
    appearance. Ties are broken in scipy's order, which is deterministic. Raises ValueError if ψ is
    not finite.
    """
    return _cut(_merges(psi), len(psi), clusters)


def agglomerate_by_silhouette(psi: Matrix, most_clusters: int = MOST_CLUSTERS) -> Labels:
    """Return the clustering [N] into 2 … `most_clusters` clusters with the highest mean silhouette.

    In a tie the lower number wins. Returns a single cluster if there are at most two clients, or if
    no number has a positive silhouette, for example because all clients are alike.
    """
    from sklearn.metrics import silhouette_score

    best, best_score = np.zeros(len(psi), np.int64), 0.0
    pairs = _merges(psi)
    distance = np.maximum(1 - psi, 0)  # ψ of equal heads may be rounded to above 1
    for clusters in range(2, min(most_clusters, len(psi) - 1) + 1):
        labels = _cut(pairs, len(psi), clusters)
        score = float(silhouette_score(distance, labels, metric="precomputed"))
        if score > best_score:
            best, best_score = labels, score
    return best


def by_first_appearance(labels: Labels) -> Labels:
    """Renumber the clusters 0, 1, … by first appearance: [N] → [N]."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def spans(clients: int, length: int, start: int = 0) -> Iterator[slice]:
    """Yield slices of the clients from `start` on, `length` at a time."""
    for begin in range(start, clients, length):
        yield slice(begin, min(begin + length, clients))


def _mirror_diagonal_blocks(matrix: Matrix) -> None:
    """Make the diagonal blocks bitwise symmetric, and the diagonal 1."""
    for rows in spans(len(matrix), BLOCK):
        upper = np.triu(matrix[rows, rows], 1)
        matrix[rows, rows] = upper + upper.T
    np.fill_diagonal(matrix, 1)


def _merges(psi: Matrix) -> Pairs:
    """Return the merges, nearest first, each as one client from each cluster: [N − 1, 2]."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    apart = 1 - squareform(psi, checks=False)  # a float32 for each pair
    tree = linkage(apart, "average") if len(apart) else np.empty((0, 4))
    client_of = [*range(len(psi))]  # of each cluster, in scipy's numbering
    pairs = []
    for first, second in tree[:, :2].astype(int).tolist():
        pairs.append((client_of[first], client_of[second]))
        client_of.append(client_of[first])
    return np.array(pairs, np.int64).reshape(-1, 2)


def _cut(pairs: Pairs, clients: int, clusters: int) -> Labels:
    """Return the labels [N] after the first N − C merges.

    Cutting the tree at a height would leave too few clusters if several merges have that height.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    done = pairs[: max(clients - clusters, 0)].T
    graph = coo_array((np.ones(done.shape[1]), (done[0], done[1])), shape=(clients, clients))
    _, labels = connected_components(graph, directed=False)
    return by_first_appearance(labels.astype(np.int64))


# Matching the clusters of two rounds. "Cluster c" keeps its head over the rounds (Fed-REACT,
# Algorithm 2, lines 10 to 12), but each clustering numbers clusters anew.

ABSENT = -1  # the label of an absent client


def match_labels(previous: Labels, current: Labels, clusters: int) -> Labels:
    """Renumber `current` so that it agrees with `previous` for as many clients as possible: [N].

    previous, current: [N], ABSENT for an absent client. Only the groups in `current` matter, not
    its numbers. clusters: the available numbers are 0 … clusters−1, where clusters is C, or
    MOST_CLUSTERS if the silhouette chooses. Raises ValueError if these do not suffice. The matching
    is one to one. A cluster that shares no client with an earlier one is new. It takes the lowest
    number that `previous` does not have, or else the lowest free number.
    """
    from scipy.optimize import linear_sum_assignment

    present = current != ABSENT
    labels = by_first_appearance(current[present])
    count = int(labels.max(initial=-1)) + 1
    if count > clusters or previous.max(initial=-1) >= clusters:
        raise ValueError(f"{count} clusters and labels {np.unique(previous)} in {clusters} numbers")

    shared = np.zeros((count, clusters), np.int64)
    returning = previous[present] != ABSENT
    np.add.at(shared, (labels[returning], previous[present][returning]), 1)
    numbers = np.full(count, ABSENT, np.int64)
    rows, columns = linear_sum_assignment(shared, maximize=True)
    matches = shared[rows, columns] > 0
    numbers[rows[matches]] = columns[matches]

    new = numbers == ABSENT
    free = np.setdiff1d(np.arange(clusters), numbers)
    free = free[np.argsort(np.isin(free, previous), kind="stable")]  # never used ones first
    numbers[new] = free[: int(new.sum())]
    matched = np.full(len(current), ABSENT, np.int64)
    matched[present] = numbers[labels]
    return matched


def clusters_of_before(labels: Sequence[int]) -> Labels:
    """Return the previous round's clusters of this round's clients, renumbered 0, 1, …: [N].

    labels: the previous round's labels, ABSENT for an absent client. Such a client forms a cluster
    alone, so that it does not affect the other clusters.
    """
    before = np.array(labels, np.int64)
    newcomers = before == ABSENT
    before[newcomers] = before.max(initial=ABSENT) + 1 + np.arange(newcomers.sum())
    return by_first_appearance(before)
