"""How alike clients' heads are, and the clusters that follow: Fed-REACT's snapshot of one round.

Paper: Fed-REACT, section 2 (docs/fed-react.md names what it leaves open). Shapes: N clients, P
parameters of a head. Matrices [N, N] are float32, in which 10,000 clients take 400 MB; what is
added up is float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_score

from fedproto_app.maths.clustering import Pairs, Square, merges

Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]
Heads = NDArray[np.float32]
Cosine = Literal["cosine", "centred-cosine"]
HeadSimilarity = Literal[Cosine, "class-norms", "predictions"]

MOST_CLUSTERS = 20  # that the silhouette chooses among
BLOCK = 1024  # rows and columns of a product, so that float64 never holds a whole [N, N]


def head_similarity(
    heads: Heads, kind: HeadSimilarity, probe: NDArray[np.float64] | None = None
) -> Matrix:
    """W of heads [N, outputs, D + 1] as ``fed-react.similarity`` has it: [N, N].

    "class-norms" (ours) compares, centred, only how large the row of each class is. That tells
    which classes a client has seen, which is what clusters of clients differ in; the rows'
    directions are mostly the noise of a few samples. "predictions" (ours, for regression above all)
    compares what heads make of the vector `probe`, [D], which no other kind needs.
    """
    if kind == "predictions":
        if probe is None:
            raise ValueError("predictions of what? the probe is missing")
        exact = heads.astype(np.float64)
        return closeness(exact[:, :, :-1] @ probe + exact[:, :, -1])
    if kind == "class-norms":
        norms = np.linalg.norm(heads.astype(np.float64), axis=2)  # float32's squares overflow
        return similarity(norms, "centred-cosine")
    return similarity(heads.reshape(len(heads), -1), kind)


def similarity(heads: Matrix | NDArray[np.float64], kind: Cosine) -> Matrix:
    """W, the cosine of every two heads (Fed-REACT, eq. 2): [N, P] → [N, N] in [−1, 1], symmetric.

    "centred-cosine" takes the mean head away first, which shows differences that heads with much
    in common hide. A head of zeros has no direction: 0 with the others. The diagonal is 1.
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
    """exp(−½·(distance / median)²) of every two points: [N, k] → [N, N] in [0, 1], symmetric.

    The median is that of the distances above 0, so that a liar far away changes nothing for the
    others.
    """
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


def find_clusters(psi: Matrix, clusters: int, room: Square | None = None) -> Labels:
    """`agglomerate` to C clusters, or with 0 to as many as the silhouette says: [N, N] → [N]."""
    if clusters:
        return agglomerate(psi, clusters, room)
    return agglomerate_by_silhouette(psi, room=room)


def agglomerate(psi: Matrix, clusters: int, room: Square | None = None) -> Labels:
    """Agglomerative clustering with average linkage on 1 − ψ: [N, N] → [N], exactly C clusters.

    Fewer than C clients are a cluster each. Labels 0 … C−1 are numbered by first appearance. The
    order of scipy decides between equally near clusters, always the same for the same matrix.
    room: memory for `merges`.
    """
    return _cut(merges(psi, room), len(psi), clusters)


def agglomerate_by_silhouette(
    psi: Matrix, most: int = MOST_CLUSTERS, room: Square | None = None
) -> Labels:
    """`agglomerate` with the number of clusters, 2 … `most`, of the highest mean silhouette: [N].

    Of equally good numbers it takes the lowest. It gives one cluster for two clients or fewer, and
    where no number has a positive silhouette, such as when all clients are alike.
    """
    best, best_score = np.zeros(len(psi), np.int64), 0.0
    pairs = merges(psi, room)
    distance = np.maximum(1 - psi, 0)  # ψ of equal heads may be rounded to above 1
    for clusters in range(2, min(most, len(psi) - 1) + 1):
        labels = _cut(pairs, len(psi), clusters)
        score = float(silhouette_score(distance, labels, metric="precomputed"))
        if score > best_score:
            best, best_score = labels, score
    return best


def by_first_appearance(labels: Labels) -> Labels:
    """The same clusters, numbered 0, 1, … in the order in which they first come: [N] → [N]."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def spans(clients: int, length: int, start: int = 0) -> Iterator[slice]:
    """The clients from `start` on, `length` at a time."""
    for begin in range(start, clients, length):
        yield slice(begin, min(begin + length, clients))


def _mirror_diagonal_blocks(matrix: Matrix) -> None:
    """Make the blocks on the diagonal symmetric to the last bit, and the diagonal itself 1."""
    for rows in spans(len(matrix), BLOCK):
        upper = np.triu(matrix[rows, rows], 1)
        matrix[rows, rows] = upper + upper.T
    np.fill_diagonal(matrix, 1)


def _cut(pairs: Pairs, clients: int, clusters: int) -> Labels:
    """The labels [N] once the first N − C merges are done, each of the clusters of two clients.

    A cut at a height would leave fewer clusters where several merges share it.
    """
    done = pairs[: max(clients - clusters, 0)].T
    graph = coo_array((np.ones(done.shape[1]), (done[0], done[1])), shape=(clients, clients))
    _, labels = connected_components(graph, directed=False)
    return by_first_appearance(labels.astype(np.int64))
